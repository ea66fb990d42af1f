"""Answers that reason alike have one path, others have different ones."""

import gzip
import json
import re
from itertools import islice
from pathlib import Path

import pytest

from brimful.selection.paths import equations_of, path_hash, path_of


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ("1 hour = 60 minutes. So 2 hours = 2 × 60 = <answer>120</answer>", "1=60; 2=2*60=120"),
        (
            (
                "1 pint is equal to 473.176 ml. So 10 pints = 10 ⋅ 473.1760 ="
                " <answer>4,731.76</answer> ml."
            ),
            "1=473.176; 10=10*473.176=4731.76",
        ),
        ("1 kilobyte (KB) equals 1024 bytes", "1=1024"),
        ("60 km/h = 60 * 1000 / 3600 m/s = 16.67 m/s", "60=1000*60/3600=16.67"),
        ("Thus 4 m³ = 4 m**3 = 4 x 1000 = 4,000 l", "4=4=1000*4=4000"),
        ("5 cm^3 / 2 = 2.50 cm2", "5/2=2.5"),
        ("She needs 100 - 50 - 15 = $<<100-50-15=35>>35 more.\n#### 35", "100-15-50=35"),
        ("She has $<<2*3=6>>6 and spends 4, so 6-4 = 2 are left.", "2*3=6; 6-4=2"),
        ("20% of $50 = $10.50", "20*50=10.5"),
        ("40(.50) = 20 and (1+2)(3) = 9 (3+6 = 9)", "0.5*40=20; (1+2)*3=9; 3+6=9"),
        ("$\\frac{1}{2} \\times 4 \\text{ ml} = \\boxed{2}$", "1*4/2=2"),
        ("8 × 1000\n = 8000", "1000*8=8000"),
        ("- 3 mph = 3 × 1.6 = 4.8", "3=1.6*3=4.8"),
        ("10² - 2^3 = 92", "10^2-2^3=92"),
        ("2 * -3 = -6", "2*-3=-6"),
        ("1e3 m = 1 km = .5 * 2.0 km", "1000=1=0.5*2"),
        ("10 apples-5 apples=5", "10-5=5"),
        ("x = 3 + 4) * 2 = 14", "2*4+3=14"),
    ],
)
def test_equations_are_found_and_written_in_one_way(answer: str, path: str) -> None:
    assert path_of(answer, "equations") == path


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("So 2 hours = 2 x 60 minutes = 120", "We get 2 = 60 × 2 = 120.0"),
        ("3 + 4 * 2 = 11", "2*4 + 3 = 11"),
        ("16 - 3 - 4 = 9", "16 - 4 - 3 = 9"),
        ("6 / 3 * 2 = 4", "6 * 2 ÷ 3 = 4"),
        ("First 2+3=5. Then 5*2=10.", "2 + 3 = 5\n5 ∗ 2 = 10\n#### 10"),
    ],
)
def test_the_same_calculation_in_other_words_is_one_path(first: str, second: str) -> None:
    assert path_of(first, "equations") == path_of(second, "equations")
    assert path_hash(first, "equations") == path_hash(second, "equations")
    assert path_of(first, "text") != path_of(second, "text")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2 * 60 = 120", "60 + 60 = 120"),
        ("2 + 3 = 5, 5 * 2 = 10", "5 * 2 = 10, 2 + 3 = 5"),
        ("6 / 3 = 2", "3 / 6 = 0.5"),
        ("6 - 3 = 3", "3 - 6 = -3"),
        ("2 * (3 + 4) = 14", "2 * 3 + 4 = 14"),
        ("2 * 3600 = 7200", "2 * 60 * 60 = 7200"),
    ],
)
def test_other_calculations_are_other_paths(first: str, second: str) -> None:
    assert path_of(first, "equations") != path_of(second, "equations")


def test_without_an_equation_the_text_is_the_path() -> None:
    assert (
        path_of("There are 1,000 g; hence <answer>2000.0</answer>!", "equations")
        == "there are 1000 g hence <answer> 2000 </answer>"
    )
    assert path_of("It  IS: 72.\n#### 72", "text") == "it is 72 #### 72"
    assert path_of("...", "equations") == ""


def test_programs_that_differ_in_layout_comments_and_docstrings_are_one_path() -> None:
    first = 'def f(a):\n    """Add."""\n    return a + 1  # one more\n'
    second = "def f( a ):\n\n  return (a+1)"

    assert path_of(first, "code") == path_of(second, "code")
    assert path_of(first, "code") != path_of(second.replace("1", "2"), "code")
    assert path_of('def f():\n    "only said"', "code") != path_of("def f():\n    return 1", "code")
    assert path_of("not a program = ", "code") == "not a program"


@pytest.mark.parametrize("by", ["equations", "text", "code"])
@pytest.mark.parametrize(
    "odd",
    [
        "",
        "\x00",
        "\ud800 = 1",
        "1e9999999999 = 2",
        "9" * 5000 + " = 1e9999",
        "=" * 50,
        "(" * 500 + "1" + ")" * 500 + "=1",
        "½ = ٣ = ²",
        "<<=>>= <<1",
        "--1==+",
        "1,2,3=1,234,5",
    ],
)
def test_nothing_a_model_writes_breaks_it(odd: str, by: str) -> None:
    assert len(path_hash(odd, by)) == 16  # type: ignore[arg-type]


def test_real_unit_conversions_have_their_equations_read(shared_data: Path) -> None:
    """Sampled answers of the guide's kind: nearly all hold an equation, and as texts they are far
    more often distinct.
    """
    rows = json.loads((shared_data / "unit_conversion" / "rft_nickctomlin.json").read_text())
    reasonings = [reasoning for _, _, reasoning in rows]

    assert sum(bool(equations_of(text)) for text in reasonings) > 0.98 * len(reasonings)
    assert len({path_of(text, "equations") for text in reasonings}) < 0.7 * len(
        {path_of(text, "text") for text in reasonings}
    )


def test_the_equations_of_real_solutions_are_those_their_authors_marked(shared_data: Path) -> None:
    """GSM8K marks most of its equations; an eighth of its solutions marks some that differ from
    what is written, such as <<6=6>> or a percentage.
    """
    with gzip.open(shared_data / "gsm8k" / "train.jsonl.gz", "rt") as file:
        answers = [json.loads(line)["answer"] for line in islice(file, 600)]
    marked = [
        {equation for mark in re.findall(r"<<(.*?)>>", answer) for equation in equations_of(mark)}
        for answer in answers
    ]
    found = [set(equations_of(answer)) for answer in answers]

    assert sum(not equations for equations in found) <= 2
    assert sum(
        of_marks <= of_text for of_marks, of_text in zip(marked, found, strict=True)
    ) > 0.87 * len(answers)
    assert sum(
        of_marks == of_text for of_marks, of_text in zip(marked, found, strict=True)
    ) > 0.7 * len(answers)
