r"""A mathematical expression as the result, equal in meaning to the reference: \frac{1}{2} and 0.5,
(x+1)^2 and x^2+2x+1. Needs math-verify.
"""

import re
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.verify.answers import NO_MARK, FinalAnswer, find_final_answer
from brimful.verify.math_process import MathProcess
from brimful.verify.numbers import number_in
from brimful.verify.verifier import Verdict, Verifier, VerifierExample, reference_text

if find_spec("math_verify") is None:
    raise RequestError(
        f"the verifier math needs math-verify, which is not installed. {how_to_install('math')}"
    )

_MAX_CHARACTERS = 300
"""Most characters of an expression; longer ones are not read."""
_WORDS = re.compile(r"\W*(?:nan|inf|infinity)\W*|(?=.*[a-z]{3})[a-z]+(?: [a-z]+)+", re.IGNORECASE)
"""What math-verify would take for a product of variables."""


@lru_cache(maxsize=1)
def _process() -> MathProcess:
    return MathProcess()


def _verify(answer: str, reference: str) -> Verdict:
    final = _final(answer)
    if final.text is None:
        return Verdict.unparsed(final.problem)
    text = _bare(final.text)
    if _WORDS.fullmatch(text) or _says_two_things(text):
        return Verdict.unparsed("not read as mathematics")
    found = _process().compare(text, _bare(_final(reference).text or reference))
    if found == "reference unread":
        raise ValueError(f"{reference[:80]!r} is not read as mathematics")
    if found in {"answer unread", "ended"}:
        return Verdict.unparsed("took too long" if found == "ended" else "not read as mathematics")
    return Verdict.judged(text, final.text, is_correct=found == "same", otherwise="another value")


def _says_two_things(text: str) -> bool:
    """`x = 2, x = 3` and `5 = 3`: math-verify would take the last right side."""
    left, sign, _ = text.partition("=")
    return text.count("=") > 1 or (bool(sign) and number_in(left).value is not None)


def _check(reference: Any) -> None:
    text = reference_text(reference)
    expression = _bare(_final(text).text or text)
    if len(expression) > _MAX_CHARACTERS:
        raise ValueError(
            f"{text[:80]!r}... has {len(expression):,} characters; an expression has at most"
            f" {_MAX_CHARACTERS}"
        )
    if _WORDS.fullmatch(expression) or _process().compare(expression, expression) != "same":
        raise ValueError(
            f"{text[:80]!r} is not read as mathematics; for words use the verifier exact"
        )


def _final(answer: str) -> FinalAnswer:
    """The last mark, or the whole answer where nothing is marked and it is one number, or one
    formula in dollars.
    """
    final, whole = find_final_answer(answer), answer.strip()
    if (
        final.problem == NO_MARK
        and len(whole) <= _MAX_CHARACTERS
        and (_is_formula(whole) or number_in(whole).value is not None)
    ):
        final = FinalAnswer(whole)
    if len(final.text or "") > _MAX_CHARACTERS:
        return FinalAnswer(None, "final answer too long")
    return final


def _is_formula(text: str) -> bool:
    return len(text) > 2 and text[0] == text[-1] == "$" and "$" not in text.strip("$")


def _bare(text: str) -> str:
    """Return a formula without the dollars or `\\(`, `\\)` around it, and a full stop behind."""
    bare = text.strip().removesuffix(".").strip()
    if _is_formula(bare):
        return bare.strip("$").strip()
    return bare.removeprefix("\\(").removesuffix("\\)").strip()


VERIFIER = Verifier(
    "The final answer equals the reference as mathematics (math-verify).",
    (
        VerifierExample("\\boxed{\\frac{1}{2}}", "0.5", "correct"),
        VerifierExample("\\boxed{x = 3}", "3", "correct"),
        VerifierExample("\\boxed{5 = 3}", "3", "unparsed"),
        VerifierExample("\\boxed{x = 2, x = 3}", "3", "unparsed"),
        VerifierExample("So <answer>$x^2 + 2x + 1$</answer>", "(x+1)^2", "correct"),
        VerifierExample("The answer is $\\{2, 1\\}$.", "\\{1, 2\\}", "correct"),
        VerifierExample("\\boxed{x = 3}", "3", "correct"),
        VerifierExample("$\\sqrt{8}$", "2\\sqrt{2}", "correct"),
        VerifierExample("\\boxed{(1, 2)}", "(1, 2]", "wrong"),
        VerifierExample("\\boxed{3.14}", "\\pi", "wrong"),
        VerifierExample("\\boxed{10^{400}}", "1", "wrong"),
        VerifierExample("\\boxed{nan}", "0", "unparsed"),
        VerifierExample("\\boxed{no idea}", "0", "unparsed"),
        VerifierExample("\\boxed{\\frac{1}{}}", "0", "unparsed"),
        VerifierExample("It is one half", "\\frac{1}{2}", "unparsed"),
        VerifierExample("\\boxed{\\frac{1}{2}", "\\frac{1}{2}", "unparsed"),
        VerifierExample("\\boxed{}", "0", "unparsed"),
    ),
    _check,
    verify=_verify,
)
