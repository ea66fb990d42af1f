"""`moderation-offline` beside a bag of words: SMS Spam in folds, each message judged once by a
classifier that has not seen it; SST-2 on its own splits.

    python benchmarks/moderation_offline.py --sms FOLDER/sms_spam/SMSSpamCollection --sst2
    FOLDER/sst2 [--folds 5]

Folds by hash of the normalised text, so that equal messages stay together; within what is left an
eighth validates (best step, temperature, threshold), the rest trains, the encoder's pre-training
included. Messages that repeat training or validation ones, nearly too, are left out of the scores.
Model and floor are judged on the same messages by decisions at their own folds' thresholds and by
calibrated probabilities; intervals are 95 % over messages (paired bootstrap, 1,000 resamples). The
first fold runs alone, for the time it takes; the others two at a time, one thread each.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, f1_score

from brimful.base.env import runs_folder
from brimful.base.rundir import read_journal, read_json
from brimful.classification.calibration import LabelCalibration
from brimful.classification.classifier import load_classifier
from brimful.data.labels import Labels
from brimful.data.leakage import normalised
from brimful.evaluation.bag_of_words import bag_of_words
from brimful.kinds.labels import LabelledRunData
from brimful.kinds.run_data import gather
from brimful.recipe import load

RECIPE, VALIDATION_SHARE, RESAMPLES = "moderation-offline", 8, 1000
COLUMNS = {
    "sms": ["data.text_column=1", "data.label_column=0"],
    "sst2": ["data.text_column=0", "data.label_column=1", 'labels.positive="1"'],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sms", type=Path, required=True)
    parser.add_argument("--sst2", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    options = parser.parse_args()
    from record import write_record

    with tempfile.TemporaryDirectory() as folder:
        folds = _folds(options.sms, Path(folder), options.folds)
        runs = {f"sms-fold-{number}": _overrides("sms", path) for number, path in enumerate(folds)}
        first, *rest = runs
        seconds = {first: _run(first, runs[first])}
        print(
            f"first fold alone: {seconds[first]['wall_s']:.0f} s, {seconds[first]['cpu_s']:.0f} s"
            " of CPU time",
            flush=True,
        )
        others = {name: [*runs[name], "plan.threads=1"] for name in rest} | {
            "sst2": [*_overrides("sst2", options.sst2), "plan.threads=1"]
        }
        with ThreadPoolExecutor(2) as pool:
            seconds |= dict(zip(others, pool.map(_run, others, others.values()), strict=True))
        values = {
            "folds": options.folds,
            "recipe": RECIPE,
            "alone": seconds[first],
            "seconds": seconds,
            "steps": {name: _steps(name) for name in runs},
            "sms": _pooled([runs_folder() / name for name in runs]),
            "sst2": _of_sst2(runs_folder() / "sst2"),
        }
    print(values["sms"])
    print(values["sst2"])
    print(write_record("moderation_offline", values))


def _overrides(kind: str, path: Path) -> list[str]:
    return [f"data.path={path}", *COLUMNS[kind]]


def _folds(file: Path, folder: Path, count: int) -> list[Path]:
    """Folders with train.tsv, valid.tsv and test.tsv."""
    lines = file.read_text(encoding="utf-8").splitlines()
    places = [
        xxhash.xxh3_64_intdigest(normalised(line.split("\t", 1)[1]).encode()) for line in lines
    ]
    made = []
    for fold in range(count):
        made.append(folder / f"fold-{fold}")
        made[-1].mkdir()
        split_of = [
            (
                "test"
                if place % count == fold
                else "valid"
                if place // count % VALIDATION_SHARE == 0
                else "train"
            )
            for place in places
        ]
        for name in ("train", "valid", "test"):
            chosen = [line for line, split in zip(lines, split_of, strict=True) if split == name]
            (made[-1] / f"{name}.tsv").write_text(
                "".join(f"{line}\n" for line in chosen), encoding="utf-8"
            )
    return made


def _run(name: str, overrides: Sequence[str]) -> dict[str, float]:
    """The whole chain, pre-training and report included."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-c",
        "from brimful.cli import main; main()",
        "run",
        RECIPE,
        *overrides,
        f"run.name={name}",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall_s": time.perf_counter() - began,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }


