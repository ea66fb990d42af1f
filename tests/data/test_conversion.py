"""The unit-conversion corpus is exact, and nothing that is held out occurs in what training
reads.
"""

import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.data import conversion
from brimful.data.conversion import KINDS, conversion_documents, conversion_rows, questions
from brimful.data.conversion_pairs import pairs, value_split
from brimful.data.units import Unit, units_spelled

Rows = dict[str, list[dict[str, str]]]

EQUATION = re.compile(r"([\d.]+) ([x/+]) ([\d.]+) = ([\d.]+)")
STATED = re.compile(r"(?:^|\. )([\d.]+) ([a-z ]+) = ([\d.]+) ([a-z ]+)", re.MULTILINE)
NUMBER_ENDS = re.compile(r"(?<=\d)\.(?= |$)", re.MULTILINE)
"""A point that ends a sentence, not a number."""


@pytest.fixture(scope="module")
def rows() -> Rows:
    return {split: [row.columns for row in islice(conversion_rows(split), 2000)] for split in KINDS}


@pytest.fixture(scope="module")
def text() -> str:
    """A fortieth of the text to pre-train on."""
    return "".join(islice(conversion_documents(), 500))


def asked(question: str) -> tuple[Fraction, Unit, Unit]:
    """What a question asks, read back by its wording."""
    for wording in conversion._WORDINGS:
        pattern = re.escape(wording)
        for name in ("value", "source", "target"):
            pattern = pattern.replace(
                rf"\{{{name}\}}", rf"(?P<{name}>{r'[0-9.]+' if name == 'value' else '.+?'})"
            )
        found = re.fullmatch(pattern, question)
        if found and units_spelled(found["source"]) and units_spelled(found["target"]):
            source, target = next(
                (first, second)
                for first in units_spelled(found["source"])
                for second in units_spelled(found["target"])
                if first.quantity == second.quantity
            )
            return Fraction(found["value"]), source, target
    raise AssertionError(question)


def converted(text: str) -> Iterator[Fraction]:
    """Left operands of multiplications and divisions."""
    return (
        Fraction(left)
        for left, sign, _, _ in EQUATION.findall(NUMBER_ENDS.sub(";", text))
        if sign != "+"
    )


def stated(text: str) -> Iterator[tuple[Fraction, Unit, Fraction, Unit]]:
    """Quantities that are said to be equal."""
    for value, first, result, second in STATED.findall(text):
        for one in units_spelled(first):
            for other in units_spelled(second):
                if one.quantity == other.quantity:
                    yield Fraction(value), one, Fraction(result), other


def test_held_out_pairs_and_values_are_not_asked_in_training(
    rows: Rows,
) -> None:
    """Whichever unit comes first; new-values and new-pairs are new in just that, new-both in
    both.
    """
    seen = {
        split: [(*asked(row["question"]), row["kind"]) for row in found]
        for split, found in rows.items()
    }
    pairs_seen = {frozenset({source.name, target.name}) for _, source, target, _ in seen["train"]}
    values_seen = {value for value, *_ in seen["train"]}
    for split in ("validation", "test"):
        for value, source, target, kind in seen[split]:
            pair = frozenset({source.name, target.name})
            assert (pair in pairs_seen) == (kind == "new-values")
            assert value_split(value) == ("train" if kind == "new-pairs" else split)
            assert kind == "new-pairs" or value not in values_seen
    assert not values_of(seen["test"]) & values_of(seen["validation"])
    assert len(pairs_seen) >= 60, "all but those whose numbers always get long"


def values_of(found: list[tuple[Fraction, Unit, Unit, str]]) -> set[Fraction]:
    return {value for value, _, _, kind in found if kind != "new-pairs"}


def test_no_text_for_training_converts_a_held_out_value_or_states_a_held_out_pair(
    rows: Rows, text: str
) -> None:
    """Nor do intermediate steps, facts and sums."""
    known = {frozenset({pair.large.name, pair.small.name}) for pair in pairs()["train"]}
    everything = "\n".join([text, *(row["document"] for row in rows["train"])])
    found = list(stated(everything))
    assert len(found) > 2000
    for value, source, _, target in found:
        assert frozenset({source.name, target.name}) in known
        assert value_split(value) == "train"
    values = list(converted(everything))
    assert len(values) > 4000
    assert all(value_split(value) == "train" for value in values)


def test_facts_of_held_out_pairs_stand_nowhere(rows: Rows) -> None:
    """Not even in the reasoning that belongs to them, which goes through a third unit."""
    held_out = {
        frozenset({pair.large.name, pair.small.name})
        for split in ("validation", "test")
        for pair in pairs()[split]
    }
    reasoning = "\n".join(row["reasoning"] for found in rows.values() for row in found)
    assert not any(
        frozenset({source.name, target.name}) in held_out
        for _, source, _, target in stated(reasoning)
    )


def test_every_equation_is_true(rows: Rows, text: str) -> None:
    """In the reasoning of all splits and in the text; the last one gives the answer, and that is
    the exact one.
    """
    operations = {"x": Fraction.__mul__, "/": Fraction.__truediv__, "+": Fraction.__add__}
    everything = "\n".join([text, *(row["reasoning"] for found in rows.values() for row in found)])
    equations = EQUATION.findall(NUMBER_ENDS.sub(";", everything))
    assert len(equations) > 8000
    for left, sign, right, result in equations:
        assert operations[sign](Fraction(left), Fraction(right)) == Fraction(result)
    assert all(
        value * source.size == result * target.size
        for value, source, result, target in stated(everything)
    )
    for row in (row for found in rows.values() for row in found):
        assert row["reasoning"].endswith(f"= {row['answer']}. <answer>{row['answer']}</answer>")
        value, source, target = asked(row["question"])
        assert value * source.size == Fraction(row["answer"]) * target.size


def test_rows_are_the_same_each_time_and_none_comes_twice(
    rows: Rows,
) -> None:
    """600 in test, 200 of each kind."""
    assert [row.columns for row in islice(conversion_rows("train"), 50)] == rows["train"][:50]
    assert len({row["question"] for row in rows["train"]}) == 2000
    assert Counter(row["kind"] for row in rows["test"]) == dict.fromkeys(KINDS["test"], 200)
    assert not {row["question"] for row in rows["train"]} & {
        row["question"] for row in rows["test"]
    }


def test_other_seeds_give_other_questions() -> None:
    """Without end: the number is up to the caller."""
    first, second = (
        [problem.question for problem in questions("test", 30, seed)] for seed in (1, 2)
    )
    assert first != second


def test_there_are_several_paths(rows: Rows) -> None:
    """Straight and through another unit, in one equation and in parts."""
    facts = Counter(len(list(stated(row["reasoning"]))) for row in rows["train"])
    assert min(facts[1], facts[2]) > 250
    assert sum(" + " in row["reasoning"] for row in rows["train"]) > 250


def test_an_unknown_split_is_refused(refuses: Refuses) -> None:
    """With the nearest."""
    with refuses(DataError, names=["'tests'", "test"]):
        next(conversion_rows("tests"))
