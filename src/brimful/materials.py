"""What a run trains on and is scored on, by what its method reads: documents of text, or examples with answers. An overview: it sees every stage."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.env import cache_folder
from brimful.base.units import format_bytes
from brimful.data.example_batches import ExampleSequences
from brimful.data.examples import ExampleSplit, PreparedExamples, prepare_examples
from brimful.data.prepare import PreparedData, prepare
from brimful.data.sequences import Sequences
from brimful.data.tokens import Progress, TokenSplit
from brimful.evaluation.baselines import ngram_baselines
from brimful.evaluation.completions import score_examples
from brimful.evaluation.likelihood import Likelihood, score_split
from brimful.model.build import build
from brimful.model.catalog import config_of_model
from brimful.model.published import Loading, attach_adapters, fingerprint_of, load_model, load_tokenizer
from brimful.planning.plan import Plan
from brimful.planning.rows import as_rows
from brimful.recipe import Recipe
from brimful.training.loop import Sequences as TrainingSequences
from brimful.training.method import find_method
from brimful.training.precision import Precision

BASE = "base model"
"""Name of the published model's fingerprint."""


@dataclass(frozen=True)
class Material:
    """Everything of a run that depends on what its method reads.

    Attributes:
        recipe: As written.
        planned: The recipe as planning counts: an optimizer step in rows of the sequence length.
        tokenizer: Of the model.
        splits: train, validation, and test where there is one.
        train_rows: Of one epoch, as planning counts.
        validation_rows: Likewise.
        fingerprints: Of data and tokenizer: what a resumed run must share.
        report: For data.json.
        source: Hub id or folder of the published model; empty for a fresh one.
        tokens_per_step: Tokens that the examples of an optimizer step have on average; None for documents, of which the plan knows it.
    """

    recipe: Recipe
    planned: Recipe
    tokenizer: PreTrainedTokenizerBase
    splits: Mapping[str, TokenSplit] | Mapping[str, ExampleSplit]
    train_rows: int
    validation_rows: int
    fingerprints: Mapping[str, str]
    report: Mapping[str, Any]
    source: str
    tokens_per_step: int | None
    sequences: Callable[[Plan], TrainingSequences]
    _score: Callable[..., Likelihood]
    _objective: Mapping[str, Any]

    def build(self, plan: Plan, device: torch.device) -> PreTrainedModel:
        """The model to train on its device: fresh, or published with its adapters.

        Raises:
            PlanError: a published model cannot be loaded; RecipeError: its adapters match nothing.
        """
        recipe = self.recipe
        if not self.source:
            end = int(self.tokenizer.eos_token_id)
            return build(recipe, vocabulary=len(self.tokenizer), end_of_text_id=end, attention=plan.attention, device=device)
        frozen = recipe.adapter is not None
        model = load_model(self.source, Loading(plan.precision if frozen else "fp32", plan.attention, device, recipe.quantize))
        if recipe.adapter is not None:
            attach_adapters(model, recipe.adapter, seed=recipe.seed)
        return model

    def score(
        self, model: PreTrainedModel, split: str, plan: Plan, device: torch.device, *, rows: int, most: int | None = None, stride: int | None = None,
        exact: bool = False, progress: Progress | None = None,
    ) -> Likelihood:  # fmt: skip
        """Score a split, `rows` of the sequence length at a time to begin with.

        Args:
            most: Score at most this many sequences or examples, spread evenly.
            stride: New tokens per window of documents.
            exact: In the model's own arithmetic, not the plan's autocast.

        Raises:
            RequestError: nothing to score, or memory does not hold it.
        """
        autocast = None if exact else Precision(plan.precision).autocast_dtype
        return self._score(model, self.splits[split], rows, plan.loss_chunk, device, autocast, most, stride, progress)

    def identity(self, model: PreTrainedModel) -> dict[str, str]:
        """Fingerprints that a resumed checkpoint must share, by name."""
        digest = hashlib.sha256(json.dumps(self._objective, sort_keys=True).encode()).hexdigest()[:16]
        base = {BASE: fingerprint_of(self.source, model)} if self.source else {}
        return {**self.fingerprints, "objective": digest, **base}

    def baselines(self, split: str) -> dict[str, Any]:
        """Counting baselines on the same tokens, for the record of a score; of documents only."""
        train, scored = self.splits["train"], self.splits[split]
        if not isinstance(train, TokenSplit) or not isinstance(scored, TokenSplit):
            return {}
        return {"baselines": ngram_baselines(train, scored, len(self.tokenizer)).to_json()}

    def lines(self) -> list[str]:
        """What a user should know of the data before training starts."""
        return [*self.report.get("told", ()), *(f"note: {note}" for note in self.report.get("notes", ()))]


