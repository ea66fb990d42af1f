"""Short reasoning for unit conversions, for models that know sums already: a fact and one to three
equations, where `conversion_reasoning` spells sums for a model that learns them here.

`37 hours in minutes` is one of `1 hour = 60 minutes. 37 x 60 = 2220.`, `1 hour = 60 minutes. 37 x 6
= 222. 222 x 10 = 2220.` and `1 hour = 60 minutes. 30 x 60 = 1800. 7 x 60 = 420. 1800 + 420 =
2220.`: several ways of solving, so that a model that samples answers finds more than one.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from itertools import product

from brimful.data.conversion_pairs import facts
from brimful.data.conversion_reasoning import Path, Working, fact, number, routes, working
from brimful.data.units import Unit, decimal_text, significant_digits

_EQUATION = re.compile(r"([\d.]+) (.) ([\d.]+) = ([\d.]*\d)\.")
_LONGEST = 5
"""Digits of a number, its zeros included."""


def short_paths(value: Fraction, source: Unit, target: Unit) -> Iterator[Path]:
    """Every short way to convert a value by facts of training; there is none where numbers get
    long.
    """
    for _, hops in routes(source, target):
        befores = [value * source.size / first.size for first, _ in hops]
        ways = [_of_hop(before, *hop) for before, hop in zip(befores, hops, strict=True)]
        for workings in product(*ways):
            sentences = [
                f"{sentence}."
                for hop, (_, each) in zip(hops, workings, strict=True)
                for sentence in (fact(*hop), *each.equations)
            ]
            name = " then ".join(name for name, _ in workings)
            operands = tuple(operand for _, each in workings for operand in each.operands)
            yield Path(name, tuple(sentences), operands)


def needs_small_numbers_only(path: Path) -> bool:
    """Return whether each equation of a way is a product or quotient that a small model can do: one
    side has a single digit but for zeros, the other one or two, and nothing is a decimal or longer
    than `_LONGEST` digits.
    """
    equations = [
        found for each in path.sentences if (found := _EQUATION.fullmatch(each)) is not None
    ]
    return bool(equations) and all(map(_is_small, equations))


def _is_small(equation: re.Match[str]) -> bool:
    left, sign, right, result = equation.groups()
    digits = [len(significant_digits(text)) for text in (left, right)]
    if sign == "/" and digits[1] > 1:
        return False
    is_short = all(text.isdecimal() and len(text) <= _LONGEST for text in (left, right, result))
    return is_short and sign in "x/" and min(digits) == 1 and max(digits) <= 2


def _of_hop(value: Fraction, first: Unit, second: Unit) -> list[tuple[str, Working]]:
    pair = facts()[frozenset({first.name, second.name})]
    return list(_workings(value, pair.factor, divide=first == pair.small))


def _workings(value: Fraction, factor: Fraction, *, divide: bool) -> Iterator[tuple[str, Working]]:
    """The ways of one multiplication or division, by name: at once, by the factor's digits and its
    power of ten, by the value's digits.
    """
    sign = "/" if divide else "x"
    at_once = _equation(value, sign, factor)
    if at_once is None:
        return
    yield "at once", Working((at_once,), (value,))
    zeros = _zeros(factor)
    if zeros > 1 and factor != zeros:
        between = value / (factor / zeros) if divide else value * (factor / zeros)
        steps = (_equation(value, sign, factor / zeros), _equation(between, sign, zeros))
        if steps[0] and steps[1]:
            yield "by tens", Working((steps[0], steps[1]), (value, between))
    by_digits = working(value, factor, divide=divide)
    if by_digits is not None and len(by_digits.equations) > 1:
        yield "by digits", by_digits


def _equation(value: Fraction, sign: str, factor: Fraction) -> str | None:
    result = value / factor if sign == "/" else value * factor
    texts = (number(value), decimal_text(factor), number(result))
    return None if None in texts else f"{texts[0]} {sign} {texts[1]} = {texts[2]}"


def _zeros(factor: Fraction) -> Fraction:
    """10 for 60 and 100 for 3600; 1 for a factor that does not end in zeros."""
    text = decimal_text(factor) or ""
    if factor.denominator != 1 or not significant_digits(text):
        return Fraction(1)
    return Fraction(10) ** (len(text) - len(text.rstrip("0")))
