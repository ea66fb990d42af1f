"""Units of measurement with their exact sizes (units.toml), for the unit-conversion corpus and for
answers that name a unit.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from brimful.base.types import Texts


@dataclass(frozen=True)
class Unit:
    """A unit of measurement.

    Attributes:
        name, plural: Names in American English, such as `foot` and `feet`.
        symbol: Such as `ft`; the name where there is none in use.
        quantity: What it measures: length, mass, volume, time, area, speed or data.
        size: Size in the coherent SI unit of the quantity (m, kg, m³, s, m², m/s), or in bits.
        aliases: Other spellings, their plurals with s included.
    """

    name: str
    plural: str
    symbol: str
    quantity: str
    size: Fraction
    aliases: tuple[str, ...] = ()

    @property
    def spellings(self) -> tuple[str, ...]:
        return (self.name, self.plural, self.symbol, *self.aliases)


def _units() -> Iterator[Unit]:
    """The units of units.toml, in its order."""
    text = resources.files("brimful.data").joinpath("units.toml").read_text(encoding="utf-8")
    for quantity, units in tomllib.loads(text).items():
        for name, row in units.items():
            plural, aliases = row.get("plural", f"{name}s"), row.get("aliases", [])
            plurals = [f"{alias}s" for alias in aliases if len(alias) > 3 and alias.isalpha()]
            size = _size(name, units)
            yield Unit(name, plural, row["symbol"], quantity, size, (*aliases, *plurals))


def _size(name: str, units: Mapping[str, Texts]) -> Fraction:
    """The size of a unit, which may be given in another unit of the same quantity."""
    number, _, other = units[name]["size"].partition(" ")
    if not other:
        return Fraction(number)
    return Fraction(number) * _size(other, units)


UNITS: tuple[Unit, ...] = tuple(_units())

_POWERS = MappingProxyType({"**": "^", "²": "^2", "³": "^3"})


def units_spelled(text: str) -> tuple[Unit, ...]:
    """The units a text may mean, several for `ounce`; empty where it is none.

    Case counts in spellings of one or two letters (`MB` is the megabyte, `mb` is none); `m**2`,
    `m^2` and `m²` are one.
    """
    plain = " ".join(text.split())
    for written, power in _POWERS.items():
        plain = plain.replace(written, power)
    return _by_spelling().get(plain) or _by_lower_spelling().get(plain.lower(), ())


def units_of(quantity: str) -> tuple[Unit, ...]:
    """The units of a quantity, smaller ones first."""
    return tuple(
        sorted((unit for unit in UNITS if unit.quantity == quantity), key=lambda unit: unit.size)
    )


@lru_cache(maxsize=1 << 16)
def decimal_text(value: Fraction) -> str | None:
    """An exact decimal such as `0.3048`; None where its digits never end."""
    for places in range(25):
        if 10**places % value.denominator == 0:
            scaled = value.numerator * 10**places // value.denominator
            return f"{Decimal(f'{scaled}e-{places}'):f}"
    return None


@lru_cache(maxsize=1 << 16)
def significant_digits(text: str) -> str:
    """The digits of a decimal without point, sign and the zeros at both ends: `37` for 0.037 and
    3700.
    """
    return re.sub(r"\D", "", text).strip("0")


@lru_cache(maxsize=1)
def _by_spelling() -> Mapping[str, tuple[Unit, ...]]:
    units: dict[str, tuple[Unit, ...]] = {}
    for unit in UNITS:
        for spelling in dict.fromkeys(unit.spellings):
            units[spelling] = (*units.get(spelling, ()), unit)
    return units


@lru_cache(maxsize=1)
def _by_lower_spelling() -> Mapping[str, tuple[Unit, ...]]:
    by_lower: dict[str, tuple[Unit, ...]] = {}
    for spelling, units in _by_spelling().items():
        if len(spelling) > 2:
            known = by_lower.get(spelling.lower(), ())
            by_lower[spelling.lower()] = tuple(dict.fromkeys((*known, *units)))
    return by_lower
