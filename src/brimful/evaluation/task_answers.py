"""Many questions to one model: similar lengths together under a token budget, stop strings, samples."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from brimful.evaluation.likelihood import Progress
from brimful.evaluation.task import TaskSampling
from brimful.evaluation.task_prompts import Subject
from brimful.generation.engine import Generation, generate, text_behind
from brimful.generation.sampler import SamplingSettings

PIECE_TOKENS = 64
"""With stop strings, text is looked at after so many new tokens; rows that go on are read again with what they wrote."""


@dataclass(frozen=True)
class Written:
    """One text: cut at its first stop string, with the tokens it took."""

    text: str
    finish: Literal["end_of_text", "stop", "length"]
    tokens: int


def write_answers(
    subject: Subject,
    prompts_ids: Sequence[list[int]],
    sampling: TaskSampling,
    *,
    stop: Sequence[str],
    max_new_tokens: int,
    seed: int,
    progress: Progress | None = None,
) -> list[list[Written]]:
    """For every prompt its samples, in order. A sample depends on the seed, its prompt's place and its own number, not on its neighbours.

    Args:
        subject: Who writes. When memory runs out, the engine goes on with half the rows.
        prompts_ids: Each leaves `max_new_tokens` of the context.
        sampling: How tokens are drawn, and how many samples.
        stop: Texts that end an answer and do not belong to it.
        max_new_tokens: Per answer.
        seed: Of all samples.
        progress: Told after every batch, in answers.
    """
    rows = [
        _Row(list(ids), (seed, place, sample), max_new_tokens, tuple(stop))
        for place, ids in enumerate(prompts_ids)
        for sample in range(sampling.samples)
    ]
    settings = SamplingSettings(sampling.temperature, sampling.top_k, sampling.top_p)
    done = 0
    for batch in _batches(rows, max_new_tokens, subject.budget_tokens):
        _write(subject, batch, settings)
        done += len(batch)
        if progress is not None:
            progress("generate", done, len(rows))
    written = iter(row.written(subject) for row in rows)
    return [[next(written) for _ in range(sampling.samples)] for _ in prompts_ids]


@dataclass
class _Row:
    """One answer on its way."""

    prompt_ids: list[int]
    seed: tuple[int, ...]
    max_new_tokens: int
    stop: tuple[str, ...]
    new_ids: list[int] = field(default_factory=list)
    finish: Literal["end_of_text", "stop", "length"] | None = None

    def piece_seed(self) -> int:
        return int(np.random.SeedSequence((*self.seed, len(self.new_ids))).generate_state(1)[0])

    def take(self, generation: Generation, subject: Subject) -> None:
        self.new_ids += generation.token_ids
        if self._end(self._text(subject, len(self.new_ids))) is not None:
            self.finish = "stop"
        elif generation.finish == "end_of_text":
            self.finish = "end_of_text"
        elif len(self.new_ids) >= self.max_new_tokens:
            self.finish = "length"

    def written(self, subject: Subject) -> Written:
        text = self._text(subject, len(self.new_ids))
        if self.finish != "stop":
            return Written(text, self.finish or "length", len(self.new_ids))
        tokens = bisect_left(range(len(self.new_ids)), True, key=lambda count: self._end(self._text(subject, count)) is not None)
        return Written(text[: self._end(text)], "stop", tokens)

    def _text(self, subject: Subject, count: int) -> str:
        return text_behind(subject.tokenizer, self.prompt_ids, self.new_ids[:count])

    def _end(self, text: str) -> int | None:
        """Where the first stop string stands."""
        return min((place for word in self.stop if (place := text.find(word)) >= 0), default=None)


def _batches(rows: list[_Row], max_new_tokens: int, budget_tokens: int) -> Iterator[list[_Row]]:
    """Rows of similar length, longest first, so that memory is short at once or never."""
    ordered = sorted(rows, key=lambda row: len(row.prompt_ids), reverse=True)
    while ordered:
        count = max(1, budget_tokens // (len(ordered[0].prompt_ids) + max_new_tokens))
        yield ordered[:count]
        ordered = ordered[count:]


def _write(subject: Subject, rows: list[_Row], settings: SamplingSettings) -> None:
    while going := [row for row in rows if row.finish is None]:
        left = going[0].max_new_tokens - len(going[0].new_ids)  # the same for all: they began together
        generations = generate(
            subject.model,
            [row.prompt_ids + row.new_ids for row in going],
            settings,
            max_new_tokens=min(left, PIECE_TOKENS) if going[0].stop else left,
            stop_ids=subject.stop_ids,
            seeds=[row.piece_seed() for row in going],
        )
        for row, generation in zip(going, generations, strict=True):
            row.take(generation, subject)
