"""Classifiers after training: calibrated on validation, scored on held-out texts, beside a bag of
words. An overview: it sees every stage.
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

from brimful.base.env import cache_folder
from brimful.base.errors import RequestError
from brimful.base.rundir import write_text_atomically
from brimful.classification.calibration import choose_calibration
from brimful.classification.classifier import load_classifier, load_forward
from brimful.classification.record import ClassifierRecord, save_classifier
from brimful.data.labelled import read_labelled
from brimful.data.preparation import preparation_identity
from brimful.data.tokens import Progress
from brimful.evaluation.label_scores import score_labels
from brimful.evaluation.nats import Nats, write_nats
from brimful.kinds.materials import Material
from brimful.recipe import Recipe


def pretraining_of(first: Recipe, recipe: Recipe, progress: Progress | None = None) -> Recipe:
    """The recipe of a classifier's encoder, with the classifier's own training texts among what it
    reads, or in place of it, where that is wanted.

    The texts lie in the cache, under a name made of what they hold; their labels play no part. The
    run gets a name of its own.

    Raises:
        DataError: as `read_labelled`.
        RequestError: the encoder's recipe trains no encoder.
    """
    wanted = recipe.label_rules.pretrain
    if recipe.method != "classify" or wanted == "as_written":
        return first
    if first.method != "mlm":
        raise RequestError(
            f"labels.pretrain: {first.name} is a recipe of method {first.method}; only method mlm"
            " reads texts without labels."
        )
    lines = "".join(
        f"{json.dumps({'text': text}, ensure_ascii=False)}\n"
        for text in read_labelled(recipe, progress).splits["train"].texts
    )
    path = cache_folder() / "texts" / f"{xxhash.xxh3_128_hexdigest(lines.encode())}.jsonl"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text_atomically(path, lines)
    paths = [str(path), *(first.data.paths if wanted == "with_texts" else ())]
    data = first.data.model_copy(
        update={
            "path": paths,
            "text_column": "text",
            "file_type": "auto",
            "header": "auto",
            "encoding": "utf-8",
        }
    )
    changed = {
        "data": data,
        "run": first.run.model_copy(update={"name": f"{first.run_name}-for-{recipe.run_name}"}),
        "description": (
            f"the encoder of {recipe.run_name}, pre-trained on its training"
            f" texts{' beside its own' if wanted == 'with_texts' else ''} without their labels"
        ),
        "tokenizer": first.own_tokenizer.model_copy(update={"fewer": "accept"}),
    }
    return first.model_copy(update=changed)


def calibrate(run_folder: Path, material: Material, device: torch.device) -> ClassifierRecord:
    """Fit the temperature and choose the thresholds of a trained model on its validation split, and
    keep both in the run.

    Texts that stand in training do not count.

    Raises:
        RequestError: the threshold's policy is unknown.
    """
    labels, rules, encoded = (
        material.known_labels,
        material.recipe.label_rules,
        material.encoded("validation"),
    )
    length, kept = material.recipe.sequence_length, np.flatnonzero(~encoded.split.is_repeated_E)
    targets = encoded.split.targets[kept]
    forward, _ = load_forward(run_folder, labels, length, device)
    logits_EC = forward.logits([encoded.ids(number) for number in kept.tolist()])
    log_weights_C = None if material.weights_C is None else np.log(material.weights_C)
    calibration = choose_calibration(logits_EC, targets, labels, rules.threshold, log_weights_C)
    record = ClassifierRecord(
        labels,
        calibration,
        tuple(rules.preprocess),
        preparation_identity(rules.preprocess),
        length,
        logits_EC,
        targets,
    )
    save_classifier(run_folder, record)
    return record


def calibration_lines(record: ClassifierRecord) -> list[str]:
    """What was chosen on validation, for the terminal."""
    calibration, labels = record.calibration, record.labels
    told = (
        f"calibrated on {len(record.validation_targets):,} validation texts: temperature"
        f" {calibration.temperature:.2f}"
    )
    return [told, *calibration.lines(labels), *calibration.notes(labels)]


def score(
    run_folder: Path,
    material: Material,
    names: list[str],
    device: torch.device,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The records of scores.json for splits of a run's own data; nats of every text are kept beside
    them.

    Raises:
        RequestError: memory does not hold one text.
    """
    # A second that training does not need.
    from brimful.evaluation.bag_of_words import (  # noqa: PLC0415
        bag_of_words,
    )

    classifier = load_classifier(run_folder, device)
    calibration = classifier.record.calibration
    train, validation = (material.encoded(name).split for name in ("train", "validation"))
    floor = bag_of_words(train, validation, material.known_labels, calibration.policy)
    made: dict[str, Any] = {}
    for name in names:
        encoded = material.encoded(name)
        started_s = time.perf_counter()
        logits_EC = classifier.forward.logits(
            [encoded.ids(number) for number in range(len(encoded))], progress
        )
        seconds = time.perf_counter() - started_s
        rival = None if name == "train" else floor.on(encoded.split)
        scores = score_labels(
            logits_EC,
            encoded.split,
            labels=material.known_labels,
            calibration=calibration,
            seconds=seconds,
            floor=rival,
        )
        write_nats(run_folder, name, Nats(scores.nats_E, np.ones(scores.examples, np.int64)))
        made[name] = scores.to_json()
    return made
