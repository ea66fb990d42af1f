"""What a verifier is: from an answer and a reference to a verdict. Verifiers are the files of
`kinds/`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from brimful.base.discover import module_in, names_in
from brimful.base.types import Json
from brimful.verify.sandbox import Program, ProgramResult

KINDS_PACKAGE = "brimful.verify.kinds"

VerdictStatus = Literal["correct", "wrong", "unparsed"]
"""`unparsed`: the answer gives no result that could be right or wrong. It counts neither as
answered nor as a value of 0.
"""


@dataclass(frozen=True)
class Verdict:
    """The result that an answer gives, and whether it is right.

    Attributes:
        value: The result: a number, or text in a normal form; None where it is unparsed.
        extracted: The part of the answer that was read; empty where it is unparsed.
        status: One of `VerdictStatus`.
        detail: Why, in a few words, as a kind to count ("no final answer", "out of time"); empty if
            it is correct.
        worth: What a file of one's own says that the answer is worth, not a number where it failed;
            None: 1 if it is correct, else 0.
        games: How a program tried to pass without being right; empty if it did not
            (`ProgramResult.games`).
    """

    value: float | str | None
    extracted: str
    status: VerdictStatus
    detail: str = ""
    worth: float | None = None
    games: str = ""

    @classmethod
    def unparsed(cls, detail: str) -> Self:
        """The verdict on an answer that gives no result, and why."""
        return cls(None, "", "unparsed", detail)

    @classmethod
    def judged(
        cls, value: float | str, extracted: str, *, is_correct: bool, otherwise: str
    ) -> Self:
        """The verdict on a result that was read; `otherwise` is the detail of a wrong one."""
        if is_correct:
            return cls(value, extracted, "correct")
        return cls(value, extracted, "wrong", otherwise)

    @property
    def is_correct(self) -> bool:
        return self.status == "correct"


@dataclass(frozen=True)
class VerifierExample:
    """An answer, a reference and the status that follows; each is a test."""

    answer: str
    reference: Any
    status: VerdictStatus


@dataclass(frozen=True)
class Verifier:
    """A way to tell right answers from wrong ones, found by the name of its file. Exactly one of
    `verify`, `program` and `judge_all`.

    Attributes:
        description: One line.
        examples: Answers and what is found of them, the odd ones too.
        check: Raises ValueError, with the reason, for a reference that nothing could be held
            against.
        verify: Pure: answer and reference (text) to verdict. Never raises for what a model wrote.
        program: The answer and the problem's row (columns) as a program with tests, for the sandbox
            to judge; None as a program: unparsed.
        program_of_code: The same of code that a task has taken out of the answer in its own way,
            whatever it is. Beside `program`.
        verdict: What a program's result means, where passing is not being right.
        judge_all: Answers and the problems' rows to verdicts, with a worth. Never raises.
    """

    description: str
    examples: tuple[VerifierExample, ...]
    check: Callable[[Any], None]
    verify: Callable[[str, str], Verdict] | None = None
    program: Callable[[str, Json], Program | None] | None = None
    program_of_code: Callable[[str, Json], Program] | None = None
    verdict: Callable[[ProgramResult], Verdict] | None = None
    judge_all: Callable[[Sequence[str], Sequence[Json]], list[Verdict]] | None = None

    @property
    def needs_sandbox(self) -> bool:
        """Whether answers are programs to run, and references whole rows."""
        return self.program is not None


def reference_text(reference: Any) -> str:
    """A reference as a pure verifier takes it.

    Raises:
        ValueError: It is neither text nor a number.
    """
    if not isinstance(reference, str | int | float) or isinstance(reference, bool):
        # As `check` does for every reference.
        raise ValueError(f"a reference is a text or a number, not {type(reference).__name__}")  # noqa: TRY004
    return str(reference)


def verifier_names() -> list[str]:
    """The verifiers there are."""
    return names_in(KINDS_PACKAGE, ".py")


def load_verifier(name: str) -> Verifier:
    """The verifier of a name.

    Raises:
        RequestError: there is none (names the nearest), or what it needs is not installed.
    """
    verifier: Verifier = module_in(KINDS_PACKAGE, name, "verifier").VERIFIER
    return verifier
