"""A recipe for classifiers beside a bag of words: SMS Spam in folds, each message judged once by a
classifier that has not seen it; SST-2 on its own splits.

    python benchmarks/moderation_offline.py --sms FOLDER/sms_spam/SMSSpamCollection --sst2
    FOLDER/sst2 [--folds 5] [--recipe moderation-minilm] [--one-at-a-time] [KEY=VALUE]...

The record is called after the recipe, by default `moderation-offline`. A run that is finished is
not trained again, so that the same command goes on where it stopped.

Folds by hash of the normalised text, so that equal messages stay together; within what is left an
eighth validates (best step, temperature, threshold), the rest trains, the encoder's pre-training
included where the recipe has one. Messages that repeat training or validation ones, nearly too, are left out of the scores.
Model and floor are judged on the same messages by decisions at their own folds' thresholds and by
calibrated probabilities; intervals are 95 % over messages (paired bootstrap, 1,000 resamples). The
first fold runs alone, for the time it takes; the others two at a time, one thread each. With
`--one-at-a-time` all of them have one thread, for a machine that others use, too.
"""

import argparse
import resource
import subprocess
import sys
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
from brimful.base.rundir import read_journal, read_json, write_json_atomically
from brimful.classification.calibration import LabelCalibration
from brimful.classification.classifier import load_classifier
from brimful.data.labels import Labels
from brimful.data.leakage import normalised
from brimful.evaluation.bag_of_words import bag_of_words
from brimful.kinds.labels import LabelledRunData
from brimful.kinds.run_data import gather
from brimful.recipe import load

VALIDATION_SHARE, RESAMPLES = 8, 1000
ONE_THREAD = "plan.threads=1"
COLUMNS = {
    "sms": ["data.text_column=1", "data.label_column=0"],
    "sst2": ["data.text_column=0", "data.label_column=1", 'labels.positive="1"'],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sms", type=Path, required=True)
    parser.add_argument("--sst2", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--recipe", default="moderation-offline")
    parser.add_argument("--one-at-a-time", action="store_true")
    parser.add_argument("overrides", nargs="*", help="of the recipe, for every run")
    options = parser.parse_args()
    from record import write_record

    recipe: str = options.recipe
    record = recipe.replace("-", "_")
    folds = _folds(options.sms, runs_folder() / f"{record}-folds", options.folds)
    overrides = {
        f"{record}-sms-fold-{number}": [*_overrides("sms", path), *options.overrides]
        for number, path in enumerate(folds)
    }
    folders = [runs_folder() / name for name in overrides]
    of_sst2 = f"{record}-sst2"
    overrides[of_sst2] = [*_overrides("sst2", options.sst2), *options.overrides]
    seconds = _run_all(recipe, overrides, one_at_a_time=options.one_at_a_time)
    values = {
        "folds": options.folds,
        "recipe": recipe,
        "overrides": options.overrides,
        "alone": seconds[folders[0].name],
        "seconds": seconds,
        "steps": {each.name: _steps(each) for each in folders},
        "sms": _pooled(folders),
        "sst2": _of_sst2(runs_folder() / of_sst2),
    }
    print(values["sms"])
    print(values["sst2"])
    print(write_record(record, values))


def _run_all(
    recipe: str, overrides: Mapping[str, Sequence[str]], *, one_at_a_time: bool
) -> dict[str, dict[str, float]]:
    """Run every fold and SST-2; return what each took, by name."""
    if one_at_a_time:
        return {name: _run(recipe, name, [*each, ONE_THREAD]) for name, each in overrides.items()}
    (first, of_first), *rest = overrides.items()
    seconds = {first: _run(recipe, first, of_first)}
    print(
        f"first fold alone: {seconds[first]['wall_s']:.0f} s, {seconds[first]['cpu_s']:.0f} s"
        " of CPU time",
        flush=True,
    )
    others = {name: [*each, ONE_THREAD] for name, each in rest}
    with ThreadPoolExecutor(2) as pool:
        took = pool.map(lambda name: _run(recipe, name, others[name]), others)
        return seconds | dict(zip(others, took, strict=True))


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
        made[-1].mkdir(parents=True, exist_ok=True)
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


def _run(recipe: str, name: str, overrides: Sequence[str]) -> dict[str, float]:
    """The whole chain, pre-training and report included; what it took is kept beside the run."""
    kept = runs_folder() / f"{name}-seconds.json"
    if kept.exists():
        earlier: dict[str, float] = read_json(kept)
        return earlier
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        sys.executable,
        "-c",
        "from brimful.cli import main; main()",
        "run",
        recipe,
        *overrides,
        f"run.name={name}",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    took = {
        "wall_s": time.perf_counter() - began,
        "cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    }
    write_json_atomically(kept, took)
    return took


def _steps(folder: Path) -> dict[str, int]:
    """Optimizer updates of the encoder's pre-training, where there is one, and of the classifier's
    training.
    """
    folders = {"fine-tuning": folder}
    for pre_training in runs_folder().glob(f"*-for-{folder.name}"):
        folders["pre-training"] = pre_training
    return {
        what: max(
            int(each["step"])
            for each in read_journal(each_folder / "metrics.jsonl")
            if each["kind"] == "step"
        )
        for what, each_folder in folders.items()
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
