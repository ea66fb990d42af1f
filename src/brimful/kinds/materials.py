"""What a run trains on and is scored on, by what its method reads: documents, examples with
answers, texts with labels. Sees every stage.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.env import cache_folder
from brimful.base.errors import RequestError
from brimful.base.units import format_bytes
from brimful.classification.forward import ClassifierForward
from brimful.classification.thresholds import parse_policy
from brimful.data.example_batches import ExampleSequences
from brimful.data.examples import ExampleSplit, PreparedExamples, prepare_examples
from brimful.data.labelled import LabelledTexts, read_labelled
from brimful.data.labelled_batches import (
    PASS_OVERHEAD,
    EncodedLabels,
    LabelledSequences,
    Passes,
    class_weights,
    encode_split,
    pad_id_of,
    positions_per_text,
    told_of,
)
from brimful.data.labels import Labels
from brimful.data.masking import MaskedSequences, MaskingRules
from brimful.data.prepare import PreparedData, prepare
from brimful.data.sequences import TokenSequences
from brimful.data.tokenizer import tokenizer_fingerprint
from brimful.data.tokens import Progress, TokenSplit
from brimful.evaluation.baselines import ngram_baselines
from brimful.evaluation.completions import score_examples
from brimful.evaluation.label_scores import metric_name, objective, quick_metrics
from brimful.evaluation.likelihood import Likelihood, score_split
from brimful.evaluation.masked import score_masked
from brimful.model.build import build
from brimful.model.catalog import config_of_model
from brimful.model.description import is_encoder
from brimful.model.published import (
    Loading,
    attach_adapters,
    fingerprint_of,
    load_model,
    load_tokenizer,
)
from brimful.model.sequence_classifier import load_with_fresh_head, refuse_more_positions
from brimful.planning.plan import Plan
from brimful.planning.rows import as_rows
from brimful.recipe import Recipe
from brimful.training.loop import Sequences as TrainingSequences
from brimful.training.method import find_method
from brimful.training.precision import Precision

BASE = "base model"
"""Name of the published model's fingerprint."""


