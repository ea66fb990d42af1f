"""Many answers judged at once: by a pure verifier here, programs in the sandbox."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from brimful.base.errors import RequestError
from brimful.verify.sandbox import ProgramResult, Sandbox
from brimful.verify.verifier import Verdict, Verifier, reference_text


def judge(
    verifier: Verifier,
    answers: Sequence[str],
    references: Sequence[Any],
    sandbox: Sandbox | None = None,
) -> list[Verdict | None]:
    """A verdict for every answer, in order.

    Args:
        verifier: See `load_verifier`; its `check` has accepted the references.
        answers: Answers as the model wrote them.
        references: Texts, or rows for a verifier that needs the sandbox. One for each answer.
        sandbox: Runs programs, several at a time.

    Returns:
        Verdicts; None where the machine was too busy to judge a program, so that nothing is known
        about the answer: neither score it nor keep it.

    Raises:
        RequestError: The verifier needs a sandbox and there is none.
    """
    if verifier.verify is not None:
        return [
            verifier.verify(answer, reference_text(reference))
            for answer, reference in zip(answers, references, strict=True)
        ]
    if verifier.judge_all is not None:
        return [*verifier.judge_all(answers, references)]
    if sandbox is None or verifier.program is None:
        raise RequestError(
            "this verifier judges answers by running them as programs, which needs the sandbox; see"
            " docs/sandbox.md"
        )
    programs = [
        verifier.program(answer, row) for answer, row in zip(answers, references, strict=True)
    ]
    results = iter(sandbox.run_all([program for program in programs if program is not None]))
    verdicts: list[Verdict | None] = []
    for program in programs:
        if program is None:
            verdicts.append(Verdict.unparsed("no Python"))
        else:
            verdicts.append(_verdict(verifier, program.code, next(results)))
    return verdicts


def _verdict(verifier: Verifier, code: str, result: ProgramResult) -> Verdict | None:
    if result.overloaded:
        return None
    if verifier.verdict is not None:
        return verifier.verdict(result)
    kind = result.detail.split(":")[0].strip()
    detail = f"error: {kind}" if result.status == "error" and kind else result.status
    verdict = Verdict.judged(code, code, is_correct=result.status == "passed", otherwise=detail)
    return replace(verdict, games=result.detail) if result.games else verdict
