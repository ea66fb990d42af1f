"""A pattern as the reference: the result must match it in full."""

from typing import Any

import regex  # type: ignore[import-untyped]

from brimful.verify.answers import final_or_whole
from brimful.verify.verifier import Verdict, Verifier, VerifierExample, reference_text

TIMEOUT_S = 0.5
"""CPU time for one match: a pattern such as (a|ab)*c can take longer than anyone waits. Python's
own `re` could not be stopped.
"""


def _verify(answer: str, reference: str) -> Verdict:
    final = final_or_whole(answer)
    if final.text is None:
        return Verdict.unparsed(final.problem)
    try:
        matched = _pattern(reference).fullmatch(final.text, timeout=TIMEOUT_S)
    except TimeoutError:
        return Verdict.unparsed("the pattern takes too long")
    return Verdict.judged(final.text, final.text, is_correct=bool(matched), otherwise="no match")


def _check(reference: Any) -> None:
    _pattern(reference_text(reference))


def _pattern(reference: str) -> Any:
    if not reference.strip():
        raise ValueError("an empty pattern matches no answer")
    try:
        return regex.compile(reference)
    except regex.error as error:
        raise ValueError(f"{reference[:80]!r} is not a regular expression: {error}") from None


VERIFIER = Verifier(
    "The final answer, or the whole answer without one, matches the reference, a regular"
    " expression, in full.",
    (
        VerifierExample("<answer>2024-01-31</answer>", r"\d{4}-\d\d-\d\d", "correct"),
        VerifierExample("  yes\n", "yes|no", "correct"),
        VerifierExample("The answer is Yes.", "(?i)yes", "correct"),
        VerifierExample("\\boxed{{1}}", r"\{1\}", "correct"),
        VerifierExample("<answer>yes and no</answer>", "yes|no", "wrong"),
        VerifierExample("yes\nno", "yes.*", "wrong"),
        VerifierExample("yes\nno", "(?s)yes.*", "correct"),
        VerifierExample("", ".*", "unparsed"),
        VerifierExample("<answer> </answer>", ".*", "unparsed"),
        VerifierExample("<answer>yes", "yes", "unparsed"),
    ),
    _check,
    verify=_verify,
)
