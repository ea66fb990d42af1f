"""The form of an answer, whatever its result: it marks one result, and ends there."""

from typing import Any

from brimful.verify.answers import find_final_answer
from brimful.verify.verifier import Verdict, Verifier, VerifierExample, reference_text

_OPEN, _CLOSE = "<answer>", "</answer>"


def _verify(answer: str, reference: str) -> Verdict:
    final, text = find_final_answer(answer), answer.strip().lower()
    if _OPEN not in text or final.text is None:
        return Verdict.unparsed(final.problem or f"no {_OPEN}")
    is_alone = text.count(_OPEN) == text.count(_CLOSE) == 1
    return Verdict.judged(
        final.text,
        final.text,
        is_correct=is_alone and text.endswith(_CLOSE),
        otherwise="marked twice, or not at the end",
    )


def _check(reference: Any) -> None:
    """None is looked at, but it stands for a verifier beside this one."""
    if not reference_text(reference).strip():
        raise ValueError("a reference that is empty says nothing")


VERIFIER = Verifier(
    "The answer marks one result, <answer>...</answer>, and ends with it. Right or not: beside"
    " another verifier.",
    (
        VerifierExample("2 h = 120 min <answer>120</answer>", "1", "correct"),
        VerifierExample("<Answer>120</Answer>\n", "1", "correct"),
        VerifierExample("<answer>120</answer> as I said", "1", "wrong"),
        VerifierExample("<answer>1</answer> or <answer>2</answer>", "1", "wrong"),
        VerifierExample("<answer>1</answer></answer>", "1", "wrong"),
        VerifierExample("<answer></answer>", "1", "unparsed"),
        VerifierExample("<answer>120", "1", "unparsed"),
        VerifierExample("#### 120", "1", "unparsed"),
        VerifierExample("120", "1", "unparsed"),
        VerifierExample("", "1", "unparsed"),
    ),
    _check,
    verify=_verify,
)
