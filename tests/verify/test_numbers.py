"""Numbers as models write them."""

from decimal import Decimal

import pytest
from fixture_types import Refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.verify.numbers import (
    compared,
    is_close,
    number_in,
    plain_value,
    read_number,
    reference_number,
)

TOLERANCE = Decimal("0.001")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42", 42),
        ("-5", -5),
        ("−5", -5),
        ("–5", -5),
        ("+5", 5),
        ("= 5", 5),
        ("≈5", 5),
        ("-0", 0),
        ("007", 7),
        (".5", 0.5),
        ("5.", 5),
        ("42.", 42),
        ("1,234.5", 1234.5),
        ("1 234", 1234),
        ("1\u202f234 567", 1234567),
        ("1{,}234", 1234),
        ("1.2e3", 1200),
        ("1.2E-3", 0.0012),
        ("1.2 x 10^3", 1200),
        ("5 \\times 10^{-3}", 0.005),
        ("5 × 10**2", 500),
        ("3/4", 0.75),
        ("-3 / 4", -0.75),
        ("\\frac{3}{4}", 0.75),
        ("-\\dfrac{3}{4}", -0.75),
        ("$18", 18),
        ("-$18", -18),
        ("$-18.50", -18.5),
        ("\\$18", 18),
        ("€ 5", 5),
        ("18 dollars", 18),
        ("50%", 50),
        ("50 \\%", 50),
        ("**42**", 42),
        ("$42$", 42),
        ("\\(42\\)", 42),
        ("18\\,\\text{kg}", 18),
        ("20 °C", 20),
        ("90^\\circ", 90),
        ("2h", 2),
        ("5 m/s^2", 5),
        ("16 eggs per day", 16),
        ("5 m²", 5),
        ("5 meters squared", 5),
        ("300 K", 300),
        ("5 hundredweight", 5),
        ("5 pints", 5),
    ],
)
def test_a_number_is_read_in_every_usual_spelling(text: str, value: float) -> None:
    read = number_in(text)
    assert read.value is not None
    assert plain_value(read.value) == value


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no number"),
        ("nan", "no number"),
        ("inf", "no number"),
        ("-Infinity", "no number"),
        ("five", "no number"),
        ("5 million", "not a plain number"),
        ("$3 thousand dollars", "not a plain number"),
        ("5k", "not a plain number"),
        ("2π", "not a plain number"),
        ("3 Hundreds", "not a plain number"),
        ("2 pi r", "not a plain number"),
        ("5²", "not a plain number"),
        ("5 squared", "not a plain number"),
        ("5½", "not a plain number"),
        ("5 and a half", "not a plain number"),
        ("1,23", "not a plain number"),
        ("12,34", "not a plain number"),
        ("1.2.3", "not a plain number"),
        ("--5", "not a plain number"),
        ("5!", "not a plain number"),
        ("(5)", "not a plain number"),
        ("x = 5", "not a plain number"),
        ("1e", "not a plain number"),
        ("٣", "not a plain number"),
        ("２", "not a plain number"),
        ("about 5", "not a plain number"),
        ("5 is what I think it is", "not a plain number"),
        ("0x10", "several numbers"),
        ("1_000", "several numbers"),
        ("12:30", "several numbers"),
        ("1 or 2", "several numbers"),
        ("1-2", "several numbers"),
        ("2 h 30 min", "several numbers"),
        ("1 2345", "several numbers"),
        ("1 1/2", "several numbers"),
        ("5 × 10³", "several numbers"),
        ("2 x 60 = 120", "several numbers"),
        ("1e99999999999", "several numbers"),
        ("3/0", "several numbers"),
        ("\\frac{3}{0}", "no number"),
    ],
)
def test_what_is_not_exactly_one_number_is_none_and_says_why(text: str, problem: str) -> None:
    assert (number_in(text).value, number_in(text).problem) == (None, problem)


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("5 kg", "kg"),
        ("5 m^{2}", "m^2"),
        ("5 m**2", "m**2"),
        ("5%", "%"),
        ("5\\,\\mathrm{km/h}", "km/h"),
        ("5", ""),
    ],
)
def test_what_stands_behind_a_number_is_its_unit(text: str, unit: str) -> None:
    assert number_in(text).unit == unit


@given(number=st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
def test_what_python_prints_of_a_float_is_read_exactly(number: float) -> None:
    assert number_in(repr(number)).value == Decimal(repr(number))
    assert plain_value(number_in(f"${number!r}").value or Decimal(0)) == number


@given(number=st.integers(-(10**12), 10**12), places=st.integers(0, 4))
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
def test_grouped_digits_are_read_exactly(number: int, places: int) -> None:
    value = Decimal(number).scaleb(-places)
    assert (
        number_in(f"{value:,f}").value
        == number_in(f"{value:,f} km".replace(",", " ")).value
        == value
    )


def test_a_number_without_a_mark_counts_only_where_it_is_the_whole_answer() -> None:
    assert read_number(" 42\n").value == 42
    assert read_number("It is 42").problem == "no final answer"
    assert read_number("42 <answer>").problem == "final answer not closed"
    assert read_number("1" * 2000).value is None


def test_numbers_beyond_floats_are_compared_and_stay_texts() -> None:
    huge, tiny = number_in("1e999").value, number_in("1e-999").value
    assert huge is not None
    assert tiny is not None
    assert plain_value(huge) == "1E+999"
    assert plain_value(tiny) == "1E-999"
    assert not is_close(huge, Decimal(1), TOLERANCE)
    assert not is_close(Decimal(1), huge, TOLERANCE)
    assert is_close(huge, Decimal("1.0005e999"), TOLERANCE)
    assert not is_close(number_in("1e999999999").value or Decimal(0), tiny, TOLERANCE)
    assert plain_value(number_in("9" * 400).value or Decimal(0)) == f"1.{'0' * 59}E+400"


def test_the_edge_of_the_tolerance_is_exact() -> None:
    assert is_close(Decimal("1.001"), Decimal(1), TOLERANCE)
    assert is_close(Decimal("-0.999"), Decimal(-1), TOLERANCE)
    assert not is_close(Decimal("1.00100000000000000001"), Decimal(1), TOLERANCE)
    assert is_close(Decimal("1e-9"), Decimal(0), TOLERANCE)
    assert not is_close(Decimal("1.1e-9"), Decimal(0), TOLERANCE)


def test_a_reference_is_read_like_an_answer_and_refused_where_it_is_no_number(
    refuses: Refuses,
) -> None:
    assert reference_number("She has 9 left.\n#### 1,018") == 1018
    for wrong in ("nan", "Paris", "", "#### \n"):
        with refuses(ValueError):
            reference_number(wrong)


def test_a_verdict_tells_the_value_and_the_place_it_was_read_from() -> None:
    verdict = compared("<answer> 1,200 g </answer>", "1200", lambda value, right: value == right)
    assert (verdict.value, verdict.extracted, verdict.status) == (1200.0, "1,200 g", "correct")