def _steps(name: str) -> dict[str, int]:
    """Optimizer updates of the encoder's pre-training and of the classifier's training."""
    folders = {
        "pre-training": next(runs_folder().glob(f"*-for-{name}")),
        "fine-tuning": runs_folder() / name,
    }
    return {
        what: max(
            int(each["step"])
            for each in read_journal(folder / "metrics.jsonl")
            if each["kind"] == "step"
        )
        for what, folder in folders.items()
    }


def _pooled(folders: Sequence[Path]) -> dict[str, Any]:
    """Every message of every fold's test split that repeats nothing, judged by model and floor."""
    true: list[Any] = []
    by_model: list[Any] = []
    by_floor: list[Any] = []
    model_gives: list[Any] = []
    floor_gives: list[Any] = []
    names: tuple[str, ...] = ()
    repeated = 0
    for folder in folders:
        recipe = load(str(folder / "recipe.yaml"))
        data = gather(recipe, str(folder / "model"))
        assert isinstance(data, LabelledRunData)
        labels, test = data.labels, data.splits["test"]
        names = labels.names
        kept = np.flatnonzero(~test.split.is_repeated_E)
        repeated += len(test) - len(kept)
        classifier = load_classifier(folder, torch.device("cpu"))
        logits = classifier.forward.logits([test.ids(number) for number in kept.tolist()])
        train, validation = data.splits["train"].split, data.splits["validation"].split
        floor = bag_of_words(train, validation, labels, classifier.record.calibration.policy)
        floor_logits = floor.logits([test.split.texts[number] for number in kept])
        for found, given, each, calibration in (
            (by_model, model_gives, logits, classifier.record.calibration),
            (by_floor, floor_gives, floor_logits, floor.calibration),
        ):
            probabilities, decided = _judged(each, calibration, labels)
            found.append(probabilities)
            given.append(decided)
        true.append(test.split.targets[kept] == labels.positive)
    arrays = {
        name: np.concatenate(parts)
        for name, parts in (
            ("true", true),
            ("model", by_model),
            ("floor", by_floor),
            ("model_gives", model_gives),
            ("floor_gives", floor_gives),
        )
    }
    return {
        "labels": list(names),
        "messages": len(arrays["true"]),
        "spam": int(arrays["true"].sum()),
        "left_out": repeated,
        **_compared(arrays),
    }


def _judged(
    logits: NDArray[Any], calibration: LabelCalibration, labels: Labels
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    assert labels.positive is not None
    probabilities = calibration.probabilities(logits, multiple=False)
    return (
        probabilities[:, labels.positive],
        calibration.decide(probabilities, labels) == labels.positive,
    )


def _compared(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """F1 and average precision of both, and the model's minus the floor's."""
    random, count = np.random.default_rng(0), len(arrays["true"])
    drawn = [
        {name: values[chosen] for name, values in arrays.items()}
        for chosen in random.integers(0, count, (RESAMPLES, count))
    ]
    found: dict[str, Any] = {}
    for metric, measure in (("f1", _f1), ("pr_auc", _average_precision)):
        values = {who: measure(arrays, who) for who in ("model", "floor")}
        resampled = {who: np.array([measure(each, who) for each in drawn]) for who in values}
        values["difference"], resampled["difference"] = (
            values["model"] - values["floor"],
            resampled["model"] - resampled["floor"],
        )
        found[metric] = {who: _with_interval(values[who], resampled[who]) for who in values}
    return found


def _f1(arrays: Mapping[str, NDArray[Any]], who: str) -> float:
    return float(f1_score(arrays["true"], arrays[f"{who}_gives"]))


def _average_precision(arrays: Mapping[str, NDArray[Any]], who: str) -> float:
    return float(average_precision_score(arrays["true"], arrays[who]))


def _with_interval(value: float, resampled: NDArray[np.float64]) -> dict[str, float]:
    low, high = np.quantile(resampled, [0.025, 0.975])
    return {"value": value, "low": float(low), "high": float(high)}


def _of_sst2(folder: Path) -> dict[str, Any]:
    """As the run's own scores have it."""
    test = read_json(folder / "scores.json")["test"]
    chosen = ("f1", "accuracy", "pr_auc", "ece")
    return {
        "texts": test["examples"],
        "left_out": test["repeated"],
        "model": {name: test["metrics"][name] for name in chosen},
        "floor": {name: test["floor"]["metrics"][name] for name in chosen},
        "difference": test["floor"]["difference"],
    }


if __name__ == "__main__":
    main()
