"""Units of measurement with their exact sizes, for the unit-conversion corpus and for answers that
name a unit.

Sources, all read in November 2026: NIST SP 811 (2008), appendix B, and NIST Handbook 44 (2024),
appendix C, for inch to mile, ounce to ton and the US measures of volume (1 gallon = 231 cubic
inches; international yard and pound of 1959: 0.9144 m and 0.453 592 37 kg); the Weights and
Measures Act 1985 for the imperial gallon (4.546 09 L); IEC 80000-13:2008 for bits and bytes (kilo
is 1000, kibi 1024). A year is the tropical year of 1900, 31 556 925.974 7 s, which defined the
second from 1960 to 1967 (11th CGPM, resolution 9); a month is a twelfth of it. Decades and
centuries are 10 and 100 of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

from brimful.base.errors import DataError

_Size = int | str | Fraction


@dataclass(frozen=True)
class Unit:
    """A unit of measurement.

    Attributes:
        name, plural: In American English, such as `foot` and `feet`.
        symbol: Such as `ft`; the name where there is none in use.
        quantity: What it measures: length, mass, volume, time, area, speed or data.
        size: In the coherent SI unit of the quantity (m, kg, m³, s, m², m/s), or in bits.
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


def _unit(
    quantity: str, name: str, symbol: str, size: _Size, *aliases: str, plural: str = ""
) -> Unit:
    more = tuple(f"{alias}s" for alias in aliases if len(alias) > 3 and alias.isalpha())
    return Unit(name, plural or f"{name}s", symbol, quantity, Fraction(size), (*aliases, *more))


_POUND = Fraction("0.45359237")
_GALLON = 231 * Fraction("0.0254") ** 3
_IMPERIAL_GALLON = Fraction("0.00454609")
_FOOT = Fraction("0.3048")
_MILE = 5280 * _FOOT
_YEAR = Fraction("31556925.9747")

UNITS: tuple[Unit, ...] = (
    _unit("length", "millimeter", "mm", "0.001", "millimetre"),
    _unit("length", "centimeter", "cm", "0.01", "centimetre"),
    _unit("length", "decimeter", "dm", "0.1", "decimetre"),
    _unit("length", "meter", "m", 1, "metre"),
    _unit("length", "kilometer", "km", 1000, "kilometre"),
    _unit("length", "inch", "in", _FOOT / 12, plural="inches"),
    _unit("length", "foot", "ft", _FOOT, plural="feet"),
    _unit("length", "yard", "yd", 3 * _FOOT),
    _unit("length", "mile", "mi", _MILE),
    _unit("length", "nautical mile", "nmi", 1852),
    _unit("mass", "milligram", "mg", "0.000001"),
    _unit("mass", "gram", "g", "0.001", "gramme"),
    _unit("mass", "kilogram", "kg", 1, "kilo"),
    _unit("mass", "tonne", "t", 1000, "ton", "metric ton", "metric tons", "tons"),
    _unit("mass", "ounce", "oz", _POUND / 16),
    _unit("mass", "pound", "lb", _POUND, "lbs"),
    _unit("mass", "stone", "st", 14 * _POUND, plural="stone"),
    _unit("mass", "short ton", "short ton", 2000 * _POUND, "US ton", "US tons"),
    _unit("mass", "long ton", "long ton", 2240 * _POUND, "imperial ton", "imperial tons"),
    _unit("volume", "milliliter", "mL", "0.000001", "ml", "millilitre"),
    _unit("volume", "centiliter", "cL", "0.00001", "cl", "centilitre"),
    _unit("volume", "deciliter", "dL", "0.0001", "dl", "decilitre"),
    _unit("volume", "liter", "L", "0.001", "l", "litre"),
    _unit(
        "volume",
        "cubic millimeter",
        "mm^3",
        Fraction(1, 10**9),
        "cubic millimetre",
        "cubic millimetres",
    ),
    _unit(
        "volume",
        "cubic centimeter",
        "cm^3",
        "0.000001",
        "cc",
        "cubic centimetre",
        "cubic centimetres",
    ),
    _unit("volume", "cubic meter", "m^3", 1, "cubic metre", "cubic metres"),
    _unit("volume", "gallon", "gal", _GALLON, "US gallon", "US gallons"),
    _unit("volume", "quart", "qt", _GALLON / 4),
    _unit("volume", "pint", "pt", _GALLON / 8),
    _unit("volume", "cup", "c", _GALLON / 16),
    _unit("volume", "fluid ounce", "fl oz", _GALLON / 128, "ounce", "ounces", "oz"),
    _unit("volume", "tablespoon", "tbsp", _GALLON / 256),
    _unit("volume", "teaspoon", "tsp", _GALLON / 768),
    _unit("volume", "imperial gallon", "imp gal", _IMPERIAL_GALLON, "UK gallon", "UK gallons"),
    _unit("volume", "imperial pint", "imp pt", _IMPERIAL_GALLON / 8, "UK pint", "UK pints"),
    _unit("time", "millisecond", "ms", "0.001", "msec"),
    _unit("time", "second", "s", 1, "sec", "secs"),
    _unit("time", "minute", "min", 60, "mins"),
    _unit("time", "hour", "h", 3600, "hr", "hrs"),
    _unit("time", "day", "d", 86400),
    _unit("time", "week", "wk", 7 * 86400),
    _unit("time", "month", "mo", _YEAR / 12),
    _unit("time", "year", "yr", _YEAR, "yrs"),
    _unit("time", "decade", "decade", 10 * _YEAR),
    _unit("time", "century", "century", 100 * _YEAR, plural="centuries"),
    _unit(
        "area", "square millimeter", "mm^2", "0.000001", "square millimetre", "square millimetres"
    ),
    _unit("area", "square centimeter", "cm^2", "0.0001", "square centimetre", "square centimetres"),
    _unit("area", "square meter", "m^2", 1, "square metre", "square metres"),
    _unit("area", "hectare", "ha", 10000),
    _unit("area", "square kilometer", "km^2", 10**6, "square kilometre", "square kilometres"),
    _unit("area", "square inch", "in^2", (_FOOT / 12) ** 2, "sq in", plural="square inches"),
    _unit("area", "square foot", "ft^2", _FOOT**2, "sq ft", plural="square feet"),
    _unit("area", "square yard", "yd^2", (3 * _FOOT) ** 2, "sq yd"),
    _unit("area", "acre", "ac", 43560 * _FOOT**2),
    _unit("area", "square mile", "mi^2", _MILE**2, "sq mi"),
    _unit("speed", "centimeter per second", "cm/s", "0.01", plural="centimeters per second"),
    _unit("speed", "meter per second", "m/s", 1, "mps", plural="meters per second"),
    _unit("speed", "meter per minute", "m/min", Fraction(1, 60), plural="meters per minute"),
    _unit(
        "speed",
        "kilometer per hour",
        "km/h",
        Fraction(1000, 3600),
        "kmh",
        "kph",
        plural="kilometers per hour",
    ),
    _unit("speed", "inch per second", "in/s", _FOOT / 12, plural="inches per second"),
    _unit("speed", "foot per second", "ft/s", _FOOT, "fps", plural="feet per second"),
    _unit("speed", "foot per minute", "ft/min", _FOOT / 60, plural="feet per minute"),
    _unit("speed", "mile per hour", "mph", _MILE / 3600, "mi/h", plural="miles per hour"),
    _unit("speed", "knot", "kn", Fraction(1852, 3600)),
    _unit("data", "bit", "bit", 1),
    _unit("data", "byte", "B", 8),
    _unit("data", "kilobyte", "kB", 8 * 10**3, "KB"),
    _unit("data", "megabyte", "MB", 8 * 10**6, "M"),
    _unit("data", "gigabyte", "GB", 8 * 10**9, "G"),
    _unit("data", "terabyte", "TB", 8 * 10**12),
    _unit("data", "kibibyte", "KiB", 8 * 2**10),
    _unit("data", "mebibyte", "MiB", 8 * 2**20),
    _unit("data", "gibibyte", "GiB", 8 * 2**30),
)
"""Where a word has several meanings, those of the guide's data: `ton` is the metric one, `ounce` is
mass or volume, `gallon` is the US one.
"""

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


