"""A number with a unit, right within 0.1 % of the reference in whatever unit of the same kind: 2 h
are 120 min.
"""

from decimal import Decimal
from typing import Any

from brimful.data.units import UNITS, Unit, units_spelled
from brimful.verify.numbers import ARITHMETIC, is_close, plain_value, read_number
from brimful.verify.verifier import Verdict, Verifier, VerifierExample, reference_text

TOLERANCE = Decimal("0.001")
"""Tolerance as a share of the reference. A reference of 0 is met within 1e-9 of its unit."""


def _verify(answer: str, reference: str) -> Verdict:
    right, right_units = _reference(reference)
    read = read_number(answer)
    units = units_spelled(read.unit)
    if read.value is None or not units:
        no_unit = "unknown unit" if read.unit else "no unit"
        return Verdict.unparsed(read.problem or no_unit)
    pairs = [
        (unit, other) for unit in units for other in right_units if unit.quantity == other.quantity
    ]
    is_right = any(
        is_close(_converted(read.value, unit, other), right, TOLERANCE) for unit, other in pairs
    )
    value = _normal_form(read.value, pairs[0][0] if pairs else units[0])
    otherwise = "another value" if pairs else "another kind of quantity"
    return Verdict.judged(value, read.text, is_correct=is_right, otherwise=otherwise)


def _check(reference: Any) -> None:
    _reference(reference_text(reference))


def _reference(text: str) -> tuple[Decimal, tuple[Unit, ...]]:
    """Its number and the units it may mean; ValueError where one is missing."""
    read = read_number(text)
    if read.value is None:
        raise ValueError(f"{text[:80]!r} is not one number with a unit ({read.problem})")
    units = units_spelled(read.unit)
    if not units:
        raise ValueError(
            f"{text[:80]!r} has no unit that brimful knows; brimful/data/units.toml lists them"
        )
    return read.value, units


def _converted(value: Decimal, unit: Unit, other: Unit) -> Decimal:
    """A value in `unit` as one in `other`."""
    ratio = unit.size / other.size
    return ARITHMETIC.divide(
        ARITHMETIC.multiply(value, Decimal(ratio.numerator)), Decimal(ratio.denominator)
    )


def _normal_form(value: Decimal, unit: Unit) -> str:
    """Return a quantity in the unit of size 1, with twelve digits: equal quantities are equal
    texts.
    """
    base = next(other for other in UNITS if other.quantity == unit.quantity and other.size == 1)
    number = plain_value(_converted(value, unit, base))
    digits = f"{number:.12g}" if isinstance(number, float) else str(number)
    return f"{digits} {base.symbol}"


VERIFIER = Verifier(
    "The final answer is the reference's quantity within 0.1 %, in any unit of the same kind.",
    (
        VerifierExample("<answer>2 h</answer>", "120 min", "correct"),
        VerifierExample("<answer>120 Minutes</answer>", "2 hours", "correct"),
        VerifierExample("The answer is 1.609 km.", "1 mile", "correct"),
        VerifierExample("\\boxed{3\\,\\text{m}^2}", "3 square meters", "correct"),
        VerifierExample("10 m/s", "36 km/h", "correct"),
        VerifierExample("<answer>8 oz</answer>", "1 cup", "correct"),
        VerifierExample("<answer>1 kB</answer>", "1 KiB", "wrong"),
        VerifierExample("<answer>120 kg</answer>", "120 min", "wrong"),
        VerifierExample("<answer>120</answer>", "120 min", "unparsed"),
        VerifierExample("<answer>5 smoots</answer>", "5 m", "unparsed"),
        VerifierExample("<answer>2 h 30 min</answer>", "150 min", "unparsed"),
        VerifierExample("<answer>h</answer>", "1 h", "unparsed"),
    ),
    _check,
    verify=_verify,
)
