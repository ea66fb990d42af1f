"""What a finished classifier needs beside its weights, kept in the run: classifier.json, and the
validation logits in classifier.safetensors.

The logits stay so that another threshold can be chosen later, on the same texts as the first:
`--threshold 'precision>=0.95'`.
"""

import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError

from brimful.base.arrays import Array, Floats32
from brimful.base.errors import RequestError, RunFolderError
from brimful.base.manifest import sha256_of
from brimful.base.rundir import SCHEMA_VERSION, fsync_folder, read_json, write_json_atomically
from brimful.base.types import Json, Texts
from brimful.classification.calibration import LabelCalibration, choose_thresholds
from brimful.classification.thresholds import parse_policy
from brimful.data.labels import Labels
from brimful.runs.files import CLASSIFIER_FILE
from brimful.training.tensorfile import load_tensors, save_tensors

RECORD_FILE, VALIDATION_FILE = CLASSIFIER_FILE, "classifier.safetensors"
_AGAIN = "Run the same `brimful train` command again to write it anew."


@dataclass(frozen=True)
class ClassifierRecord:
    """How texts become labels: prepared, cut, calibrated, decided.

    Attributes:
        labels: C of them.
        calibration: Temperature, label weights and thresholds, chosen on validation.
        preprocess: Names of the steps that prepare a text.
        preprocess_identity: What these steps stood on in training
            (`data.preparation.preparation_identity`).
        max_tokens: Tokens of a text at most, special ones included; its end is cut.
        validation_logits_EC: float32, of the validation texts that chose the thresholds.
        validation_targets: Theirs: int64 [E], or float32 [E, C] of 0 and 1.
    """

    labels: Labels
    calibration: LabelCalibration
    preprocess: tuple[str, ...]
    preprocess_identity: Texts
    max_tokens: int
    validation_logits_EC: Floats32
    validation_targets: Array

    def with_threshold(self, policy: str) -> "ClassifierRecord":
        """Return the record with thresholds by another policy, chosen on the validation texts.

        Raises:
            RequestError: no such policy, or the likeliest of more than two labels is given, which
                takes no threshold.
        """
        policy = str(parse_policy(policy))
        if not self.labels.multiple and self.labels.positive is None:
            raise RequestError(
                f"--threshold {policy}: of {len(self.labels.names)} labels the likeliest is given,"
                " so there is no threshold. Leave it out, and choose by the probabilities that are"
                " written."
            )
        given_EC = self.calibration.probabilities(
            self.validation_logits_EC, multiple=self.labels.multiple
        )
        thresholds = choose_thresholds(policy, given_EC, self.validation_targets, self.labels)
        return replace(
            self, calibration=replace(self.calibration, policy=policy, thresholds=thresholds)
        )


def save_classifier(run_folder: Path, record: ClassifierRecord) -> None:
    """Write classifier.safetensors and then classifier.json, which names its checksum: readers see
    the old pair, the new one, or an error.

    Raises:
        RunFolderError: no space, no permission.
    """
    temporary = run_folder / f".{VALIDATION_FILE}.{uuid.uuid4().hex}.tmp"
    tensors = {
        "logits": record.validation_logits_EC.astype(np.float32),
        "targets": record.validation_targets,
    }
    try:
        written = save_tensors(
            temporary,
            {
                name: torch.from_numpy(np.ascontiguousarray(values))
                for name, values in tensors.items()
            },
        )
        os.replace(temporary, run_folder / VALIDATION_FILE)
        fsync_folder(run_folder)
    except OSError as error:
        raise RunFolderError(
            f"{run_folder / VALIDATION_FILE} cannot be written: {error}. Free space or fix the"
            f" permissions. {_AGAIN}"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    labels = record.labels
    write_json_atomically(
        run_folder / RECORD_FILE,
        {
            "schema": SCHEMA_VERSION,
            "labels": list(labels.names),
            "multiple": labels.multiple,
            "positive": labels.positive,
            **record.calibration.to_json(),
            "preprocess": list(record.preprocess),
            "preprocess_identity": dict(record.preprocess_identity),
            "max_tokens": record.max_tokens,
            "validation": {
                "file": VALIDATION_FILE,
                "examples": len(record.validation_logits_EC),
                **written,
            },
        },
        with_checksum=True,
    )


def load_record(run_folder: Path) -> ClassifierRecord:
    """What `save_classifier` wrote.

    Raises:
        RunFolderError: it is not there, damaged, from another version of brimful, or its two files
            do not belong together.
    """
    path = run_folder / RECORD_FILE
    if not path.is_file():
        raise RunFolderError(
            f"{run_folder} has no {RECORD_FILE}, which holds its labels and thresholds. {_AGAIN}"
        )
    try:
        value = read_json(path)
    except RunFolderError as error:
        raise RunFolderError(f"{error}. {_AGAIN}") from error
    if value.get("schema") != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} was written by another version of brimful, or is no record of a classifier."
            f" {_AGAIN}"
        )
    try:
        labels = Labels(
            tuple(map(str, value["labels"])), bool(value["multiple"]), value["positive"]
        )
        logits_EC, targets = _validation(run_folder / VALIDATION_FILE, value["validation"])
        if (
            logits_EC.ndim != 2
            or logits_EC.shape[1] != len(labels.names)
            or len(targets) != len(logits_EC)
        ):
            raise RunFolderError(
                f"{VALIDATION_FILE} and {RECORD_FILE} in {run_folder} do not belong together."
                f" {_AGAIN}"
            )
        return ClassifierRecord(
            labels,
            LabelCalibration.from_json(value),
            tuple(map(str, value["preprocess"])),
            dict(value["preprocess_identity"]),
            int(value["max_tokens"]),
            logits_EC,
            targets,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunFolderError(
            f"{path} is damaged ({type(error).__name__}: {error}). {_AGAIN}"
        ) from error


def _validation(path: Path, expected: Json) -> tuple[Floats32, Array]:
    try:
        if sha256_of(path) != expected["sha256"]:
            raise RunFolderError(
                f"{path} is not the file that {RECORD_FILE} beside it names, or is damaged."
                f" {_AGAIN}"
            )
        tensors = load_tensors(path)
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}. {_AGAIN}") from error
    return tensors["logits"].numpy(), tensors["targets"].numpy()
