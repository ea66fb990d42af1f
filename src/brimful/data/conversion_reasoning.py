"""Worked reasoning for unit conversions: routes through facts of training, each multiplication or division whole or in parts.

Every equation is exact. A step looks like `1 hour = 60 minutes. 37 x 60 = 2220.`
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product

from brimful.data.conversion_pairs import training_pairs
from brimful.data.units import Unit, decimal_text, significant_digits, units_of

MOST_DIGITS = 5
"""Significant digits of any number."""
_LARGEST = 10**6


@dataclass(frozen=True)
class Path:
    """One way to an answer.

    Attributes:
        name: direct, base (through the SI unit, or bits), or through another unit.
        in_parts: Whether a number was taken apart for its multiplication or division.
        sentences: Facts and equations, in order.
        operands: What was multiplied or divided on the way.
    """

    name: str
    in_parts: bool
    sentences: tuple[str, ...]
    operands: tuple[Fraction, ...]


@dataclass(frozen=True)
class Working:
    """Equations that make up one multiplication or division, and the numbers they multiply or divide."""

    equations: tuple[str, ...]
    operands: tuple[Fraction, ...]


def number(value: Fraction) -> str | None:
    """The value as a decimal of few digits; None where it has none."""
    text = decimal_text(value) if 0 < value <= _LARGEST else None
    return text if text is not None and len(significant_digits(text)) <= MOST_DIGITS else None


def paths(value: Fraction, source: Unit, target: Unit) -> Iterator[Path]:
    """Every way to convert a value by facts of training: straight, or through one other unit, which is the SI unit or lies between the two.

    There is none where numbers get long.
    """
    least, most = sorted((source.size, target.size))
    for middle in (None, *units_of(source.quantity)):
        if middle in (source, target) or (middle is not None and not least < middle.size < most and middle.size != 1):
            continue
        route = (source, target) if middle is None else (source, middle, target)
        hops = list(pairwise(route))
        if not all(frozenset({first.name, second.name}) in training_pairs() for first, second in hops):
            continue
        name = "direct" if middle is None else "base" if middle.size == 1 else "through"
        yield from _paths_along(name, value, hops)


def fact(first: Unit, second: Unit) -> str:
    """`1 hour = 60 minutes`, the larger unit first whatever the order."""
    pair = training_pairs()[frozenset({first.name, second.name})]
    return f"1 {pair.large.name} = {decimal_text(pair.factor)} {pair.small.plural}"


def _paths_along(name: str, value: Fraction, hops: list[tuple[Unit, Unit]]) -> Iterator[Path]:
    stages: list[list[Working]] = []
    for first, second in hops:
        pair = training_pairs()[frozenset({first.name, second.name})]
        divide = first == pair.small
        stages.append(workings(value, pair.factor, divide=divide))
        value = value / pair.factor if divide else value * pair.factor
    facts = [fact(first, second) for first, second in hops]
    for chosen in product(*stages):
        sentences = [f"{sentence}." for stated, working in zip(facts, chosen, strict=True) for sentence in (stated, *working.equations)]
        operands = tuple(operand for working in chosen for operand in working.operands)
        yield Path(name, any(len(working.equations) > 1 for working in chosen), tuple(sentences), operands)


def workings(value: Fraction, factor: Fraction, *, divide: bool) -> list[Working]:
    """Ways to write a multiplication or division: as one equation, and in parts where that helps; none where a number gets long."""
    result = value / factor if divide else value * factor
    sign = "/" if divide else "x"
    texts = (number(value), decimal_text(factor), number(result))
    if None in texts:
        return []
    ways = [Working((f"{texts[0]} {sign} {texts[1]} = {texts[2]}",), (value,))]
    parts = _parts(result) if divide else _parts(value)
    if parts and significant_digits(decimal_text(factor) or "") != "1":
        products = (parts[0] * factor, parts[1] * factor)
        befores, afters = (products, parts) if divide else (parts, products)
        lines = [f"{number(before)} {sign} {texts[1]} = {number(after)}" for before, after in zip(befores, afters, strict=True)]
        ways.append(Working((*lines, f"{number(afters[0])} + {number(afters[1])} = {texts[2]}"), befores))
    return ways


def _parts(value: Fraction) -> tuple[Fraction, Fraction] | None:
    """30 and 7 for 37, 3 and 0.7 for 3.7; None for a number that has not two digits besides zeros."""
    text = decimal_text(value) or ""
    digits = [(place, digit) for place, digit in enumerate(text) if digit not in "0."]
    if len(digits) != 2:
        return None
    place, digit = digits[1]
    small = Fraction("".join(digit if at == place else "." if mark == "." else "0" for at, mark in enumerate(text)))
    return value - small, small
