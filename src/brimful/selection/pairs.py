"""Pairs of a right and a wrong answer to one question, to learn preferences from: a pure function
of the samples that count.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from brimful.base.errors import DataError
from brimful.base.rundir import write_text_atomically
from brimful.base.text import plural
from brimful.base.types import JsonDict
from brimful.data.conversations import Message
from brimful.selection.choose import SelectionRules, obstacle
from brimful.selection.draw import seed_of
from brimful.selection.journal import PAIRS_FILE, training_row
from brimful.selection.sample import Fate, JudgedSample, SampledPrompt, by_question

_RIGHT: set[Fate | None] = {None}
_WRONG: set[Fate | None] = {"wrong", "unparsed"}
"""Obstacles of samples that are rejected answers. Cut ones are not: they would teach to go on."""


@dataclass(frozen=True)
class PairCounts:
    """What pairs could be made of.

    Attributes:
        pairs: All of them.
        questions: Number of questions with a pair.
        without_right: Questions none of whose answers is right.
        without_wrong: Questions none of whose answers is wrong.
    """

    pairs: int
    questions: int
    without_right: int
    without_wrong: int

    @property
    def line(self) -> str:
        """One sentence for the user."""
        return (
            f"{PAIRS_FILE}: {plural(self.pairs, 'pair')} of a right and a wrong answer, of"
            f" {plural(self.questions, 'question')}; without a right answer"
            f" {plural(self.without_right, 'question')}, without a wrong one"
            f" {plural(self.without_wrong, 'question')}"
        )

    def refuse_none(self) -> None:
        """Stop where there is nothing to learn from.

        Raises:
            DataError: there are no pairs.
        """
        if not self.pairs:
            raise DataError(
                f"no question has both a right and a wrong answer, so there are no pairs:"
                f" {self.without_right:,} have no right one, {self.without_wrong:,} no wrong one."
                " What helps most: more rft.samples_per_prompt, a higher rft.temperature, and"
                " questions that the model answers now and then."
            )

    def to_json(self) -> JsonDict:
        return asdict(self)


def write_pairs(
    folder: Path,
    questions: Sequence[SampledPrompt],
    samples: Iterable[JudgedSample],
    rules: SelectionRules,
    most: int,
    seed: int,
) -> PairCounts:
    """Write the rows that method `dpo` learns from; the file is replaced as a whole, and removed
    where there are none.

    Args:
        folder: Folder that they are written to.
        questions: Questions in the order of the file.
        samples: Those that count.
        rules: What may be kept.
        most: Pairs of a question at most.
        seed: Seed of the choice among answers.
    """
    of_question = by_question(questions, samples)
    rows, counts = list[JsonDict](), {"questions": 0, "without_right": 0, "without_wrong": 0}
    for question in questions:
        right, wrong = (
            _distinct(of_question[question.id], rules, fates, seed_of(seed, question.id, number))
            for number, fates in enumerate((_RIGHT, _WRONG))
        )
        counts["without_right"] += not right
        counts["without_wrong"] += not wrong
        counts["questions"] += bool(right and wrong)
        prompt = question.prompt or (Message("user", question.text),)
        # Every answer as often as the others: the shorter list begins anew.
        for number in range(min(most, max(len(right), len(wrong))) if right and wrong else 0):
            chosen, rejected = (
                training_row(prompt, answers[number % len(answers)].completion)
                for answers in (right, wrong)
            )
            answer = chosen.pop("completion")
            rows.append({**chosen, "chosen": answer, "rejected": rejected["completion"]})
    path = folder / PAIRS_FILE
    if rows:
        write_text_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
    else:
        path.unlink(missing_ok=True)
    return PairCounts(len(rows), **counts)


def _distinct(
    samples: Iterable[JudgedSample], rules: SelectionRules, fates: set[Fate | None], seed: int
) -> list[JudgedSample]:
    """The first sample of each path that has one of these obstacles, shuffled."""
    found = {
        sample.path: sample
        for sample in sorted(samples, key=lambda sample: -sample.number)
        if obstacle(sample, rules) in fates and sample.completion.strip()
    }
    answers = sorted(found.values(), key=lambda sample: sample.number)
    order = np.random.default_rng(seed).permutation(len(answers))
    return [answers[place] for place in order]
