"""A recipe for classifiers beside a bag of words: SMS Spam in folds, each message judged once by a
classifier that has not seen it; SST-2 on its own splits.

    python benchmarks/moderation.py --sms FOLDER/sms_spam/SMSSpamCollection --sst2 FOLDER/sst2
    [--folds 5] [--recipe moderation-minilm] [KEY=VALUE]...

The record is called after the recipe, by default `moderation-offline`. A run that is finished is
not trained again, so that the same command goes on where it stopped.

Folds by hash of the normalised text, so that equal messages stay together; within what is left an
eighth validates (best step, temperature, threshold), the rest trains, the encoder's pre-training
included where the recipe has one. Messages that repeat training or validation ones, nearly too, are
left out of the scores. Model and floor are judged on the same messages by decisions at their own
folds' thresholds; intervals are 95 % over messages (paired bootstrap).
"""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from sklearn.metrics import f1_score

from brimful.base.env import runs_folder
from brimful.base.rundir import read_json
from brimful.classification.classifier import load_classifier
from brimful.data.leakage import normalised
from brimful.evaluation.bag_of_words import bag_of_words
from brimful.kinds.labels import LabelledRunData
from brimful.kinds.run_data import gather
from brimful.recipe import load
from record import write_record

VALIDATION_SHARE, RESAMPLES = 8, 1000
SMS = ["data.text_column=1", "data.label_column=0"]
SST2 = ["data.text_column=0", "data.label_column=1", 'labels.positive="1"']
Decisions = Mapping[str, NDArray[np.bool_]]
"""Of each message: whether it is spam (`true`), and what `model` and `floor` decide."""


def main() -> None:
    """Run every fold and SST-2, judge, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sms", type=Path, required=True)
    parser.add_argument("--sst2", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--recipe", default="moderation-offline")
    parser.add_argument("overrides", nargs="*", help="of the recipe, for every run")
    options = parser.parse_args()
    record = options.recipe.replace("-", "_")

    def run(name: str, data: Path, columns: Sequence[str]) -> Path:
        words = [f"data.path={data}", *columns, *options.overrides, f"run.name={record}-{name}"]
        command = [sys.executable, "-m", "brimful", "run", options.recipe, *words]
        done = subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        if done.returncode:  # it said why
            sys.exit(done.returncode)
        return runs_folder() / f"{record}-{name}"

    folds = write_folds(options.sms, runs_folder() / f"{record}-folds", options.folds)
    runs = [run(f"sms-{fold.name}", fold, SMS) for fold in folds]
    test = read_json(run("sst2", options.sst2, SST2) / "scores.json")["test"]
    values = {
        "folds": options.folds,
        "recipe": options.recipe,
        "overrides": options.overrides,
        "sms": compared([judged(folder) for folder in runs]),
        "sst2": {
            "texts": test["examples"],
            "left_out": test["repeated"],
            "model": test["metrics"],
            "floor": test["floor"]["metrics"],
            "difference": test["floor"]["difference"],
        },
    }
    print(values["sms"], values["sst2"])
    print(write_record(record, values))


def write_folds(file: Path, folder: Path, count: int) -> list[Path]:
    """Write folders with train.tsv, valid.tsv and test.tsv, and return them."""
    lines = file.read_text(encoding="utf-8").splitlines()
    folds = [folder / f"fold-{fold}" for fold in range(count)]
    for number, fold in enumerate(folds):
        parts: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
        for line in lines:
            text = normalised(line.split("\t", 1)[1])
            place = xxhash.xxh3_64_intdigest(text.encode())
            is_valid = place // count % VALIDATION_SHARE == 0
            split = "test" if place % count == number else "valid" if is_valid else "train"
            parts[split].append(f"{line}\n")
        fold.mkdir(parents=True, exist_ok=True)
        for split, chosen in parts.items():
            (fold / f"{split}.tsv").write_text("".join(chosen), encoding="utf-8")
    return folds


def judged(folder: Path) -> Decisions:
    """Decide on every message of a fold's test split that repeats nothing."""
    data = gather(load(str(folder / "recipe.yaml")), str(folder / "model"))
    assert isinstance(data, LabelledRunData)
    labels, splits = data.labels, data.splits
    test = splits["test"]
    kept = np.flatnonzero(~test.split.is_repeated_E)
    classifier = load_classifier(folder, torch.device("cpu"))
    calibration = classifier.record.calibration
    train, validation = splits["train"].split, splits["validation"].split
    floor = bag_of_words(train, validation, labels, calibration.policy)
    model_logits = classifier.forward.logits([test.ids(number) for number in kept.tolist()])
    floor_logits = floor.logits([test.split.texts[number] for number in kept])
    decisions = {"true": test.split.targets[kept] == labels.positive}
    for who, logits, by in (
        ("model", model_logits, calibration),
        ("floor", floor_logits, floor.calibration),
    ):
        probabilities = by.probabilities(logits, multiple=False)
        decisions[who] = by.decide(probabilities, labels) == labels.positive
    return decisions


def compared(folds: Sequence[Decisions]) -> dict[str, Any]:
    """Return F1 of both over the messages of all folds, and the model's minus the floor's."""
    all_of = {who: np.concatenate([fold[who] for fold in folds]) for who in folds[0]}
    count = len(all_of["true"])
    drawn = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    f1 = {}
    for who in ("model", "floor"):
        resampled = [f1_score(all_of["true"][each], all_of[who][each]) for each in drawn]
        f1[who] = np.array([f1_score(all_of["true"], all_of[who]), *resampled])
    f1["difference"] = f1["model"] - f1["floor"]
    return {
        "messages": count,
        "spam": int(all_of["true"].sum()),
        "f1": {
            who: {
                "value": float(values[0]),
                "low": float(np.quantile(values[1:], 0.025)),
                "high": float(np.quantile(values[1:], 0.975)),
            }
            for who, values in f1.items()
        },
    }


if __name__ == "__main__":
    main()
