"""Runs on single answers that are desired or not, of which a published model learns to write the
desired ones.

Suffixes: A answers of a split or of a batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import PreTrainedModel

from brimful.base.arrays import Floats32, Ints
from brimful.base.warning_codes import all_coded, as_note
from brimful.data.batches import MicroBatch
from brimful.data.bins import offsets_of, spread_evenly
from brimful.data.example_batches import ExampleBatch, ExampleSequences, Layout, pairs_of
from brimful.data.examples import ExampleSplit
from brimful.data.formats import Example, text_of_prompt
from brimful.evaluation.likelihood import Likelihood, of_samples
from brimful.kinds.pairs import PairRunData
from brimful.kinds.run_data import ScoringOptions
from brimful.planning.step import StepSpec
from brimful.recipe import Recipe
from brimful.recipe.preference import PreferenceRecipe, reference_of, rules_of
from brimful.training.methods.dpo import REFERENCE
from brimful.training.methods.kto import DESIRED, judged_losses

LEAST_SHARE, MOST_SHARE = 0.98, 4 / 3 + 0.02
"""Least and most weight of all desired answers over that of the others; a weight is advised in
three digits.
"""
MISMATCHED = "{}, mismatched"
"""Name of a split's prompts with the answers to other ones."""


@dataclass(frozen=True)
class JudgedBatch(ExampleBatch):
    """The answers of one optimizer step.

    Attributes:
        measured: Their prompts with the answers to other ones; no examples where the loss has no
            reference point.
    """

    measured: ExampleBatch = field(default_factory=lambda: ExampleBatch((), 0, "padded"))

    @property
    def loss_divisor(self) -> float:
        """The answers."""
        return len(self.pairs)


class JudgedSequences(ExampleSequences):
    """Endless numbered training answers of a split.

    Args:
        split: The training split.
        mismatched: Its prompts with the answers to other ones; None where they are not needed.
        recipe: Says the length of a sequence and the seed.
        layout: Layout, as of `ExampleSequences`.
        reference: Reference values, as of `PairSequences`.
    """

    def __init__(
        self,
        split: ExampleSplit,
        mismatched: ExampleSplit | None,
        recipe: Recipe,
        layout: Layout,
        reference: Mapping[str, Floats32],
    ) -> None:
        super().__init__(split, recipe.sequence_length, layout, recipe.seed)
        self._mismatched = mismatched
        self._reference, self._is_kept = reference, reference_of(recipe) == "kept"
        self._desired_A = signs_of(split)

    def batch(self, first_sample: int, count: int) -> JudgedBatch:
        numbers = self.examples(first_sample, count)
        batch = super().batch(first_sample, count)
        made = JudgedBatch(
            batch.pairs,
            batch.sequence_length,
            batch.layout,
            kept={DESIRED: self._desired_A[numbers], **self._kept("train", numbers)},
        )
        if self._mismatched is None:
            return made
        others = replace(
            batch,
            pairs=pairs_of(self._mismatched, numbers),
            kept=self._kept(MISMATCHED.format("train"), numbers),
        )
        return replace(made, measured=others)

    def _kept(self, split: str, numbers: Ints) -> dict[str, Floats32]:
        return {REFERENCE: self._reference[split][numbers]} if self._is_kept else {}


def signs_of(split: ExampleSplit) -> Floats32:
    """Return 1 for each desired answer of a split and -1 for each other one (A,)."""
    return np.array([1.0 if each.desired else -1.0 for each in split.examples], np.float32)


def mismatched(split: ExampleSplit, sequence_length: int) -> ExampleSplit:
    """Return each prompt with the answer to another one: the answers of a split move on by as many
    places as the most that follow one another belong to one prompt, by one where each has its own.
    They are cut to the sequence.
    """
    prompts = [text_of_prompt(example) for example in split.examples]
    turn, count = max(len([*same]) for _, same in groupby(prompts)), len(prompts)
    starts, ends = split.offsets_E[:-1], split.offsets_E[1:]
    learned = np.flatnonzero(split.is_target_N)
    answers = learned[np.searchsorted(learned, starts)]
    places, examples = list[Ints](), list[Example]()
    for number, example in enumerate(split.examples):
        other = (number - turn) % count
        parts = np.arange(starts[number], answers[number]), np.arange(answers[other], ends[other])
        places.append(np.concatenate(parts)[: sequence_length + 1])
        examples.append(replace(example, completion=split.examples[other].completion))
    places_N = np.concatenate(places)
    offsets = offsets_of([*map(len, places)])
    return ExampleSplit(
        split.tokens_N[places_N],
        split.is_target_N[places_N],
        offsets,
        split.num_bytes,
        tuple(examples),
    )