def gather(recipe: Recipe, source: str, progress: Progress | None = None) -> Material:
    """Read what the recipe's method trains on.

    Args:
        recipe: Says where the data lie.
        source: Hub id or folder of the published model; empty for a fresh one.
        progress: Told what is going on.

    Raises:
        DataError: the data cannot be read or do not support what the recipe asks; PlanError: the model's tokenizer cannot be read.
    """
    if find_method(recipe.method).reads == "documents":
        return _documents(recipe, prepare(recipe, cache_folder(), progress))
    tokenizer = load_tokenizer(source)
    vocabulary = int(config_of_model(source).get_text_config().vocab_size)
    return _examples(recipe, source, tokenizer, prepare_examples(recipe, tokenizer, progress, vocabulary=vocabulary))


def _documents(recipe: Recipe, data: PreparedData) -> Material:
    sequences = Sequences(data.splits["train"], recipe.sequence_length, recipe.data.layout, recipe.data.long_documents, recipe.seed)

    def score(model: PreTrainedModel, split: TokenSplit, rows: int, chunk: int, device: torch.device, autocast: torch.dtype | None,
              most: int | None, stride: int | None, progress: Progress | None) -> Likelihood:  # fmt: skip
        return score_split(
            model, split, context=recipe.sequence_length, stride=stride, batch_size=rows, chunk_tokens=chunk, device=device, autocast_dtype=autocast,
            max_sequences=most, progress=progress,
        )  # fmt: skip

    objective = {
        "method": recipe.method, "sequence_length": recipe.sequence_length, "layout": recipe.data.layout, "model": recipe.fresh_model.model_dump(),
    }  # fmt: skip
    return Material(
        recipe, recipe, data.tokenizer, data.splits, len(sequences), -(-data.splits["validation"].num_tokens // recipe.sequence_length),
        {"data": data.data_fingerprint, "tokenizer": data.tokenizer_fingerprint}, {**data.report, "told": _told_documents(data)}, "", None,
        lambda plan: sequences, score, objective,
    )  # fmt: skip


def _told_documents(data: PreparedData) -> list[str]:
    told = [
        f"{name}: {split.num_documents:,} documents, {format_bytes(split.num_bytes)}, {split.num_tokens:,} tokens"
        for name, split in data.splits.items()
    ]
    tokenizer = data.tokenizer_report
    rates = f"{tokenizer.characters_per_token:.2f} characters and {tokenizer.bytes_per_token:.2f} bytes per token on validation text"
    return [*told, f"tokenizer: {tokenizer.kind}, {tokenizer.vocabulary:,} entries, {rates} ({tokenizer.verdict})"]


def _examples(recipe: Recipe, source: str, tokenizer: PreTrainedTokenizerBase, data: PreparedExamples) -> Material:
    train, length = data.splits["train"], recipe.sequence_length
    positions = {name: split.num_tokens - split.num_examples for name, split in data.splits.items()}
    mean_positions = positions["train"] / train.num_examples
    planned = as_rows(recipe, positions_per_example=mean_positions, train_examples=train.num_examples)
    tokens_per_step = round(recipe.effective_batch * mean_positions)

    def score(model: PreTrainedModel, split: ExampleSplit, rows: int, chunk: int, device: torch.device, autocast: torch.dtype | None,
              most: int | None, stride: int | None, progress: Progress | None) -> Likelihood:  # fmt: skip
        return score_examples(
            model,
            split,
            budget_tokens=rows * length,
            chunk_tokens=chunk,
            device=device,
            autocast_dtype=autocast,
            max_examples=most,
            progress=progress,
        )

    def sequences(plan: Plan) -> ExampleSequences:
        return ExampleSequences(train, length, "packed" if plan.packing == "packed" else "padded", recipe.seed)

    objective = {
        "method": recipe.method, "sequence_length": length, "model": recipe.model, "quantize": recipe.quantize, "loss_on": recipe.data.loss_on,
        "adapter": None if recipe.adapter is None else recipe.adapter.model_dump(), "template": data.template.identity,
    }  # fmt: skip
    prompts = "messages" if any(example.messages is not None for example in train.examples[:1]) else "text"
    step = f"an optimizer step sees {recipe.effective_batch:,} examples, about {tokens_per_step:,} tokens; the plan counts them as full sequences"
    told = [*_told_examples(data, prompts), f"{step}, {planned.effective_batch:,} of {length:,}"]
    return Material(
        recipe, planned, tokenizer, data.splits, -(-positions["train"] // length), -(-positions["validation"] // length),
        {"data": data.data_fingerprint, "tokenizer": data.tokenizer_fingerprint}, {**data.report, "prompts": prompts, "told": told}, source,
        tokens_per_step, sequences, score, objective,
    )  # fmt: skip


def _told_examples(data: PreparedExamples, prompts: str) -> list[str]:
    told = [
        f"{name}: {split.num_examples:,} examples of {split.num_tokens / split.num_examples:.0f} tokens on average, the longest {split.lengths_E.max():,}; "
        f"{split.num_target_tokens:,} of {split.num_tokens:,} tokens are learned"
        for name, split in data.splits.items()
    ]
    messages = "the tokenizer's chat template" if data.template.style == "chat" else "plain headings"
    return [*told, f"prompts: {prompts}, {messages if prompts == 'messages' else 'as they stand'}"]
