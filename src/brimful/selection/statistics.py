"""What a drawing gave: how many samples had which fate and why, which questions were answered, how
many paths were found.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

from brimful.base.errors import DataError
from brimful.base.intervals import wilson_interval
from brimful.base.text import shortened
from brimful.base.types import JsonDict, Texts
from brimful.generation.text import text_ends_in_loop
from brimful.selection.choose import SelectionRules
from brimful.selection.sample import FATES, JudgedSample, SampledPrompt, by_question

REASONS = 5
EXAMPLE_CHARACTERS = 160
BINS = 10

_WHAT_THEN = {
    "unended": "raise rft.max_new_tokens",
    "unparsed": "show the model the form of an answer (rft.shots, rft.system)",
    "wrong": "use a stronger rft.teacher, easier questions or more rft.samples_per_prompt",
    "too-short": "lower rft.min_answer_tokens",
    "contaminated": "ask other questions than the evaluation does",
}
"""What helps, by the fate of most samples."""
LOOP = "repeats itself"
"""Detail of an answer that did not end because it runs in a loop."""
_AGAINST_LOOPS = (
    "shorter and more varied demonstrations (builtin:unit-conversion-short in place of"
    " builtin:unit-conversion), a higher rft.temperature, or rft.repetition_penalty=1.1; more"
    " rft.max_new_tokens would only lengthen the loops"
)


@dataclass(frozen=True)
class Share:
    """A share of samples with its 95 % interval (Wilson 1927).

    The interval says how well the share is known for these questions; other questions would spread
    it further.
    """

    count: int
    total: int
    share: float
    low: float
    high: float


@dataclass(frozen=True)
class Lengths:
    """Tokens of answers: minimum, median, 90th percentile and maximum."""

    minimum: int
    median: int
    percentile_90: int
    maximum: int


@dataclass(frozen=True)
class KindCounts:
    """The questions of one kind."""

    questions: int
    questions_with_kept: int
    kept: int
    correct: Share | None


@dataclass(frozen=True)
class RejectionReason:
    """Why samples were not kept.

    Attributes:
        fate: What became of them.
        detail: The verifier's reason; empty where the fate says it all.
        samples: So many.
        question: The text of one question, cut.
        completion: One such answer to it, cut.
    """

    fate: str
    detail: str
    samples: int
    question: str
    completion: str


@dataclass(frozen=True)
class Statistics:
    """The samples that count, in numbers.

    Attributes:
        questions: That were asked.
        samples: Number of samples of all of them.
        tokens: New tokens of these.
        fates: Samples by fate, every fate.
        correct: Share of samples that are right; None without samples. When questions are settled
            early, easy ones have fewer samples in it.
        answered: Share of samples that could be read.
        questions_by_kept: Questions with 0, 1, .. keep_per_prompt samples kept.
        questions_by_correct: Questions by their share of correct samples: none, then tenths with
            their upper bounds (above 0 to 0.1, .. to 1).
        questions_by_paths: Questions with 0, 1, .. distinct correct paths, kept or beyond what is
            kept.
        kinds: Counts by kind of question.
        lengths: Lengths of all samples.
        lengths_kept: Lengths of those kept.
        reasons: The most frequent reasons for not keeping a sample, first first.
    """

    questions: int
    samples: int
    tokens: int
    fates: dict[str, int]
    correct: Share | None
    answered: Share | None
    questions_by_kept: list[int]
    questions_by_correct: list[int]
    questions_by_paths: list[int]
    kinds: dict[str, KindCounts]
    lengths: Lengths | None
    lengths_kept: Lengths | None
    reasons: list[RejectionReason]

    @property
    def kept(self) -> int:
        """Samples that are trained on."""
        return self.fates.get("kept", 0)

    def to_json(self) -> JsonDict:
        return asdict(self)


def statistics_of(
    questions: Sequence[SampledPrompt], samples: Iterable[JudgedSample], rules: SelectionRules
) -> Statistics:
    """Count the samples that `write_samples` returned."""
    of_question = by_question(questions, samples)
    groups = list(of_question.values())
    everything = list(chain.from_iterable(groups))
    fates = Counter(sample.fate for sample in everything)
    num_correct = sum(sample.is_correct for sample in everything)
    num_answered = sum(sample.status != "unparsed" for sample in everything)
    paths = list(map(_distinct_correct_paths, groups))
    return Statistics(
        questions=len(questions),
        samples=len(everything),
        tokens=sum(sample.tokens for sample in everything),
        fates={fate: fates[fate] for fate in FATES},
        correct=share_of(num_correct, len(everything)),
        answered=share_of(num_answered, len(everything)),
        questions_by_kept=_counts(list(map(_kept, groups)), rules.keep_per_prompt),
        questions_by_correct=_counts(list(map(_tenth, groups)), BINS),
        questions_by_paths=_counts(paths, max(paths, default=0)),
        kinds=_kinds(questions, of_question),
        lengths=_lengths([sample.tokens for sample in everything]),
        lengths_kept=_lengths([sample.tokens for sample in everything if sample.fate == "kept"]),
        reasons=_reasons(everything, {question.id: question.text for question in questions}),
    )


def _distinct_correct_paths(samples: Sequence[JudgedSample]) -> int:
    """Ways of solving a question among its samples, kept or beyond what is kept."""
    return sum(sample.fate in {"kept", "enough"} for sample in samples)


def _kinds(
    questions: Sequence[SampledPrompt], of_question: Mapping[str, list[JudgedSample]]
) -> dict[str, KindCounts]:
    """Counts by kind of question, in the order in which kinds first occur."""
    by_kind: dict[str, list[list[JudgedSample]]] = {}
    for question in questions:
        if question.kind is not None:
            by_kind.setdefault(question.kind, []).append(of_question[question.id])
    return {kind: _kind(samples) for kind, samples in by_kind.items()}


def refuse_nothing_kept(statistics: Statistics) -> None:
    """Stop where there is nothing to train on.

    Raises:
        DataError: no sample is kept; tells the five most frequent reasons, each with an example,
            and what helps against the first.
    """
    if statistics.kept:
        return
    lines = [
        f"  {reason.samples} of {statistics.samples}:"
        f" {reason.fate}{reason.detail and f' ({reason.detail})'}, such as {reason.completion!r} to"
        f" {reason.question!r}"
        for reason in statistics.reasons
    ]
    advice = "ask at least one question"
    if statistics.reasons:
        advice = _WHAT_THEN.get(statistics.reasons[0].fate, "")
        if statistics.reasons[0].detail == LOOP:
            advice = _AGAINST_LOOPS
    raise DataError(
        f"none of {statistics.samples} samples of {statistics.questions} questions can be kept, so"
        " there is nothing to train on.\n" + "\n".join([*lines, f"What helps most: {advice}."])
    )


def _detail(sample: JudgedSample) -> str:
    """The verifier's reason, or that an unended answer repeats itself."""
    if sample.fate == "unended" and text_ends_in_loop(sample.completion):
        return LOOP
    return sample.detail


