"""A number within 5 % of the reference, both rounded to three places: a course's rule, to compare
with its figures. Too loose for training data.

The rule is |round(a, 3) - round(g, 3)| < 0.05 |round(g, 3)| (description of the UT Austin
homework's grader, read November 2026).
"""

from decimal import Decimal
from typing import Any

from brimful.verify.numbers import ARITHMETIC, compared, reference_number
from brimful.verify.verifier import Verdict, Verifier, VerifierExample, reference_text

_PLACES = Decimal("0.001")
_TOO_LARGE_TO_ROUND = 40
"""Numbers of so many digits before the point are left as they are; the difference is far below 5 %.
"""


def _agrees(value: Decimal, reference: Decimal) -> bool:
    near, right = _rounded(value), _rounded(reference)
    return ARITHMETIC.abs(ARITHMETIC.subtract(near, right)) < ARITHMETIC.multiply(
        Decimal("0.05"), ARITHMETIC.abs(right)
    )


def _rounded(value: Decimal) -> Decimal:
    if value.adjusted() > _TOO_LARGE_TO_ROUND:
        return value
    return ARITHMETIC.quantize(value, _PLACES)


def _verify(answer: str, reference: str) -> Verdict:
    return compared(answer, reference, _agrees)


def _check(reference: Any) -> None:
    if not _rounded(reference_number(reference_text(reference))):
        raise ValueError(
            f"{reference!r} is 0 when rounded to three places: no answer is within 5 % of that. Use"
            " the verifier number"
        )


VERIFIER = Verifier(
    "The final answer is within 5 % of the reference, both rounded to three places: for comparison"
    " only.",
    (
        VerifierExample("<answer>4920</answer>", "4695.971127187499", "correct"),
        VerifierExample("<answer>104.999</answer>", "100", "correct"),
        VerifierExample("<answer>105</answer>", "100", "wrong"),
        VerifierExample("<answer>0.1254</answer>", "0.125", "correct"),
        VerifierExample("<answer>-100</answer>", "100", "wrong"),
        VerifierExample("<answer>1e999</answer>", "100", "wrong"),
        VerifierExample("<answer>1e-999</answer>", "100", "wrong"),
        VerifierExample("about 100", "100", "unparsed"),
        VerifierExample("<answer>inf</answer>", "100", "unparsed"),
    ),
    _check,
    verify=_verify,
)
