"""Which units and values the unit-conversion corpus uses, and which of them training never sees.

Pairs of units and values are parted before any text is made, so that no split can hold those of
another.
"""

import random
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

from brimful.base.types import Counts
from brimful.data.units import UNITS, Unit, decimal_text, significant_digits

_SYMBOLS = frozenset(
    "mm cm m km in ft yd mi mg g kg t oz lb st mL cL L m^3 tsp tbsp fl_oz c pt qt gal s min h d wk"
    " mo yr decade century cm^2 m^2 ha km^2 in^2 ft^2 yd^2 cm/s m/s m/min km/h in/s ft/s ft/min mph"
    " bit B kB MB GB TB".replace("fl_oz", "fl-oz").split()
)
HUBS = frozenset(
    ["m", "ft", "kg", "lb", "L", "c", "h", "yr", "m^2", "ft^2", "m/s", "ft/s", "kB", "GB"]
)
"""Symbols of the units that others are converted through, one for each family, so that what is
known of single units answers for their pairs.
"""
_STATED_DIGITS = 1
_STATED_DIGITS_OF_A_HUB = 3
_LARGEST_STATED = 10**4
_LARGEST_FACTOR = 10**5
_PAIRS_HELD_OUT: Counts = MappingProxyType({"test": 10, "validation": 5})
_MOST_HELD_OUT_OF_A_QUANTITY = 4
_VALUES_BELOW_PERCENT: Counts = MappingProxyType({"test": 15, "validation": 23})
"""15 % of the values are held out for test, 8 % for validation."""
_SEED = 2


@dataclass(frozen=True)
class UnitPair:
    """Two units of one quantity: 1 `large` = `factor` `small`."""

    large: Unit
    small: Unit
    factor: Fraction

    @property
    def units(self) -> frozenset[str]:
        return frozenset({self.large.name, self.small.name})

    @property
    def is_stated(self) -> bool:
        """Whether the factor is short enough to be stated as a fact; otherwise the way leads
        through a hub.
        """
        digits = _STATED_DIGITS
        if {self.large.symbol, self.small.symbol} & HUBS:
            digits = _STATED_DIGITS_OF_A_HUB
        return (
            self.factor <= _LARGEST_STATED
            and len(significant_digits(decimal_text(self.factor) or "")) <= digits
        )


@lru_cache(maxsize=1 << 16)
def value_split(value: Fraction) -> str:
    """Where a value to convert belongs, train, validation or test, by its significant digits alone,
    so that 37, 3.7 and 3700 go together.

    Values of one significant digit are all for training. The value must have an end as a decimal.
    """
    digits = significant_digits(decimal_text(value) or "")
    if len(digits) < 2:
        return "train"
    percent = zlib.crc32(digits.encode()) % 100
    for split, below in _VALUES_BELOW_PERCENT.items():
        if percent < below:
            return split
    return "train"


@lru_cache(maxsize=1)
def pairs() -> Mapping[str, tuple[UnitPair, ...]]:
    """The pairs of each split, whichever unit comes first in a question.

    A pair that is held out, or not stated, can be converted through a hub, by facts of training.
    """
    everything = _all_pairs()
    stated = _facts(everything)
    shuffled = [pair for pair in everything if _has_hub(pair, stated)]
    random.Random(_SEED).shuffle(shuffled)
    held_out: list[UnitPair] = []
    for pair in shuffled:
        if (
            sum(one.large.quantity == pair.large.quantity for one in held_out)
            < _MOST_HELD_OUT_OF_A_QUANTITY
        ):
            left = _facts(one for one in everything if one not in held_out and one != pair)
            if all(_has_hub(one, left) for one in (*held_out, pair)):
                held_out.append(pair)
    num_test, num_in_all = _PAIRS_HELD_OUT["test"], sum(_PAIRS_HELD_OUT.values())
    split = {"validation": tuple(held_out[num_test:num_in_all]), "test": tuple(held_out[:num_test])}
    training = tuple(pair for pair in everything if pair not in split["validation"] + split["test"])
    return MappingProxyType({"train": training, **split})


@lru_cache(maxsize=1)
def facts() -> Mapping[frozenset[str], UnitPair]:
    """The pairs that texts state, by their units' names: those of training with short factors."""
    return _facts(pairs()["train"])


@lru_cache(maxsize=3)
def pairs_apart(split: str) -> tuple[UnitPair, ...]:
    """The pairs of a split that can be converted through a hub."""
    return tuple(pair for pair in pairs()[split] if _has_hub(pair, facts()))


def _facts(known: Iterable[UnitPair]) -> Mapping[frozenset[str], UnitPair]:
    return MappingProxyType({pair.units: pair for pair in known if pair.is_stated})


def _all_pairs() -> tuple[UnitPair, ...]:
    """Pairs whose factor is a decimal, and stated or a product of stated ones."""
    used = [unit for unit in UNITS if unit.symbol.replace(" ", "-") in _SYMBOLS]
    exact = [
        UnitPair(large, small, large.size / small.size)
        for large in used
        for small in used
        if large.quantity == small.quantity
        and small.size < large.size <= _LARGEST_FACTOR * small.size
    ]
    ending = [pair for pair in exact if decimal_text(pair.factor) is not None]
    stated = _facts(ending)
    return tuple(pair for pair in ending if pair.is_stated or _has_hub(pair, stated))


def _has_hub(pair: UnitPair, stated: Mapping[frozenset[str], UnitPair]) -> bool:
    """Whether facts lead from one unit of a pair to the other through a hub."""
    return any(
        {frozenset({pair.large.name, unit.name}), frozenset({unit.name, pair.small.name})}
        <= stated.keys()
        for unit in UNITS
        if unit.symbol in HUBS and unit not in (pair.large, pair.small)
    )
