"""The values of this stage: a question that is asked, and one verified sample of an answer to it,
as a line of samples.jsonl.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

from brimful.base.errors import RunFolderError
from brimful.base.rundir import finite_record
from brimful.base.types import Json, JsonDict
from brimful.data.formats import Prompt
from brimful.generation.requests import Finish
from brimful.verify.verifier import VerdictStatus

Fate = Literal[
    "kept",
    "unended",
    "unparsed",
    "wrong",
    "too-short",
    "too-long",
    "contaminated",
    "repeated-path",
    "enough",
]
"""What became of a sample. `unended`: cut off at the most tokens; `repeated-path`: a sample before
it reasons alike; `enough`: correct and distinct, but the question had as many as are kept;
`too-long`: no sample is any more; records keep it, with a count of zero.
"""
FATES: tuple[Fate, ...] = get_args(Fate)


@dataclass(frozen=True)
class SampledPrompt:
    """What is asked.

    Attributes:
        id: Its own among all questions; seeds follow from it.
        text: Text as the student reads it, in the rows it will be trained on.
        prompt_ids: What the writer of the samples continues; at least one token.
        kind: The group it is counted in; None: in none.
        prompt: What the student reads, where that is not `text` as one user's message.
        reference: What an answer is held against, to be read beside it.
        known_paths: Paths of answers that earlier drawings kept.
    """

    id: str
    text: str
    prompt_ids: tuple[int, ...]
    kind: str | None = None
    prompt: Prompt | None = None
    reference: str = ""
    known_paths: frozenset[str] = frozenset()


@dataclass(frozen=True)
class JudgedSample:
    """One answer, drawn and verified.

    Attributes:
        question: The question's id.
        number: Its number among the question's samples, from 0.
        completion: The answer's text, as it would be trained on.
        finish: Why it ended.
        tokens: Its new tokens.
        seed: Seed of its own random numbers.
        value: What it says; None where it is unparsed (as in `Verdict`).
        extracted: The part of it that was read.
        status: The verdict.
        detail: Why, as a kind to count; empty if it is correct.
        path: Short hash of its reasoning path; equal for equal paths.
        contaminated_by: The evaluation question it repeats; None: none.
        logprob: Mean log-probability of its tokens, nats; None where not asked for.
        fate: None until the samples of its question are chosen among.
    """

    question: str
    number: int
    completion: str
    finish: Finish
    tokens: int
    seed: int
    value: float | str | None
    extracted: str
    status: VerdictStatus
    detail: str
    path: str
    contaminated_by: str | None = None
    logprob: float | None = None
    fate: Fate | None = None

    @property
    def is_correct(self) -> bool:
        return self.status == "correct"

    def to_json(self) -> JsonDict:
        """Return a record. Values that JSON cannot hold are null and listed in `nonfinite`, as in
        a journal.
        """
        return finite_record(dict(vars(self)))

    @classmethod
    def from_json(cls, record: Json, where: str) -> "JudgedSample":
        """The sample of a record.

        Raises:
            RunFolderError: a field is missing, unknown or not of its type; names it and `where`.
        """
        values = {key: value for key, value in record.items() if key != "nonfinite"}
        values |= {key: float(text) for key, text in record.get("nonfinite", {}).items()}
        if values.keys() != _ACCEPTED.keys():
            odd = ", ".join(sorted(values.keys() ^ _ACCEPTED.keys()))
            raise RunFolderError(
                f"{where} is not a sample of this version: missing or unknown {odd}. Draw the"
                " samples anew into another folder."
            )
        for name, accepted in _ACCEPTED.items():
            if not accepted(values[name]):
                raise RunFolderError(
                    f"{where}: {name} is {values[name]!r}, which no sample has. Was the file"
                    " changed by hand? Draw the samples anew."
                )
        return cls(**values)


def by_question(
    questions: Iterable[SampledPrompt], samples: Iterable[JudgedSample]
) -> dict[str, list[JudgedSample]]:
    """Return the samples of each question, under its id; those of other questions are left out."""
    found: dict[str, list[JudgedSample]] = {question.id: [] for question in questions}
    for sample in samples:
        found.get(sample.question, []).append(sample)
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_ACCEPTED = {field.name: _is_text for field in fields(JudgedSample)} | {
    "number": _is_count,
    "finish": lambda value: value in get_args(Finish),
    "tokens": _is_count,
    "seed": _is_count,
    "value": lambda value: value is None or _is_text(value) or _is_number(value),
    "status": lambda value: value in get_args(VerdictStatus),
    "contaminated_by": lambda value: value is None or _is_text(value),
    "logprob": lambda value: value is None or _is_number(value),
    "fate": lambda value: value is None or value in FATES,
}
"""Tests of whether a value may stand in a field, by field."""
