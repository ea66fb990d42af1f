"""Worked reasoning: what its paths look like."""

from fractions import Fraction

import pytest

from brimful.data.conversion_reasoning import fact, number, paths, working
from brimful.data.units import Unit, units_spelled


def unit(text: str) -> Unit:
    (found,) = units_spelled(text)
    return found


def test_a_conversion_is_written_in_steps_that_are_easy() -> None:
    """The larger unit stands first in the fact, whichever way the conversion goes."""
    (there,) = [
        path.sentences
        for path in paths(Fraction(37), unit("hours"), unit("minutes"))
        if path.name == "direct"
    ]
    assert there == (
        "1 hour = 60 minutes.",
        "30 x 60 = 1800.",
        "7 x 60 = 420.",
        "1800 + 420 = 2220.",
    )
    (back,) = [
        path.sentences
        for path in paths(Fraction(2220), unit("minutes"), unit("hours"))
        if path.name == "direct"
    ]
    assert back == ("1 hour = 60 minutes.", "1800 / 60 = 30.", "420 / 60 = 7.", "30 + 7 = 37.")
    (whole,) = [
        path.sentences
        for path in paths(Fraction(40), unit("hours"), unit("minutes"))
        if path.name == "direct"
    ]
    assert whole == ("1 hour = 60 minutes.", "40 x 60 = 2400.")


def test_a_path_can_lead_through_another_unit() -> None:
    """One through which all of its family go; the numbers that are multiplied or divided on the way
    are known.
    """
    found = list(paths(Fraction(2), unit("quarts"), unit("tbsp")))
    assert [
        (path.name, path.sentences, [*map(int, path.operands)])
        for path in found
        if path.name == "through"
    ] == [
        (
            "through",
            ("1 quart = 4 cups.", "2 x 4 = 8.", "1 cup = 16 tablespoons.", "8 x 16 = 128."),
            [2, 8],
        )
    ]
    assert {path.name for path in found} == {"through"}, (
        "64 is too long a factor to be stated where no hub is involved"
    )
    assert {path.name for path in paths(Fraction(2), unit("L"), unit("cl"))} == {"direct"}
    (in_parts,) = [
        path for path in paths(Fraction(23), unit("pints"), unit("fl oz")) if path.name == "through"
    ]
    assert [*map(int, in_parts.operands)] == [20, 3, 40, 6]


@pytest.mark.parametrize(
    ("value", "factor", "divide"),
    [("1/3", "2", False), ("1", "3", True), ("99999", "11", False), ("1e7", "10", False)],
)
def test_nothing_is_written_where_a_number_gets_long(
    value: str, factor: str, *, divide: bool
) -> None:
    """Or does not end as a decimal."""
    assert working(Fraction(value), Fraction(factor), divide=divide) is None


def test_parts_are_two_and_only_where_a_number_has_two_digits() -> None:
    """And not where only zeros are added."""
    in_parts, whole = (
        working(Fraction("3.7"), Fraction(6), divide=False),
        working(Fraction(37), Fraction(100), divide=False),
    )
    assert in_parts is not None
    assert in_parts.equations == ("3 x 6 = 18", "0.7 x 6 = 4.2", "18 + 4.2 = 22.2")
    assert whole is not None
    assert whole.equations == ("37 x 100 = 3700",)
    assert working(Fraction(371), Fraction(6), divide=False) is None


def test_facts_and_numbers_are_plain() -> None:
    """Singular and plural; decimals of few digits."""
    assert fact(unit("inch"), unit("foot")) == "1 foot = 12 inches"
    assert [number(Fraction(value)) for value in ("0.05", "1/3", "0", "123456")] == [
        "0.05",
        None,
        None,
        None,
    ]