def _validate_likelihood(
    material: "Material", model: PreTrainedModel, plan: Plan, device: torch.device, rows: int
) -> dict[str, Any]:
    likelihood = material.score(
        model, "validation", plan, device, rows=rows, most=material.recipe.evaluation.max_sequences
    )
    kept = ("loss", "perplexity", "bits_per_byte", "tokens", "seconds")
    return {key: value for key, value in likelihood.to_json().items() if key in kept} | {
        "batch_sizes": list(likelihood.batch_sizes)
    }


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
        tokens_per_step: Tokens that the examples of an optimizer step have on average; None for
            documents, of which the plan knows it.
    """

    recipe: Recipe
    planned: Recipe
    tokenizer: PreTrainedTokenizerBase
    splits: Mapping[str, TokenSplit] | Mapping[str, ExampleSplit] | Mapping[str, EncodedLabels]
    train_rows: int
    validation_rows: int
    fingerprints: Mapping[str, str]
    report: Mapping[str, Any]
    source: str
    tokens_per_step: int | None
    sequences: Callable[[Plan], TrainingSequences]
    _score: Callable[..., Likelihood]
    _objective: Mapping[str, Any]
    _validate: Callable[["Material", PreTrainedModel, Plan, torch.device, int], dict[str, Any]] = (
        _validate_likelihood
    )
    labels: Labels | None = None
    """What texts are sorted into; None where the method reads no labels."""
    weights_C: NDArray[np.float32] | None = None
    """How much a text counts by its label; None: all alike."""

    def build(self, plan: Plan, device: torch.device) -> PreTrainedModel:
        """The model to train on its device: fresh, or published with its adapters.

        Raises:
            PlanError: a published model cannot be loaded; RecipeError: its adapters match nothing.
        """
        recipe = self.recipe
        if self.labels is not None:
            names, pad_id = self.labels.names, pad_id_of(self.tokenizer)
            model = load_with_fresh_head(
                self.source,
                names,
                multiple=self.labels.multiple,
                pad_id=pad_id,
                attention=plan.attention,
                device=device,
                seed=recipe.seed,
            )
            refuse_more_positions(recipe.sequence_length, model, self.source)
            return model
        if not self.source:
            end = int(self.tokenizer.eos_token_id)
            return build(
                recipe,
                vocabulary=len(self.tokenizer),
                end_of_text_id=end,
                attention=plan.attention,
                device=device,
            )
        frozen = recipe.adapter is not None
        model = load_model(
            self.source,
            Loading(plan.precision if frozen else "fp32", plan.attention, device, recipe.quantize),
        )
        if recipe.adapter is not None:
            attach_adapters(model, recipe.adapter, seed=recipe.seed)
        return model

    def score(
        self,
        model: PreTrainedModel,
        split: str,
        plan: Plan,
        device: torch.device,
        *,
        rows: int,
        most: int | None = None,
        stride: int | None = None,
        exact: bool = False,
        progress: Progress | None = None,
    ) -> Likelihood:
        """Score a split, `rows` of the sequence length at a time to begin with.

        Args:
            most: Score at most this many sequences or examples, spread evenly.
            stride: New tokens per window of documents.
            exact: In the model's own arithmetic, not the plan's autocast.

        Raises:
            RequestError: nothing to score, or memory does not hold it.
        """
        autocast = None if exact else Precision(plan.precision).autocast_dtype
        return self._score(
            model,
            self.splits[split],
            rows,
            plan.loss_chunk,
            device,
            autocast,
            most,
            stride,
            progress,
        )

    @property
    def known_labels(self) -> Labels:
        """What texts are sorted into.

        Raises:
            RequestError: the method reads no labels.
        """
        if self.labels is None:
            raise self._without_labels()
        return self.labels

    def encoded(self, split: str) -> EncodedLabels:
        """A split of labelled texts.

        Raises:
            RequestError: the method reads no labels.
        """
        found = self.splits[split]
        if not isinstance(found, EncodedLabels):
            raise self._without_labels()
        return found

    def _without_labels(self) -> RequestError:
        return RequestError(
            f"{self.recipe.name} was trained by method {self.recipe.method}, which knows no labels."
        )

    def validate(
        self, model: PreTrainedModel, plan: Plan, device: torch.device, *, rows: int
    ) -> dict[str, Any]:
        """What an evaluation in mid-training records of the validation split, at most
        `evaluation.max_sequences` of it.

        Raises:
            RequestError: as `score`.
        """
        return self._validate(self, model, plan, device, rows)

    def identity(self, model: PreTrainedModel) -> dict[str, str]:
        """Fingerprints that a resumed checkpoint must share, by name."""
        digest = hashlib.sha256(json.dumps(self._objective, sort_keys=True).encode()).hexdigest()[
            :16
        ]
        base = {BASE: fingerprint_of(self.source, model)} if self.source else {}
        return {**self.fingerprints, "objective": digest, **base}

    def baselines(self, split: str) -> dict[str, Any]:
        """Counting baselines on the same tokens, for the record of a score; of documents that are
        read from left to right only.
        """
        train, scored = self.splits["train"], self.splits[split]
        if (
            not isinstance(train, TokenSplit)
            or not isinstance(scored, TokenSplit)
            or is_encoder(self.recipe.fresh_model)
        ):
            return {}
        return {"baselines": ngram_baselines(train, scored, len(self.tokenizer)).to_json()}

    def lines(self) -> list[str]:
        """What a user should know of the data before training starts."""
        return [
            *self.report.get("told", ()),
            *(f"note: {note}" for note in self.report.get("notes", ())),
        ]


def gather(recipe: Recipe, source: str, progress: Progress | None = None) -> Material:
    """Read what the recipe's method trains on.

    Args:
        recipe: Says where the data lie.
        source: Hub id or folder of the published model; empty for a fresh one.
        progress: Told what is going on.

    Raises:
        DataError: the data cannot be read or do not support what the recipe asks; PlanError: the
            model's tokenizer cannot be read.
    """
    reads = find_method(recipe.method).reads
    if reads == "documents":
        data = prepare(recipe, cache_folder(), progress)
        return _masked(recipe, data) if is_encoder(recipe.fresh_model) else _documents(recipe, data)
    if reads == "labels":
        return _labelled(recipe, source, read_labelled(recipe, progress))
    tokenizer = load_tokenizer(source)
    vocabulary = int(config_of_model(source).get_text_config().vocab_size)
    return _examples(
        recipe,
        source,
        tokenizer,
        prepare_examples(recipe, tokenizer, progress, vocabulary=vocabulary),
    )


def _documents(recipe: Recipe, data: PreparedData) -> Material:
    sequences = TokenSequences(
        data.splits["train"],
        recipe.sequence_length,
        recipe.data.layout,
        recipe.data.long_documents,
        recipe.seed,
    )

    def score(
        model: PreTrainedModel,
        split: TokenSplit,
        rows: int,
        chunk: int,
        device: torch.device,
        autocast: torch.dtype | None,
        most: int | None,
        stride: int | None,
        progress: Progress | None,
    ) -> Likelihood:
        return score_split(
            model,
            split,
            context=recipe.sequence_length,
            stride=stride,
            batch_size=rows,
            chunk_tokens=chunk,
            device=device,
            autocast_dtype=autocast,
            max_sequences=most,
            progress=progress,
        )

    objective = {
        "method": recipe.method,
        "sequence_length": recipe.sequence_length,
        "layout": recipe.data.layout,
        "model": recipe.fresh_model.model_dump(),
    }
    return Material(
        recipe,
        recipe,
        data.tokenizer,
        data.splits,
        len(sequences),
        -(-data.splits["validation"].num_tokens // recipe.sequence_length),
        {"data": data.data_fingerprint, "tokenizer": data.tokenizer_fingerprint},
        {**data.report, "told": _told_documents(data)},
        "",
        None,
        lambda plan: sequences,
        score,
        objective,
    )


def _masked(recipe: Recipe, data: PreparedData) -> Material:
    """Documents of which some tokens are hidden."""
    plain, length, rules = (
        _documents(recipe, data),
        recipe.sequence_length,
        MaskingRules(recipe.data.masked_share, len(data.tokenizer), recipe.seed),
    )
    sequences = MaskedSequences(
        data.splits["train"], length, recipe.data.layout, recipe.data.long_documents, rules
    )

    def score(
        model: PreTrainedModel,
        split: TokenSplit,
        rows: int,
        chunk: int,
        device: torch.device,
        autocast: torch.dtype | None,
        most: int | None,
        stride: int | None,
        progress: Progress | None,
    ) -> Likelihood:
        if stride is not None:
            raise RequestError(
                f"{recipe.name} reads both sides of what is masked; a stride would give it no more"
                " to read. Leave --stride out."
            )
        return score_masked(
            model,
            split,
            rules,
            context=length,
            batch_size=rows,
            chunk_tokens=chunk,
            device=device,
            autocast_dtype=autocast,
            max_sequences=most,
            progress=progress,
        )

    told = (
        f"{rules.share:.0%} of the tokens of a sequence are hidden, other ones every time, and"
        " predicted from both sides"
    )
    return replace(
        plain,
        train_rows=len(sequences),
        validation_rows=-(-data.splits["validation"].num_tokens // (length - 1)),
        report={**plain.report, "told": [*plain.report["told"], told]},
        sequences=lambda plan: sequences,
        _score=score,
        _objective={**plain._objective, "masked_share": rules.share},
    )


def _told_documents(data: PreparedData) -> list[str]:
    told = [
        f"{name}: {split.num_documents:,} documents, {format_bytes(split.num_bytes)},"
        f" {split.num_tokens:,} tokens"
        for name, split in data.splits.items()
    ]
    tokenizer = data.tokenizer_report
    rates = (
        f"{tokenizer.characters_per_token:.2f} characters and {tokenizer.bytes_per_token:.2f} bytes"
        " per token on validation text"
    )
    return [
        *told,
        (
            f"tokenizer: {tokenizer.kind}, {tokenizer.vocabulary:,} entries, {rates}"
            f" ({tokenizer.verdict})"
        ),
    ]


def _examples(
    recipe: Recipe, source: str, tokenizer: PreTrainedTokenizerBase, data: PreparedExamples
) -> Material:
    train, length = data.splits["train"], recipe.sequence_length
    positions = {name: split.num_tokens - split.num_examples for name, split in data.splits.items()}
    mean_positions = positions["train"] / train.num_examples
    planned = as_rows(
        recipe, positions_per_example=mean_positions, train_examples=train.num_examples
    )
    tokens_per_step = round(recipe.effective_batch * mean_positions)

    def score(
        model: PreTrainedModel,
        split: ExampleSplit,
        rows: int,
        chunk: int,
        device: torch.device,
        autocast: torch.dtype | None,
        most: int | None,
        stride: int | None,
        progress: Progress | None,
    ) -> Likelihood:
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
        return ExampleSequences(
            train, length, "packed" if plan.packing == "packed" else "padded", recipe.seed
        )

    objective = {
        "method": recipe.method,
        "sequence_length": length,
        "model": recipe.model,
        "quantize": recipe.quantize,
        "loss_on": recipe.data.loss_on,
        "adapter": None if recipe.adapter is None else recipe.adapter.model_dump(),
        "template": data.template.identity,
    }
    prompts = (
        "messages"
        if any(example.messages is not None for example in train.examples[:1])
        else "text"
    )
    step = (
        f"an optimizer step sees {recipe.effective_batch:,} examples, about {tokens_per_step:,}"
        " tokens; the plan counts them as full sequences"
    )
    told = [*_told_examples(data, prompts), f"{step}, {planned.effective_batch:,} of {length:,}"]
    return Material(
        recipe,
        planned,
        tokenizer,
        data.splits,
        -(-positions["train"] // length),
        -(-positions["validation"] // length),
        {"data": data.data_fingerprint, "tokenizer": data.tokenizer_fingerprint},
        {**data.report, "prompts": prompts, "told": told},
        source,
        tokens_per_step,
        sequences,
        score,
        objective,
    )


def _told_examples(data: PreparedExamples, prompts: str) -> list[str]:
    told = [
        f"{name}: {split.num_examples:,} examples of {split.num_tokens / split.num_examples:.0f}"
        f" tokens on average, the longest {split.lengths_E.max():,}; {split.num_target_tokens:,} of"
        f" {split.num_tokens:,} tokens are learned"
        for name, split in data.splits.items()
    ]
    messages = (
        "the tokenizer's chat template" if data.template.style == "chat" else "plain headings"
    )
    return [*told, f"prompts: {prompts}, {messages if prompts == 'messages' else 'as they stand'}"]


def _labelled(recipe: Recipe, source: str, data: LabelledTexts) -> Material:
    metric_name(
        recipe.label_rules.metric, data.labels
    )  # this and the next say before training what there is not
    parse_policy(recipe.label_rules.threshold)
    tokenizer = load_tokenizer(source, ends_texts=False)
    splits = {
        name: encode_split(name, split, tokenizer, recipe) for name, split in data.splits.items()
    }
    train, length = splits["train"], recipe.sequence_length
    weights_C = class_weights(train.split.targets, data.labels, recipe.label_rules.class_weights)
    pad_id = pad_id_of(tokenizer)

    def sequences(plan: Plan) -> LabelledSequences:
        return LabelledSequences(train, weights_C, passes_for(pad_id, recipe, plan), recipe.seed)

    objective = {
        "method": recipe.method,
        "sequence_length": length,
        "model": recipe.model,
        "labels": recipe.label_rules.model_dump(),
        "names": data.labels.names,
    }
    positions = positions_per_text(train, recipe)
    known = recipe.label_rules.model_copy(
        update={"names": list(data.labels.names)}
    )  # how many there are counts in the plan
    planned = as_rows(
        recipe, positions_per_example=positions, train_examples=len(train)
    ).model_copy(update={"labels": known})
    rows = {name: max(1, round(len(split) * positions / length)) for name, split in splits.items()}
    told = [
        *told_of(splits, data.labels, weights_C),
        (
            f"an optimizer step sees {recipe.effective_batch:,} texts; the plan counts them as full"
            f" sequences, {planned.effective_batch:,} of {length:,}"
        ),
    ]
    return Material(
        recipe,
        planned,
        tokenizer,
        splits,
        rows["train"],
        rows["validation"],
        {"data": data.fingerprint, "tokenizer": tokenizer_fingerprint(tokenizer)},
        {**data.report, "told": told},
        source,
        round(recipe.effective_batch * train.num_tokens / len(train)),
        sequences,
        _no_likelihood,
        objective,
        _validate_labels,
        data.labels,
        weights_C,
    )


def passes_for(pad_id: int, recipe: Recipe, plan: Plan) -> Passes:
    """How labelled texts become rows on the plan's device."""
    return Passes(pad_id, recipe.sequence_length, PASS_OVERHEAD[str(plan.device["kind"])])


