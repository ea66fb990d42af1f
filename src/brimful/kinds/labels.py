"""Runs on texts with labels: a published model becomes a classifier, which is calibrated on
validation and scored beside a bag of words.
"""

import json
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NoReturn, Self

import numpy as np
import torch
import xxhash
from rich.console import Console
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from brimful.base.console import console_printer
from brimful.base.env import cache_folder
from brimful.base.errors import RequestError
from brimful.base.rundir import write_text_atomically
from brimful.base.text import plural
from brimful.base.types import Json, JsonDict, Numbers, Progress
from brimful.base.warning_codes import as_note
from brimful.classification.calibration import choose_calibration
from brimful.classification.classifier import load_classifier, load_forward
from brimful.classification.forward import ClassifierForward
from brimful.classification.record import ClassifierRecord, save_classifier
from brimful.classification.thresholds import parse_policy
from brimful.data.batches import MicroBatch
from brimful.data.bins import spread_evenly
from brimful.data.labelled import LabelledTexts, read_labelled
from brimful.data.labelled_batches import (
    PASS_OVERHEAD,
    LabelledSequences,
    Passes,
    pad_id_of,
    positions_per_text,
)
from brimful.data.labelled_tokens import EncodedLabels, class_weights, encode_splits, told_of
from brimful.data.packed_passes import PackedPasses
from brimful.data.preparation import preparation_identity
from brimful.data.tokenizer import tokenizer_fingerprint
from brimful.evaluation.label_scores import metric_name, objective, quick_metrics, score_labels
from brimful.evaluation.nats import Nats, write_nats
from brimful.generation.load import trained_folder
from brimful.kinds.finished import TrainedRun
from brimful.kinds.run_data import LaidOutRunData, ScoringOptions
from brimful.model.published import copy_mapped_weights, hold_weights
from brimful.model.sequence_classifier import check_max_positions, load_with_fresh_head
from brimful.model.tokenizer import load_tokenizer
from brimful.planning.plan import Plan
from brimful.planning.rows import as_rows
from brimful.planning.step import StepSpec
from brimful.recipe import Recipe
from brimful.recipe.labels import recipe_of_encoder
from brimful.training.precision import Precision