def _kept(samples: Sequence[JudgedSample]) -> int:
    return sum(sample.fate == "kept" for sample in samples)


def _tenth(samples: Sequence[JudgedSample]) -> int:
    """0 for no correct sample, else the tenth, from 1, that the share of correct ones falls
    into.
    """
    return math.ceil(BINS * sum(sample.is_correct for sample in samples) / max(1, len(samples)))


def _counts(values: Sequence[int], most: int) -> list[int]:
    found = Counter(values)
    return [found[value] for value in range(most + 1)]


def share_of(count: int, total: int) -> Share | None:
    """Return a share with its interval; None of nothing."""
    if not total:
        return None
    interval = wilson_interval(count, total)
    return Share(count, total, count / total, interval.low, interval.high)


def _lengths(tokens: list[int]) -> Lengths | None:
    if not tokens:
        return None
    ordered = sorted(tokens)
    return Lengths(
        ordered[0],
        ordered[(len(ordered) - 1) // 2],
        ordered[math.ceil(0.9 * len(ordered)) - 1],
        ordered[-1],
    )


def _kind(drawn: Sequence[Sequence[JudgedSample]]) -> KindCounts:
    samples = [sample for of_question in drawn for sample in of_question]
    return KindCounts(
        questions=len(drawn),
        questions_with_kept=sum(_kept(of_question) > 0 for of_question in drawn),
        kept=_kept(samples),
        correct=share_of(sum(sample.is_correct for sample in samples), len(samples)),
    )


def _reasons(samples: Sequence[JudgedSample], texts: Texts) -> list[RejectionReason]:
    refused = [sample for sample in samples if sample.fate != "kept"]
    keys = [(str(sample.fate), _detail(sample)) for sample in refused]
    counts = Counter(keys)
    first: dict[tuple[str, str], JudgedSample] = {}
    for key, sample in zip(keys, refused, strict=True):
        first.setdefault(key, sample)
    return [
        RejectionReason(
            fate,
            detail,
            count,
            shortened(texts[first[fate, detail].question], EXAMPLE_CHARACTERS),
            shortened(first[fate, detail].completion, EXAMPLE_CHARACTERS),
        )
        for (fate, detail), count in counts.most_common(REASONS)
    ]