def _no_likelihood(*_: object) -> Likelihood:
    raise RequestError(
        "a classifier has no likelihood of texts; `brimful evaluate RUN` scores its labels."
    )


def _validate_labels(
    material: Material, model: PreTrainedModel, plan: Plan, device: torch.device, rows: int
) -> dict[str, Any]:
    """Metrics at even odds on texts that do not stand in training; `objective` is what the best
    model has least of.
    """
    started_s = time.perf_counter()
    recipe, labels, encoded = material.recipe, material.known_labels, material.encoded("validation")
    numbers = np.flatnonzero(~encoded.split.is_repeated_E)
    if (most := recipe.evaluation.max_sequences) is not None and most < len(numbers):
        numbers = numbers[np.linspace(0, len(numbers) - 1, most).astype(np.int64)]
    passes = passes_for(pad_id_of(material.tokenizer), recipe, plan)
    autocast = (
        None if device.type == "cpu" else Precision(plan.precision).autocast_dtype
    )  # bf16 logits rank few texts apart
    forward = ClassifierForward(model, passes, rows * recipe.sequence_length, device, autocast)
    logits_EC = forward.logits([encoded.ids(number) for number in numbers.tolist()])
    natural_EC = logits_EC if material.weights_C is None else logits_EC - np.log(material.weights_C)
    metrics = quick_metrics(natural_EC, encoded.split.targets[numbers], labels)
    sizes = [-(-budget // recipe.sequence_length) for budget in forward.budgets]
    best_by = objective(metrics, recipe.label_rules.metric, labels)
    return {
        **metrics,
        "objective": best_by,
        "seconds": time.perf_counter() - started_s,
        "batch_sizes": sizes,
    }
