"""Pairs and values are parted before any text is made."""

from fractions import Fraction

import pytest

from brimful.data.conversion_pairs import facts, pairs, pairs_apart, value_split
from brimful.data.units import decimal_text

HELD_OUT = ("validation", "test")


def test_pairs_of_the_splits_are_apart() -> None:
    """Whichever unit comes first."""
    units = {split: {pair.units for pair in found} for split, found in pairs().items()}
    assert {split: len(found) for split, found in units.items()} == {
        split: len(found) for split, found in pairs().items()
    }
    assert not units["train"] & (units["validation"] | units["test"])
    assert not units["validation"] & units["test"]
    assert min(map(len, units.values())) > 3


def test_what_is_held_out_can_be_worked_out_from_training() -> None:
    """Its units occur there, and two facts lead from one to the other."""
    units = {unit.name for pair in pairs()["train"] for unit in (pair.large, pair.small)}
    for split in HELD_OUT:
        assert all({pair.large.name, pair.small.name} <= units for pair in pairs()[split])
        assert pairs_apart(split) == pairs()[split]


def test_facts_are_short_and_of_training() -> None:
    """Every factor is exact and ends; those of many digits are never stated."""
    assert set(facts()) <= {pair.units for pair in pairs()["train"]}
    everything = [pair for found in pairs().values() for pair in found]
    assert all(
        pair.factor * pair.small.size == pair.large.size and decimal_text(pair.factor)
        for pair in everything
    )
    assert frozenset({"hour", "minute"}) in facts()
    assert frozenset({"week", "minute"}) not in {
        pair.units for pair in everything if pair.is_stated
    }


def test_a_value_belongs_to_one_split_wherever_its_point_stands() -> None:
    """About one of seven is for test; single digits are all for training."""
    assert (
        value_split(Fraction(37))
        == value_split(Fraction("3.7"))
        == value_split(Fraction("0.037"))
        == value_split(Fraction(37000))
        == "test"
    )
    assert {
        value_split(Fraction(digit * 10**power)) for digit in range(1, 10) for power in range(4)
    } == {"train"}
    shares = [value_split(Fraction(number)) for number in range(10, 10_000)]
    assert shares.count("test") / len(shares) == pytest.approx(0.15, abs=0.02)
    assert shares.count("validation") / len(shares) == pytest.approx(0.08, abs=0.02)
