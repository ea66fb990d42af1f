"""A number as the result, right within 0.1 % of the reference: the default for training data."""

from decimal import Decimal
from typing import Any

from brimful.verify.numbers import compared, is_close, reference_number
from brimful.verify.verifier import Verdict, Verifier, VerifierExample, reference_text

TOLERANCE = Decimal("0.001")
"""Tolerance as a share of the reference: what rounding to four digits needs. A reference of 0 is
met within 1e-9.
"""


def _verify(answer: str, reference: str) -> Verdict:
    return compared(answer, reference, lambda value, right: is_close(value, right, TOLERANCE))


def _check(reference: Any) -> None:
    reference_number(reference_text(reference))


VERIFIER = Verifier(
    "The final answer is the reference's number within 0.1 %.",
    (
        VerifierExample("2 h = 2 x 60 min = <answer>120</answer>", "120.0", "correct"),
        VerifierExample("She makes 9 * 2 = 18.\n#### 18", "Janet sells 9.\n#### 18", "correct"),
        VerifierExample("So $x = \\boxed{\\frac{1}{3}}$.", "0.3333", "correct"),
        VerifierExample("The answer is $1,234.50.", "1234.5", "correct"),
        VerifierExample("42", "42", "correct"),
        VerifierExample("<answer>−1.2 × 10^3 metres</answer>", "-1200", "correct"),
        VerifierExample("<answer>1001</answer>", "1000", "correct"),
        VerifierExample("<answer>1001.001</answer>", "1000", "wrong"),
        VerifierExample("<answer>0.0000001</answer>", "0", "wrong"),
        VerifierExample("<answer>50%</answer>", "0.5", "wrong"),
        VerifierExample("First <answer>1</answer>, rather <answer>2</answer>", "1", "wrong"),
        VerifierExample("<answer>1e999</answer>", "5", "wrong"),
        VerifierExample("It takes 120 minutes.", "120", "unparsed"),
        VerifierExample("<answer>120", "120", "unparsed"),
        VerifierExample("<answer></answer>", "0", "unparsed"),
        VerifierExample("<answer>120 or 130</answer>", "120", "unparsed"),
        VerifierExample("<answer>5 million</answer>", "5", "unparsed"),
        VerifierExample("<answer>nan</answer>", "0", "unparsed"),
        VerifierExample("<answer>0x10</answer>", "16", "unparsed"),
        VerifierExample("<answer>٣</answer>", "3", "unparsed"),
    ),
    _check,
    verify=_verify,
)
