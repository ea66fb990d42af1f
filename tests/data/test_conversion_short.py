"""Short worked conversions."""

import re
from fractions import Fraction
from itertools import islice

from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.data.conversion import conversion_rows, short_conversion_rows, small_conversion_rows
from brimful.data.conversion_short import short_paths
from brimful.data.units import UNITS, significant_digits

EQUATION = re.compile(r"([\d.]+) ([x/+]) ([\d.]+) = ([\d.]+)\. ")


def _rows(count: int = 2000) -> list[dict[str, object]]:
    return [dict(row.columns) for row in islice(short_conversion_rows(), count)]


def test_every_equation_is_exact_and_ends_in_the_answer() -> None:
    for row in _rows():
        equations = EQUATION.findall(str(row["reasoning"]))
        assert equations, row
        for first, sign, second, result in equations:
            a, b = Fraction(first), Fraction(second)
            assert {"x": a * b, "/": a / b, "+": a + b}[sign] == Fraction(result), row
        assert f"<answer>{row['answer']}</answer>" in str(row["reasoning"])
        assert equations[-1][-1] == row["answer"]


def test_questions_and_answers_are_those_of_the_corpus_with_digits() -> None:
    digits = [dict(row.columns) for row in islice(conversion_rows(), 200)]
    for short, spelled in zip(_rows(200), digits, strict=True):
        assert (short["question"], short["answer"]) == (spelled["question"], spelled["answer"])


def test_a_conversion_has_several_short_ways() -> None:
    unit = {each.name: each for each in UNITS}
    ways = list(short_paths(Fraction(37), unit["hour"], unit["minute"]))
    texts = {" ".join(path.sentences) for path in ways}
    assert "1 hour = 60 minutes. 37 x 60 = 2220." in texts
    assert "1 hour = 60 minutes. 37 x 6 = 222. 222 x 10 = 2220." in texts
    assert "1 hour = 60 minutes. 30 x 60 = 1800. 7 x 60 = 420. 1800 + 420 = 2220." in texts


def test_most_rows_are_shorter_and_no_single_way_dominates() -> None:
    rows = _rows()
    counts = [len(EQUATION.findall(str(row["reasoning"]))) for row in rows]
    assert all(counts.count(each) > len(rows) / 20 for each in (1, 2, 3))


def test_small_questions_need_products_of_small_numbers_only() -> None:
    for split in ("train", "validation", "test"):
        for row in islice(small_conversion_rows(split), 300):
            equations = EQUATION.findall(row.columns["reasoning"])
            assert equations[-1][-1] == row.columns["answer"]
            for first, sign, second, result in equations:
                a, b = int(first), int(second)
                assert {"x": a * b, "/": a / b}[sign] == int(result) < 100_000, row
                digits = sorted(len(significant_digits(text)) for text in (first, second))
                assert digits[0] == 1, row
                assert digits[1] <= 2, row


def test_small_questions_of_test_are_none_of_training_and_as_many_as_promised() -> None:
    test = [row.columns["question"] for row in small_conversion_rows("test")]
    train = {row.columns["question"] for row in islice(small_conversion_rows(), 2000)}
    assert len(set(test)) == len(test) == 600
    assert not train & set(test)


def test_a_split_that_small_questions_do_not_have_is_refused(refuses: Refuses) -> None:
    with refuses(DataError):
        next(small_conversion_rows("tests"))
