"""Runs on examples with a prompt and an answer, on which a published model is tuned."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.text import plural
from brimful.base.types import Json, Progress
from brimful.data.chat import Template
from brimful.data.example_batches import ExampleSequences, Layout
from brimful.data.examples import (
    ExampleSplit,
    PreparedExamples,
    prepare_examples,
    tokenizer_of,
)
from brimful.data.formats import Example
from brimful.data.tokenizer import tokenizer_fingerprint
from brimful.evaluation.asking import Ask, Way, ways_to_ask
from brimful.evaluation.completions import score_examples
from brimful.evaluation.likelihood import Likelihood
from brimful.evaluation.task_prompts import Subject, text_ending_of
from brimful.generation.load import LoadedRun, set_ends
from brimful.generation.requests import ShownPrompt
from brimful.generation.side_by_side import shown_prompts
from brimful.kinds.run_data import LaidOutRunData, ScoringOptions
from brimful.planning.plan import Plan
from brimful.planning.rows import as_rows
from brimful.recipe import Recipe, SampleRecipe

FEW_LENGTHS = 8
"""With no more lengths of examples, rows repeat soon, and so do the shapes of their products."""


class ExampleRunData(LaidOutRunData[ExampleSplit]):
    """Examples whose answers a published model learns.

    Attributes:
        per_sample: Examples of a sample, one after another in a split.
    """

    per_sample: ClassVar[int] = 1

    def __init__(
        self,
        recipe: Recipe,
        source: str,
        tokenizer: PreTrainedTokenizerBase,
        data: PreparedExamples,
    ) -> None:
        first = data.splits["train"].examples[:1]
        has_messages = any(example.messages is not None for example in first)
        report = {**data.report, "prompts": "messages" if has_messages else "text"}
        if recipe.data.has_own_chat_template:
            report["chat_template"] = tokenizer.chat_template
        super().__init__(
            recipe,
            tokenizer,
            data.splits,
            fingerprints={
                "data": data.data_fingerprint,
                "tokenizer": tokenizer_fingerprint(tokenizer),
            },
            report=report,
            source=source,
        )
        self.template = data.template
        self._ways_to_ask(tokenizer)  # refused before training, not after it
        self.report = {**report, "notes": [*report.get("notes", ()), *self._notes(data)]}

    def _notes(self, data: PreparedExamples) -> Iterable[str]:
        """Return further notes on the data; kinds that read more of it do so here."""
        return ()

    @classmethod
    def gather(cls, recipe: Recipe, source: str, progress: Progress | None = None) -> Self:
        tokenizer = tokenizer_of(recipe, source)
        return cls(recipe, source, tokenizer, prepare_examples(recipe, tokenizer, progress))

    def build(self, plan: Plan, device: torch.device) -> PreTrainedModel:
        model = super().build(plan, device)
        if model.generation_config is not None:
            # Tokens of sample.stop may change after training, and are added by an export.
            lasting = self.recipe.model_copy(update={"sample": SampleRecipe()})
            set_ends(model.generation_config, lasting, self.tokenizer)
        return model

    @property
    def mean_positions(self) -> float:
        return self._positions("train") / self.splits["train"].num_examples

    def _positions(self, split: str) -> int:
        # The last token of an example is predicted but never read.
        return self.splits[split].num_tokens - self.splits[split].num_examples

    @cached_property
    def planned(self) -> Recipe:
        return as_rows(
            self.recipe,
            positions_per_example=self.mean_positions,
            train_examples=self.splits["train"].num_examples // self.per_sample,
        )

    @property
    def has_many_lengths(self) -> bool:
        return len(np.unique(self.splits["train"].lengths_E)) > FEW_LENGTHS

    @property
    def scored(self) -> float:
        return float(self.splits["train"].is_target_N.sum() / self._positions("train"))

    @property
    def train_rows(self) -> int:
        return self._rows("train")

    @property
    def validation_rows(self) -> int:
        return self._rows("validation")

    def _rows(self, split: str) -> int:
        """Rows of the first examples of all samples."""
        return -(-self._positions(split) // (self.per_sample * self.recipe.sequence_length))

    @property
    def validation_count(self) -> int:
        return self.splits["validation"].num_examples // self.per_sample

    @property
    def tokens_per_step(self) -> int:
        return self.per_sample * round(self.recipe.effective_batch * self.mean_positions)

    def _sequences(self, packing: str, device_kind: str) -> ExampleSequences:
        layout: Layout = "packed" if packing == "packed" else "padded"
        split, recipe = self.splits["train"], self.recipe
        return ExampleSequences(split, recipe.sequence_length, layout, recipe.seed)

    @property
    def objective(self) -> Json:
        recipe = self.recipe
        return {
            "method": recipe.method,
            "sequence_length": recipe.sequence_length,
            "loss_on": recipe.data.loss_on,
            "template": self.template.identity,
            **({"added_tokens": recipe.data.added_tokens} if recipe.data.added_tokens else {}),
            **self.tuned_parts,
        }

    def score(self, model: PreTrainedModel, split: str, options: ScoringOptions) -> Likelihood:
        return self._score(model, self.splits[split], options)

    def _score(
        self, model: PreTrainedModel, split: ExampleSplit, options: ScoringOptions
    ) -> Likelihood:
        rows = options.rows * self.recipe.kind.rows_per_sample
        budget = rows * self.recipe.sequence_length
        return score_examples(model, split, options.scoring, budget_tokens=budget)

    @property
    def examples(self) -> Mapping[str, Sequence[Example]]:
        return {name: split.examples for name, split in self.splits.items()}

    def subject(self, loaded: LoadedRun, ask: Ask | None = None) -> Subject:
        subject = super().subject(loaded, ask)
        if loaded.is_tuned:
            return replace(subject, text_ending=text_ending_of(self.splits["train"].examples))
        ways = self._ways_to_ask(loaded.tokenizer, ask)
        if "chat" not in ways:
            return replace(subject, ways=ways)
        template = Template.of(loaded.tokenizer, "chat")
        return replace(
            subject, template=template, stop_ids=subject.stop_ids | template.stop_ids, ways=ways
        )

    def _ways_to_ask(
        self, tokenizer: PreTrainedTokenizerBase, ask: Ask | None = None
    ) -> tuple[Way, ...]:
        """How tasks ask the model as it was before this run."""
        names = (str(self.recipe.model), self.source)
        return ways_to_ask(ask or self.recipe.evaluation.ask, tokenizer, names)

    @property
    def sample_prompt(self) -> ShownPrompt:
        """The recipe's own prompt, else one that was held out."""
        return self.shown_prompts[0] if self.shown_prompts else super().sample_prompt

    @property
    def shown_prompts(self) -> Sequence[ShownPrompt]:
        return shown_prompts(self.recipe.sample.prompt, self.examples["validation"])

    def describe(self) -> list[str]:
        lines = [
            f"{name}: {plural(split.num_examples, 'example')} of"
            f" {split.num_tokens / split.num_examples:.0f} tokens on average, the longest"
            f" {split.lengths_E.max():,}; {split.num_target_tokens:,} of"
            f" {split.num_tokens:,} tokens are learned"
            for name, split in self.splits.items()
        ]
        prompts, layout = self.report["prompts"], "as they stand"
        if prompts == "messages":
            is_chat = self.template.style == "chat"
            layout = "the tokenizer's chat template" if is_chat else "plain headings"
        return [
            f"prompts: {prompts}, {layout}",
            *lines,
            f"an optimizer step sees {plural(self.recipe.effective_batch, 'example')}, about"
            f" {self.tokens_per_step:,} tokens; the plan counts them as full sequences,"
            f" {self.planned.effective_batch:,} of {self.recipe.sequence_length:,}",
        ]


RUN_DATA = ExampleRunData
