"""Runs on documents of which some tokens are hidden: encoders, which read both sides."""

from functools import cached_property
from pathlib import Path

import torch
from rich.console import Console
from transformers import PreTrainedModel

from brimful.base.console import console_printer
from brimful.base.errors import RequestError
from brimful.base.types import Json, JsonDict
from brimful.data.batches import MicroBatch
from brimful.data.masking import MaskedSequences, MaskingRules
from brimful.evaluation.likelihood import Likelihood
from brimful.evaluation.masked import score_masked
from brimful.generation.fill_mask import fill_masks
from brimful.generation.load import load_run
from brimful.generation.samples import write_samples
from brimful.kinds.documents import DocumentRunData
from brimful.kinds.finished import told_if_it_fails
from brimful.kinds.run_data import ScoringOptions
from brimful.planning.plan import Plan
from brimful.planning.step import StepSpec

FILLED_MASKS = 5
"""Snippets of held-out text in which an encoder guesses a masked word at the end of training."""


class MaskedRunData(DocumentRunData):
    """Documents whose hidden tokens a fresh encoder learns to predict."""

    @classmethod
    def blank(cls, step: StepSpec, samples: int) -> MicroBatch:
        inputs_BT = torch.zeros((samples, step.sequence_length), dtype=torch.int64)
        scored_N = torch.zeros(samples * step.scored_tokens, dtype=torch.int64)
        return MicroBatch(inputs_BT, torch.zeros_like(inputs_BT), scored_N)

    @property
    def rules(self) -> MaskingRules:
        """Which tokens are hidden."""
        recipe = self.recipe
        return MaskingRules(recipe.data.masked_share, len(self.tokenizer), recipe.seed)

    @cached_property
    def train_sequences(self) -> MaskedSequences:
        data = self.recipe.data
        train, length = self.splits["train"], self.recipe.sequence_length
        return MaskedSequences(train, length, data.layout, data.long_documents, self.rules)

    @property
    def validation_rows(self) -> int:
        return -(-self.splits["validation"].num_tokens // (self.recipe.sequence_length - 1))

    @property
    def objective(self) -> Json:
        return {**super().objective, "masked_share": self.rules.share}

    def score(self, model: PreTrainedModel, split: str, options: ScoringOptions) -> Likelihood:
        if options.stride is not None:
            raise RequestError(
                f"{self.recipe.name} reads both sides of what is masked; a stride would give it no"
                " more to read. Leave --stride out."
            )
        length = self.recipe.sequence_length
        return score_masked(model, self.splits[split], self.rules, options.scoring, context=length)

    def baselines(self, split: str) -> JsonDict:
        """Return nothing: counting models read from left to right only."""
        return {}

    def describe(self) -> list[str]:
        masking = (
            f"{self.rules.share:.0%} of the tokens of a sequence are hidden, other ones every time,"
            " and predicted from both sides"
        )
        return [*super().describe(), masking]

    def finish(self, run_folder: Path, plan: Plan, console: Console) -> None:
        """Let the encoder guess masked words in held-out text."""
        say, validation = console_printer(console), self.splits["validation"]
        with told_if_it_fails("filled masks", console):
            loaded = load_run(run_folder, torch.device(str(plan.device["kind"])), torch.float32)
            samples = fill_masks(loaded, validation, count=FILLED_MASKS, seed=self.recipe.seed)
            for sample in samples:
                say(f"{sample.prompt.strip()}\n  {sample.completion}")
            write_samples(run_folder, samples)


RUN_DATA = MaskedRunData
