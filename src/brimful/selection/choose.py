"""Which samples of one question are kept: a pure function of the samples, whatever order and time
they were drawn in.
"""

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from brimful.selection.sample import Fate, JudgedSample


@dataclass(frozen=True)
class SelectionRules:
    """How many samples are drawn and kept, and which may be.

    Attributes:
        samples_per_prompt: Drawn per question at most.
        keep_per_prompt: Kept per question at most, so that easy questions do not crowd out hard
            ones.
        stop_early: Draw no more for a question once so many are kept.
        min_answer_tokens: Shorter answers are not kept.
    """

    samples_per_prompt: int
    keep_per_prompt: int
    stop_early: bool = False
    min_answer_tokens: int = 0


def choose(
    samples: Iterable[JudgedSample], rules: SelectionRules, known: Set[str] = frozenset()
) -> list[JudgedSample]:
    """The samples of one question by number, with their fates: the first correct ones with distinct
    paths are kept.

    Not the likeliest or the shortest ones: the first ones are distributed as the model writes.

    Args:
        samples: Samples of one question.
        rules: What is kept.
        known: Paths that were kept in rounds before: who takes one repeats it.
    """
    chosen: list[JudgedSample] = []
    paths = set(known)
    for sample in sorted(samples, key=lambda sample: sample.number):
        fate = obstacle(sample, rules)
        if fate is None:
            is_full = len(paths) >= len(known) + rules.keep_per_prompt
            fate = "enough" if is_full else "kept"
            if sample.path in paths:
                fate = "repeated-path"
            paths.add(sample.path)
        chosen.append(replace(sample, fate=fate))
    return chosen


def prefix(
    samples: Iterable[JudgedSample], rules: SelectionRules, known: Set[str] = frozenset()
) -> list[JudgedSample]:
    """The samples of one question that count, by number and with their fates.

    Those are the numbers from 0 on without a gap; with `stop_early` up to the one that fills the
    places. What was drawn beyond, because it was on its way when the question was settled, is cut,
    so that what remains does not depend on timing.
    """
    by_number = {sample.number: sample for sample in samples}
    whole: list[JudgedSample] = []
    while (
        len(whole) < rules.samples_per_prompt and (sample := by_number.get(len(whole))) is not None
    ):
        whole.append(sample)
    chosen = choose(whole, rules, known)
    if not rules.stop_early:
        return chosen
    kept = [sample.number for sample in chosen if sample.fate == "kept"]
    if len(kept) < rules.keep_per_prompt:
        return chosen
    return chosen[: kept[-1] + 1]


def settled(
    samples: Iterable[JudgedSample], rules: SelectionRules, known: Set[str] = frozenset()
) -> bool:
    """Whether nothing that is drawn later can change what counts of one question."""
    counted = prefix(samples, rules, known)
    if len(counted) == rules.samples_per_prompt:
        return True
    return (
        rules.stop_early
        and sum(sample.fate == "kept" for sample in counted) == rules.keep_per_prompt
    )


def obstacle(sample: JudgedSample, rules: SelectionRules) -> Fate | None:
    """Why a sample may not be kept, whatever the others are; None if it may."""
    fate: Fate | None = None
    if sample.finish == "length":
        fate = "unended"
    elif sample.status != "correct":
        fate = sample.status
    elif sample.tokens < rules.min_answer_tokens:
        fate = "too-short"
    elif sample.contaminated_by is not None:
        fate = "contaminated"
    return fate
