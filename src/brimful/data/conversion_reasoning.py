"""Worked reasoning for unit conversions: routes through facts of training, each multiplication or
division in steps that are easy.

Every equation is exact. `37 hours in minutes` is `1 hour = 60 minutes. 30 x 60 = 1800. 7 x 60 =
420. 1800 + 420 = 2220.`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from brimful.data.conversion_pairs import HUBS, facts
from brimful.data.units import Unit, decimal_text, significant_digits, units_of

MOST_DIGITS = 5
"""Significant digits of any number."""
_LARGEST = 10**7


@dataclass(frozen=True)
class Path:
    """One way to an answer.

    Attributes:
        name: direct, or through another unit.
        sentences: Facts and equations, in order.
        operands: What was multiplied or divided on the way.
    """

    name: str
    sentences: tuple[str, ...]
    operands: tuple[Fraction, ...]


@dataclass(frozen=True)
class Working:
    """Equations that make up one multiplication or division, and the numbers they multiply or
    divide.
    """

    equations: tuple[str, ...]
    operands: tuple[Fraction, ...]


@lru_cache(maxsize=1 << 16)
def number(value: Fraction) -> str | None:
    """The value as a decimal of few digits; None where it has none."""
    if not 0 < value <= _LARGEST:
        return None
    text = decimal_text(value)
    if text is None or len(significant_digits(text)) > MOST_DIGITS:
        return None
    return text


def paths(value: Fraction, source: Unit, target: Unit) -> Iterator[Path]:
    """Every way to convert a value by facts of training: directly, or through a hub. There is none
    where numbers get long.
    """
    for name, hops in routes(source, target):
        path = _path_along(name, value, hops)
        if path is not None:
            yield path


def routes(source: Unit, target: Unit) -> Iterator[tuple[str, list[tuple[Unit, Unit]]]]:
    """Ways from a unit to another by facts of training, each as its hops: directly, or through a
    hub.
    """
    hubs = [unit for unit in units_of(source.quantity) if unit.symbol in HUBS]
    through = [(source, hub, target) for hub in hubs if hub not in (source, target)]
    for name, units in [("direct", (source, target)), *(("through", units) for units in through)]:
        hops = list(pairwise(units))
        if all(frozenset({first.name, second.name}) in facts() for first, second in hops):
            yield name, hops


def fact(first: Unit, second: Unit) -> str:
    """`1 hour = 60 minutes`, the larger unit first whatever the order."""
    pair = facts()[frozenset({first.name, second.name})]
    return f"1 {pair.large.name} = {decimal_text(pair.factor)} {pair.small.plural}"


def _path_along(name: str, value: Fraction, hops: list[tuple[Unit, Unit]]) -> Path | None:
    sentences: list[str] = []
    operands: list[Fraction] = []
    for first, second in hops:
        pair = facts()[frozenset({first.name, second.name})]
        step = working(value, pair.factor, divide=first == pair.small)
        if step is None:
            return None
        sentences += [f"{sentence}." for sentence in (fact(first, second), *step.equations)]
        operands += step.operands
        value = value * first.size / second.size
    return Path(name, tuple(sentences), tuple(operands))


@lru_cache(maxsize=1 << 16)
def working(value: Fraction, factor: Fraction, *, divide: bool) -> Working | None:
    """A multiplication or division: one equation where a single digit or a power of ten makes it
    easy, else two easy ones and their sum.

    None where it takes more than two, or a number gets long.
    """
    if divide:
        sign, result = "/", value / factor
        easy = result
    else:
        sign, result = "x", value * factor
        easy = value
    texts = (number(value), decimal_text(factor), number(result))
    if None in texts:
        return None
    if (
        significant_digits(texts[1] or "") == "1"
        or len(significant_digits(decimal_text(easy) or "")) == 1
    ):
        return Working((f"{texts[0]} {sign} {texts[1]} = {texts[2]}",), (value,))
    parts = _parts(easy)
    if parts is None:
        return None
    befores, afters = parts, (parts[0] * factor, parts[1] * factor)
    if divide:
        befores, afters = afters, befores
    lines = [
        f"{number(before)} {sign} {texts[1]} = {number(after)}"
        for before, after in zip(befores, afters, strict=True)
    ]
    return Working((*lines, f"{number(afters[0])} + {number(afters[1])} = {texts[2]}"), befores)


def _parts(value: Fraction) -> tuple[Fraction, Fraction] | None:
    """30 and 7 for 37, 3 and 0.7 for 3.7; None for a number that has not two digits besides
    zeros.
    """
    text = decimal_text(value) or ""
    places = [place for place, digit in enumerate(text) if digit not in "0."]
    if len(places) != 2:
        return None
    first = places[0]
    small = Fraction(f"{text[:first]}0{text[first + 1 :]}")
    return value - small, small
