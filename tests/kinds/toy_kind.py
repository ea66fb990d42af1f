"""A kind of run for tests: pairs of a chosen and a rejected answer to the same prompt."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch.nn.utils.rnn import pad_sequence

from brimful.base.types import Json, Progress
from brimful.data.batches import IGNORED, MicroBatch
from brimful.data.example_batches import ExampleBatch, ExampleSequences
from brimful.kinds.examples import ExampleRunData
from brimful.planning.plan import Plan
from brimful.planning.step import StepSpec
from brimful.recipe import Recipe


@dataclass(frozen=True)
class PairBatch:
    """The pairs of one optimizer step."""

    chosen: ExampleBatch
    rejected: ExampleBatch

    @property
    def num_target_tokens(self) -> int:
        return self.chosen.num_target_tokens + self.rejected.num_target_tokens

    @property
    def loss_divisor(self) -> float:
        return len(self.chosen.pairs)

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        start = 0
        for size in sizes:
            rows = [
                *self.chosen.pairs[start : start + size],
                *self.rejected.pairs[start : start + size],
            ]
            start += size
            inputs = [torch.from_numpy(row.inputs_T) for row in rows]
            targets = [torch.from_numpy(row.targets_T) for row in rows]
            tokens = [int((row.targets_T != IGNORED).sum()) for row in rows]
            yield MicroBatch(
                pad_sequence(inputs, batch_first=True),
                pad_sequence(targets, batch_first=True, padding_value=IGNORED),
                kept={"tokens_R": torch.tensor(tokens, dtype=torch.float32)},
            )


@dataclass(frozen=True)
class PairSequences:
    """Chosen and rejected answers in the same order."""

    chosen: ExampleSequences
    rejected: ExampleSequences

    def batch(self, first_sample: int, count: int) -> PairBatch:
        return PairBatch(
            self.chosen.batch(first_sample, count), self.rejected.batch(first_sample, count)
        )


class Pairs(ExampleRunData):
    """Pairs, of which the chosen answers are examples that the model is scored on."""

    rejected: ExampleRunData

    @classmethod
    def gather(cls, recipe: Recipe, source: str, progress: Progress | None = None) -> Self:
        pairs = super().gather(_with_answers(recipe, "chosen"), source, progress)
        pairs.recipe = recipe
        pairs.rejected = ExampleRunData.gather(_with_answers(recipe, "rejected"), source, progress)
        pairs.fingerprints = {
            **pairs.fingerprints,
            "rejected": pairs.rejected.fingerprints["data"],
        }
        return pairs

    @classmethod
    def blank(cls, step: StepSpec, samples: int) -> MicroBatch:
        micro = super().blank(step, samples)
        return replace(micro, kept={"tokens_R": torch.zeros(len(micro.inputs_BT))})

    @property
    def mean_positions(self) -> float:
        """A pair is planned as a sample of full rows."""
        return self.recipe.sequence_length

    def longest_pass_of(self, device_kind: str, devices: int = 1) -> None:
        """All rows are full."""

    def sequences(self, plan: Plan) -> Any:
        chosen, rejected = super().sequences(plan), self.rejected.sequences(plan)
        return PairSequences(chosen, rejected)

    @property
    def objective(self) -> Json:
        return {**super().objective, "pairs": True}


def _with_answers(recipe: Recipe, column: str) -> Recipe:
    data = recipe.data.model_copy(update={"columns": {"completion": column}})
    return recipe.model_copy(update={"data": data})


RUN_DATA = Pairs
