"""Which units and values the unit-conversion corpus uses, and which of them training never sees.

Pairs of units and values are parted before any text is made, so that no split can hold those of another.
"""

import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

from brimful.data.units import UNITS, Unit, decimal_text, significant_digits

_SYMBOLS = frozenset(
    "mm cm m km in ft yd mi mg g kg t oz lb st mL cL L m^3 tsp tbsp fl_oz c pt qt gal s min h d wk mo yr decade century cm^2 m^2 ha km^2 in^2 ft^2 yd^2 "
    "cm/s m/s m/min km/h in/s ft/s ft/min mph bit B kB MB GB TB".replace("fl_oz", "fl-oz").split()
)
_FACTOR_DIGITS = 2
_LARGEST_FACTOR = 10**4
_PAIRS_HELD_OUT: Mapping[str, int] = MappingProxyType({"test": 10, "validation": 4})
_VALUES_HELD_OUT_PERCENT: Mapping[str, int] = MappingProxyType({"test": 15, "validation": 8})
_SEED = 2


@dataclass(frozen=True)
class Pair:
    """Two units of one quantity: 1 `large` = `factor` `small`."""

    large: Unit
    small: Unit
    factor: Fraction

    @property
    def units(self) -> frozenset[str]:
        return frozenset({self.large.name, self.small.name})


def value_split(value: Fraction) -> str:
    """Where a value to convert belongs, train, validation or test, by its significant digits alone, so that 37, 3.7 and 3700 go together.

    Values of one significant digit are all for training. The value must have an end as a decimal.
    """
    digits = significant_digits(decimal_text(value) or "")
    if len(digits) < 2:
        return "train"
    drawn = zlib.crc32(digits.encode()) % 100
    test = _VALUES_HELD_OUT_PERCENT["test"]
    if drawn < test:
        return "test"
    return "validation" if drawn < test + _VALUES_HELD_OUT_PERCENT["validation"] else "train"


@lru_cache(maxsize=1)
def pairs() -> Mapping[str, tuple[Pair, ...]]:
    """The pairs of each split, whichever unit comes first in a question.

    A held-out pair can be converted through a unit that lies between the two, by pairs of training.
    """
    everything = _all_pairs()
    training = {pair.units: pair for pair in everything}
    held_out: list[Pair] = []
    shuffled = list(everything)
    random.Random(_SEED).shuffle(shuffled)
    for pair in shuffled:
        rest = {units: other for units, other in training.items() if units != pair.units}
        if all(lies_between(one, rest) for one in (*held_out, pair)):
            training = rest
            held_out.append(pair)
        if len(held_out) == sum(_PAIRS_HELD_OUT.values()):
            break
    num_test = _PAIRS_HELD_OUT["test"]
    return MappingProxyType({"train": tuple(training.values()), "validation": tuple(held_out[num_test:]), "test": tuple(held_out[:num_test])})


@lru_cache(maxsize=3)
def weighted_pairs(split: str) -> tuple[Pair, ...]:
    """The pairs of a split, those that can also be converted through a unit between them three times, so that text shows how that is done."""
    return tuple(pair for pair in pairs()[split] for _ in range(3 if lies_between(pair, training_pairs()) else 1))


@lru_cache(maxsize=1)
def training_pairs() -> Mapping[frozenset[str], Pair]:
    """The pairs that text for training may state, by their units' names."""
    return MappingProxyType({pair.units: pair for pair in pairs()["train"]})


def _all_pairs() -> tuple[Pair, ...]:
    """Pairs whose factor is a decimal of few digits."""
    used = [unit for unit in UNITS if unit.symbol.replace(" ", "-") in _SYMBOLS]
    found = []
    for large in used:
        for small in used:
            factor = large.size / small.size
            if large.quantity == small.quantity and 1 < factor <= _LARGEST_FACTOR:
                text = decimal_text(factor)
                if text is not None and len(significant_digits(text)) <= _FACTOR_DIGITS:
                    found.append(Pair(large, small, factor))
    return tuple(found)


def lies_between(pair: Pair, known: Mapping[frozenset[str], Pair]) -> bool:
    """Whether some unit between the two of a pair has a known pair with each."""
    return any(
        pair.small.size < unit.size < pair.large.size
        and frozenset({pair.large.name, unit.name}) in known
        and frozenset({unit.name, pair.small.name}) in known
        for unit in UNITS
        if unit.quantity == pair.large.quantity
    )