class JudgedRunData(PairRunData):
    """Single answers, of which a published model learns to write the desired ones."""

    per_sample: ClassVar[int] = 1

    @classmethod
    def blank(cls, step: StepSpec, samples: int) -> MicroBatch:
        micro = super(PairRunData, cls).blank(step, samples)
        is_kept = step.options["preference"]["reference"] == "kept"
        names = (DESIRED, REFERENCE) if is_kept else (DESIRED,)
        kept = {name: torch.ones(samples) for name in names}
        return replace(micro, scored_N=torch.arange(micro.inputs_BT.numel()), kept=kept)

    @cached_property
    def mismatched(self) -> Mapping[str, ExampleSplit]:
        """Prompts with the answers to other ones, by split; empty where the loss needs none."""
        if rules_of(self.recipe).loss != "kto":
            return {}
        length = self.recipe.sequence_length
        return {name: mismatched(split, length) for name, split in self.splits.items()}

    @property
    def compared(self) -> Mapping[str, ExampleSplit]:
        others = {MISMATCHED.format(name): split for name, split in self.mismatched.items()}
        return {**self.splits, **others}

    def _sequences(self, packing: str, device_kind: str) -> JudgedSequences:
        layout: Layout = "packed" if packing == "packed" else "padded"
        split, others = self.splits["train"], self.mismatched.get("train")
        return JudgedSequences(split, others, self.recipe, layout, self._reference)

    @property
    def examples(self) -> Mapping[str, Sequence[Example]]:
        """The desired answers."""
        return {
            name: [each for each in split.examples if each.desired]
            for name, split in self.splits.items()
        }

    def score(self, model: PreTrainedModel, split: str, options: ScoringOptions) -> Likelihood:
        """Return loss and named values of at most `max_sequences` answers, spread evenly."""
        whole = self.splits[split]
        numbers = spread_evenly(whole.num_examples, options.max_sequences)

        def scored(name: str, answers: ExampleSplit) -> tuple[Any, Any, Any]:
            found = self._score(model, answers.part(numbers), replace(options, max_sequences=None))
            log_probs_A = torch.from_numpy(-found.window_nats_N).float()
            return found, log_probs_A, torch.from_numpy(self._reference[name][numbers])

        likelihood, log_probs_A, reference_A = scored(split, whole)
        distance, seconds = None, likelihood.seconds
        if others := self.mismatched.get(split):
            found, others_A, others_reference_A = scored(MISMATCHED.format(split), others)
            distance, seconds = (others_A - others_reference_A).mean(), seconds + found.seconds
        losses_A, named = judged_losses(
            rules_of(self.recipe).resolved,
            log_probs_A,
            reference_A,
            torch.from_numpy(signs_of(whole)[numbers]),
            distance,
        )
        means = {
            name: float((values_A * counts_A).sum() / counts_A.sum())
            for name, (values_A, counts_A) in named.items()
            if counts_A.any()
        }
        means["margin"] = means.get("reward_chosen", 0.0) - means.get("reward_rejected", 0.0)
        return of_samples(
            losses_A,
            named["accuracy"][0],
            means,
            seconds=seconds,
            context=likelihood.context,
            batch_sizes=likelihood.batch_sizes,
        )

    def describe(self) -> list[str]:
        lines = super(PairRunData, self).describe()
        rules = rules_of(self.recipe).resolved
        signs_A = signs_of(self.splits["train"])
        told = [f"loss {rules.loss} of judged answers"]
        for name, split in self.splits.items():
            good = int((signs_of(split) > 0).sum())
            told.append(
                f"{name}: {good:,} desired answers and {split.num_examples - good:,} others"
            )
        counts = int((signs_A > 0).sum()), int((signs_A < 0).sum())
        last = lines[-1].replace("example", "answer")
        notes = map(as_note, all_coded("B327", unbalanced(rules, *counts)))
        return [*lines[:-1], *told, *notes, last]


def unbalanced(rules: PreferenceRecipe, desired: int, others: int) -> Iterator[str]:
    """Yield what is wrong with the numbers of answers to train on and their weights.

    Args:
        rules: resolved.
        desired: so many answers to train on.
        others: so many of those that are not.
    """
    if not desired or not others:
        which = "not desired" if others else "desired"
        yield (
            f"all {desired + others:,} answers to train on are {which}, so nothing shows what is"
            " better or worse; add answers of the other kind"
        )
        return
    share = rules.desirable_weight * desired / (rules.undesirable_weight * others)
    if rules.loss == "kto" and not LEAST_SHARE <= share <= MOST_SHARE:
        if share < LEAST_SHARE:
            key, weight = "desirable_weight", rules.undesirable_weight * others / desired
        else:
            key, weight = "undesirable_weight", rules.desirable_weight * desired / others
        yield (
            f"{desired:,} desired answers count {share:.2g} times as much as {others:,} others, and"
            " the authors of KTO advise 1 to 4/3 times (arXiv 2402.01306):"
            f" preference.{key}={weight:.3g}"
        )


RUN_DATA = JudgedRunData
