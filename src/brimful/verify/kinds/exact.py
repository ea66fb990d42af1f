"""A text as the result, equal to the reference but for case, spaces, and a full stop or quotes
around it.
"""

import unicodedata
from typing import Any

from brimful.verify.answers import MAX_FINAL_CHARACTERS, final_or_whole
from brimful.verify.verifier import Verdict, Verifier, VerifierExample, reference_text

_AROUND = " \"'`*$“”‘’"


def normal_form(text: str) -> str:
    """Unicode's compatibility form in lower case (casefold), single spaces, no quotes or emphasis
    around, no full stop.
    """
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.strip(_AROUND).rstrip(".").strip(_AROUND)


def _verify(answer: str, reference: str) -> Verdict:
    final = final_or_whole(answer)
    value = normal_form(final.text or "")
    if not value:
        return Verdict.unparsed(final.problem or "empty final answer")
    is_right = value == normal_form(reference)
    return Verdict.judged(value, final.text or "", is_correct=is_right, otherwise="another text")


def _check(reference: Any) -> None:
    text = reference_text(reference)
    if not normal_form(text):
        raise ValueError(f"{text[:80]!r} is empty in normal form")
    if len(text) > MAX_FINAL_CHARACTERS:
        raise ValueError(
            f"{text[:80]!r}... has {len(text):,} characters; a final answer has at most"
            f" {MAX_FINAL_CHARACTERS:,}"
        )


VERIFIER = Verifier(
    "The final answer, or the whole answer without one, is the reference's text but for case and"
    " spaces.",
    (
        VerifierExample("<answer>Paris</answer>", "paris", "correct"),
        VerifierExample("The answer is Ho  Chi\tMinh City.", "Ho Chi Minh City", "correct"),
        VerifierExample(' "Yes." ', "yes", "correct"),
        VerifierExample("\\boxed{B}", "B", "correct"),
        VerifierExample("<answer>ﬁne</answer>", "fine", "correct"),
        VerifierExample("<answer>Paris, France</answer>", "Paris", "wrong"),
        VerifierExample("I think it is Paris", "Paris", "wrong"),
        VerifierExample("", "Paris", "unparsed"),
        VerifierExample("Paris <answer>", "Paris", "unparsed"),
        VerifierExample("<answer>...</answer>", "no", "unparsed"),
    ),
    _check,
    verify=_verify,
)