class LabelledRunData(LaidOutRunData[EncodedLabels]):
    """Texts that a published model learns to label.

    Attributes:
        labels: What texts are sorted into.
        weights_C: How much a text counts by its label; None: all alike.
        log_weights_C: log of how much a label counts beside its frequency in use, by these weights
            and by the share of its texts that was kept; None: all alike.
    """

    has_likelihood = False

    def __init__(
        self, recipe: Recipe, source: str, tokenizer: PreTrainedTokenizerBase, data: LabelledTexts
    ) -> None:
        splits, report = encode_splits(data, tokenizer, recipe)
        fingerprints = {"data": data.fingerprint, "tokenizer": tokenizer_fingerprint(tokenizer)}
        super().__init__(
            recipe,
            tokenizer,
            splits,
            fingerprints=fingerprints,
            report=report,
            source=source,
        )
        self.labels = data.labels
        targets = splits["train"].split.targets
        self.weights_C = class_weights(targets, data.labels, recipe.label_rules.class_weights)
        self.log_weights_C = None if self.weights_C is None else np.log(self.weights_C)
        if data.log_kept_C is not None:
            self.log_weights_C = data.log_kept_C + (
                0.0 if self.log_weights_C is None else self.log_weights_C
            )

    @classmethod
    def gather(cls, recipe: Recipe, source: str, progress: Progress | None = None) -> Self:
        data = read_labelled(recipe, progress)
        # Both raise before training if the recipe names a metric or threshold that does not exist.
        metric_name(recipe.label_rules.metric, data.labels)
        parse_policy(recipe.label_rules.threshold)
        return cls(recipe, source, load_tokenizer(source, ends_texts=False), data)

    @classmethod
    def blank(cls, step: StepSpec, samples: int) -> MicroBatch:
        inputs_BT = torch.zeros((samples, step.sequence_length), dtype=torch.int64)
        targets = torch.zeros(samples, dtype=torch.int64)
        if "several" in step.options:
            targets = torch.zeros(samples, step.options["labels"])
        weights = torch.ones(targets.shape) if "weighted" in step.options else None
        return MicroBatch(inputs_BT, targets, weights=weights)

    @classmethod
    def base_recipe(cls, base: Recipe, recipe: Recipe, progress: Progress | None = None) -> Recipe:
        """Return `recipe_of_encoder`, for which the training texts are stored in the cache without
        their labels, under a digest of their content.

        Raises:
            DataError: as `read_labelled`.
            RequestError: the recipe trains no encoder.
        """

        def texts() -> JsonDict:
            read_as = {"text_column": "text", "file_type": "auto", "header": "auto"}
            return {"path": [str(_texts_file(recipe, progress))], "encoding": "utf-8", **read_as}

        return recipe_of_encoder(base, recipe, texts)

    @classmethod
    def source_of_finished(cls, run_folder: Path) -> str:
        return str(trained_folder(run_folder))

    @classmethod
    def refuse_evaluation(cls, run_folder: Path, *, untuned: bool, only_splits: bool) -> None:
        if untuned:
            raise RequestError(
                f"{run_folder.name} is a classifier: before tuning its head was random, so there"
                " is nothing to score. Leave out --untuned."
            )
        if not only_splits:
            raise RequestError(
                f"{run_folder.name} is a classifier: it is scored on the labels of its own splits."
                " Leave out tasks and all but --split."
            )

    @cached_property
    def planned(self) -> Recipe:
        # The number of labels counts in the plan.
        names = {
            "names": list(self.labels.names),
            "kind": "multiple" if self.labels.multiple else "single",
        }
        rows = as_rows(
            self.recipe,
            positions_per_example=self.mean_positions,
            train_examples=len(self.splits["train"]),
        )
        return rows.model_copy(update={"labels": self.recipe.label_rules.model_copy(update=names)})

    @property
    def weights(self) -> Numbers:
        weights_C = [] if self.weights_C is None else self.weights_C.tolist()
        return dict(zip(self.labels.names, weights_C, strict=False))

    @cached_property
    def mean_positions(self) -> float:
        return positions_per_text(self.splits["train"], self.recipe)

    def _rows(self, split: str) -> int:
        positions = len(self.splits[split]) * self.mean_positions
        return max(1, round(positions / self.recipe.sequence_length))

    @property
    def train_rows(self) -> int:
        return self._rows("train")

    @property
    def validation_rows(self) -> int:
        return self._rows("validation")

    @property
    def tokens_per_step(self) -> int:
        train = self.splits["train"]
        return round(self.recipe.effective_batch * train.num_tokens / len(train))

    @property
    def objective(self) -> Json:
        # Keys that older versions did not have stand in no checkpoint of theirs.
        newer = {"length_window": 1, "rebalance": None}
        rules = {
            name: value
            for name, value in self.recipe.label_rules.model_dump().items()
            if name not in newer or value != newer[name]
        }
        return {
            "method": self.recipe.method,
            "sequence_length": self.recipe.sequence_length,
            "model": self.recipe.model,
            "labels": rules,
            "names": self.labels.names,
        }

    def build(self, plan: Plan, device: torch.device) -> PreTrainedModel:
        """Return the published model with a fresh head for the labels.

        Raises:
            PlanError: it cannot be loaded, or reads fewer positions than the recipe asks.
        """
        model = load_with_fresh_head(
            self.source,
            self.labels.names,
            multiple=self.labels.multiple,
            pad_id=self._pad_id,
            attention=plan.attention,
            device=device,
            seed=self.recipe.seed,
        )
        check_max_positions(self.recipe.sequence_length, model, self.source)
        hold_weights(model, self.recipe.optimizer.weights)
        copy_mapped_weights(model)
        return model

    @property
    def _pad_id(self) -> int:
        return pad_id_of(self.tokenizer, self.embedding_rows)

    def _passes(self, device_kind: str) -> Passes:
        """Return how texts become rows on a kind of device."""
        overhead = PASS_OVERHEAD[device_kind]
        return Passes(self._pad_id, self.recipe.sequence_length, overhead)

    def _sequences(self, packing: str, device_kind: str) -> LabelledSequences:
        passes: Passes | PackedPasses = self._passes(device_kind)
        if packing == "packed":
            passes = PackedPasses(self._pad_id, self.recipe.sequence_length)
        return LabelledSequences(
            self.splits["train"],
            self.weights_C,
            passes,
            self.recipe.seed,
            self.recipe.effective_batch,
            self.recipe.label_rules.length_window,
        )

    def score(self, model: PreTrainedModel, split: str, options: ScoringOptions) -> NoReturn:
        """Raise RequestError: a classifier has no likelihood."""
        raise RequestError(
            "a classifier has no likelihood of texts; `brimful evaluate RUN` scores its labels."
        )

    def validate(
        self, model: PreTrainedModel, plan: Plan, device: torch.device, *, rows: int
    ) -> JsonDict:
        """Return metrics at even odds on validation texts that do not also stand in training;
        `objective` is the value that the best model has least of.
        """
        started_s = time.perf_counter()
        recipe, encoded = self.recipe, self.splits["validation"]
        numbers = np.flatnonzero(~encoded.split.is_repeated_E)
        numbers = numbers[spread_evenly(len(numbers), recipe.evaluation.max_sequences)]
        autocast, length = Precision(plan.precision).autocast_dtype, recipe.sequence_length
        forward = ClassifierForward(
            model, self._passes(str(plan.device["kind"])), rows * length, device, autocast
        )
        logits_EC = forward.logits([encoded.ids(number) for number in numbers.tolist()])
        if self.log_weights_C is not None:
            logits_EC = logits_EC - self.log_weights_C
        metrics = quick_metrics(logits_EC, encoded.split.targets[numbers], self.labels)
        return {
            **metrics,
            "objective": objective(metrics, recipe.label_rules.metric, self.labels),
            "seconds": time.perf_counter() - started_s,
            "batch_sizes": [-(-budget // length) for budget in forward.budgets],
        }

    def describe(self) -> list[str]:
        return [
            *told_of(self.splits, self.labels, self.weights_C),
            f"an optimizer step sees {plural(self.recipe.effective_batch, 'text')}; the plan counts"
            f" them as full sequences, {self.planned.effective_batch:,} of"
            f" {self.recipe.sequence_length:,}",
        ]

    def finish(self, run_folder: Path, plan: Plan, console: Console) -> None:
        """Calibrate the classifier on validation, and print what was chosen."""
        record = self.calibrate(run_folder, torch.device(str(plan.device["kind"])))
        calibration = record.calibration
        fitted = (
            f"calibrated on {len(record.validation_targets):,} validation texts: temperature"
            f" {calibration.temperature:.2f}"
        )
        lines = [
            fitted,
            *calibration.lines(self.labels),
            *(as_note(each, "B211") for each in calibration.notes(self.labels)),
        ]
        console_printer(console)("\n".join(lines))

    def calibrate(self, run_folder: Path, device: torch.device) -> ClassifierRecord:
        """Fit the temperature and choose the thresholds of the trained model on the validation
        split, and keep both in the run folder.

        Texts that also stand in training are left out.

        Raises:
            RequestError: the threshold's policy is unknown.
        """
        rules, length, encoded = (
            self.recipe.label_rules,
            self.recipe.sequence_length,
            self.splits["validation"],
        )
        kept = np.flatnonzero(~encoded.split.is_repeated_E)
        targets = encoded.split.targets[kept]
        forward, _ = load_forward(
            run_folder, self.labels, length, device, precision=self.recipe.plan.precision
        )
        logits_EC = forward.logits([encoded.ids(number) for number in kept.tolist()])
        calibration = choose_calibration(
            logits_EC, targets, self.labels, rules.threshold, self.log_weights_C
        )
        record = ClassifierRecord(
            self.labels,
            calibration,
            tuple(rules.preprocess),
            preparation_identity(rules.preprocess),
            length,
            logits_EC,
            targets,
        )
        save_classifier(run_folder, record)
        return record

    def score_finished(
        self,
        run: TrainedRun,
        folder: Path,
        names: Sequence[str],
        stride: int | None,
        progress: Progress,
    ) -> JsonDict:
        """Score the labels of whole splits, beside those of a bag of words.

        Raises:
            RequestError: memory does not hold one text.
        """
        # Takes a second to import, which training does not need.
        from brimful.evaluation.bag_of_words import bag_of_words  # noqa: PLC0415

        classifier = load_classifier(run.folder, run.device, world=run.world)
        calibration = classifier.record.calibration
        train, validation = self.splits["train"].split, self.splits["validation"].split
        floor = bag_of_words(train, validation, self.labels, calibration.policy)
        records: JsonDict = {}
        for name in names:
            encoded = self.splits[name]
            started_s = time.perf_counter()
            texts = [encoded.ids(number) for number in range(len(encoded))]
            logits_EC = classifier.forward.logits(texts, progress)
            records[name], nats_E = score_labels(
                logits_EC,
                encoded.split,
                labels=self.labels,
                calibration=calibration,
                seconds=time.perf_counter() - started_s,
                floor=None if name == "train" else floor.on(encoded.split),
            )
            write_nats(folder, name, Nats(nats_E, np.ones(len(nats_E), np.int64)))
        return records


def _texts_file(recipe: Recipe, progress: Progress | None) -> Path:
    """Write the training texts of a classifier, without labels, to the cache."""
    rows = [
        json.dumps({"text": text}, ensure_ascii=False)
        for text in read_labelled(recipe, progress).splits["train"].texts
    ]
    lines = "".join(f"{row}\n" for row in rows)
    path = cache_folder() / "texts" / f"{xxhash.xxh3_128_hexdigest(lines.encode())}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, lines)
    return path


RUN_DATA = LabelledRunData