def convert(value: Fraction, source: Unit, target: Unit) -> Fraction:
    """A value given in `source`, in `target`, exactly.

    Raises:
        DataError: they measure different things.
    """
    if source.quantity != target.quantity:
        raise DataError(
            f"{source.plural} measure {source.quantity} and {target.plural} {target.quantity}:"
            " there is no conversion. Use units of one kind."
        )
    return value * source.size / target.size


@lru_cache(maxsize=1 << 16)
def decimal_text(value: Fraction) -> str | None:
    """An exact decimal such as `0.3048`; None where its digits never end."""
    for places in range(25):
        if 10**places % value.denominator == 0:
            digits = f"{abs(value.numerator) * 10**places // value.denominator:0{places + 1}d}"
            sign = "-" if value < 0 else ""
            return f"{sign}{digits[:-places]}.{digits[-places:]}" if places else f"{sign}{digits}"
    return None


@lru_cache(maxsize=1 << 16)
def significant_digits(text: str) -> str:
    """The digits of a decimal without point, sign and the zeros at both ends: `37` for 0.037 and
    3700.
    """
    return re.sub(r"\D", "", text).strip("0")


@lru_cache(maxsize=1)
def _by_spelling() -> Mapping[str, tuple[Unit, ...]]:
    found: dict[str, tuple[Unit, ...]] = {}
    for unit in UNITS:
        for spelling in dict.fromkeys(unit.spellings):
            found[spelling] = (*found.get(spelling, ()), unit)
    return found


@lru_cache(maxsize=1)
def _by_lower_spelling() -> Mapping[str, tuple[Unit, ...]]:
    found: dict[str, tuple[Unit, ...]] = {}
    for spelling, units in _by_spelling().items():
        if len(spelling) > 2:
            found[spelling.lower()] = tuple(
                dict.fromkeys((*found.get(spelling.lower(), ()), *units))
            )
    return found
