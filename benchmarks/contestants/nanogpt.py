"""nanoGPT's `shakespeare_char` on a CPU: karpathy/nanoGPT's own train.py with the settings of its README
for a laptop, beside brimful's recipe of the same network on the same text.

    git clone https://github.com/karpathy/nanoGPT

Wall time, with the same number of threads for everyone, on a machine that does nothing else. Timed are
updates of 12 x 64 characters after the first `SETTLING`, without evaluations and checkpoints, as each
side records them itself. ", memory kept" is its script with brimful's setting of the allocator,
"compiled" its own `--compile=True`, which the README turns off for CPUs. On a CPU its script has fp32
alone, whatever its `--dtype`; brimful runs in the precision that it plans, and in either.

Losses come from whole runs at the start: what each side says itself, and all characters of the
validation split, each scored once in windows of 64, as both models end. nanoGPT's script is told to
keep its last checkpoint, too, not only one whose loss over 20 batches was the best so far. brimful
runs with its recipe as shipped, and at nanoGPT's learning rate, whose schedule is the same.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contestants.process import and_memory_kept, setting
from contestants.rounds import Comparison, Found
from contestants.worker import Worker

SETTLING, CONTEXT = 50, 64
"""Updates that are not timed; characters of a row."""
README = [
    "--device=cpu",
    "--compile=False",
    "--eval_iters=20",
    "--log_interval=1",
    "--block_size=64",
    "--batch_size=12",
    "--n_layer=4",
    "--n_head=4",
    "--n_embd=128",
    "--lr_decay_iters=2000",
    "--dropout=0.0",
]
EVALUATED_EVERY = 250
"""Of config/train_shakespeare_char.py."""
THEIRS = {"nanoGPT": [], "nanoGPT, compiled": ["--compile=True"]}
"""Flags beside those of the README."""
AT_THEIR_RATE = "brimful, nanoGPT's learning rate"
OURS = {
    "brimful": [],
    AT_THEIR_RATE: ["optimizer.learning_rate=1e-3"],
    "brimful, fp32": ["plan.precision=fp32"],
    "brimful, bf16": ["plan.precision=bf16"],
}
"""Changes to the recipe."""
WHOLE = ("nanoGPT", "brimful", AT_THEIR_RATE)
ITERATION = re.compile(r"^iter (\d+): loss \S+, time ([\d.]+)ms", re.MULTILINE)
ESTIMATE = re.compile(r"^step \d+: train loss \S+, val loss (\S+)", re.MULTILINE)
DATA = Path("data", "shakespeare_char")


class NanoGpt(Comparison):
    """Of updates."""

    record, unit, rounds, steps, warm_up = "nanogpt_cpu", "updates", 5, 250, SETTLING
    names, judged_by = (*and_memory_kept(list(THEIRS)), *OURS), ("brimful",)
    options = (
        ("nanogpt", None, "a checkout of nanoGPT"),
        ("text", None, "Tiny Shakespeare, input.txt"),
        ("whole", 2000, "updates of the whole runs"),
        ("threads", 2, "of everyone"),
    )

    def prepare(self, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
        """Make a folder as train.py expects it, with the data made by nanoGPT's own script."""
        nanogpt, data = Path(options.nanogpt).resolve(), folder / DATA
        data.mkdir(parents=True)
        for name in ("configurator.py", "config"):
            (folder / name).symlink_to(nanogpt / name)
        (data / "prepare.py").symlink_to(nanogpt / DATA / "prepare.py")
        (data / "input.txt").symlink_to(Path(options.text).resolve())
        _run([str(data / "prepare.py")], folder)
        shown = ["git", "-C", str(nanogpt), "rev-parse", "HEAD"]
        done = subprocess.run(shown, capture_output=True, text=True, check=False)
        return {"nanogpt_commit": done.stdout.strip()}

    def work(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        worker = Worker(name, folder)
        run = _Ours(folder, name, options) if name in OURS else _Theirs(folder, name, options)
        whole = None
        if name in WHOLE:
            whole = run.train(options.whole) | {"loss": run.loss()}
        worker.serve(lambda steps: (run.train(steps)["step_s"], 1), whole)

    def judge(self, name: str, found: Found) -> dict[str, Any]:
        return {"valid": True}

    def values(self, found: Found, results: Any, options: argparse.Namespace) -> dict[str, Any]:
        from record import summary

        ours = results["brimful"]
        timed = {
            name: {
                "step_s": summary(found.seconds[name]),
                "speed_over_nanogpt": result["speed_over_default"],
            }
            for name, result in results.items()
        }
        whole = {name: each["start_and_warm_up"] for name, each in results.items() if name in WHOLE}
        return {
            **found.about,
            "pairs": len(found.seconds["brimful"]),
            "whole_updates": options.whole,
            "contestant_threads": options.threads,
            "timed": timed,
            "whole": whole,
            "over_the_best_of_nanogpt": {"best": ours["best_of_others"], **ours["speed_over_best"]},
        }


class _Theirs:
    """nanoGPT's script."""

    def __init__(self, folder: Path, name: str, options: argparse.Namespace) -> None:
        self._folder, self._nanogpt = folder, Path(options.nanogpt).resolve()
        self._flags = THEIRS[setting(name)]
        self._out = re.sub(r"\W+", "-", name)
        self._threads = {"OMP_NUM_THREADS": str(options.threads)}

    def train(self, updates: int) -> dict[str, float]:
        """Train for some updates; return the mean seconds of one and the last loss it says."""
        output = _run(
            [
                *(str(self._nanogpt / "train.py"), "config/train_shakespeare_char.py"),
                *(*README, *self._flags, f"--max_iters={updates}", f"--out_dir={self._out}"),
                f"--eval_interval={min(updates, EVALUATED_EVERY)}",
                "--always_save_checkpoint=True",
            ],
            self._folder,
            self._threads,
        )
        timed = [
            float(ms) / 1000
            for number, ms in ITERATION.findall(output)
            if int(number) >= min(SETTLING, updates // 2) and int(number) % EVALUATED_EVERY
        ]
        estimates = [float(loss) for loss in ESTIMATE.findall(output)]
        return {"step_s": statistics.mean(timed), "own_loss": estimates[-1]}

    def loss(self) -> float:
        """Nats per character of the validation split, by nanoGPT's own model and checkpoint."""
        import numpy as np
        import torch

        spec = importlib.util.spec_from_file_location("nanogpt_model", self._nanogpt / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["nanogpt_model"] = module
        spec.loader.exec_module(module)
        stored = torch.load(self._folder / self._out / "ckpt.pt", weights_only=True)
        model = module.GPT(module.GPTConfig(**stored["model_args"]))
        model.load_state_dict(stored["model"])
        model.eval()
        ids = np.fromfile(self._folder / DATA / "val.bin", dtype=np.uint16).astype(np.int64)
        tokens_N, total = torch.from_numpy(ids), 0.0
        rows = tokens_N[:-1].split(CONTEXT), tokens_N[1:].split(CONTEXT)
        with torch.no_grad():
            for inputs_T, targets_T in zip(*rows, strict=True):
                total += model(inputs_T[None], targets_T[None])[1].item() * len(targets_T)
        return total / (len(tokens_N) - 1)


class _Ours:
    """`brimful train shakespeare-char`."""

    def __init__(self, folder: Path, name: str, options: argparse.Namespace) -> None:
        self._runs, self._name, self._whole = folder / "runs", name, options.whole
        self._changes = [
            f"data.path={Path(options.text).resolve()}",
            f"run.folder={self._runs}",
            f"plan.threads={options.threads}",
            "plan.device=cpu",
        ]
        self._threads = {"OMP_NUM_THREADS": str(options.threads)}

    def train(self, updates: int) -> dict[str, float]:
        """Train for some updates; return the mean seconds of one and the last evaluation's loss."""
        changes = [*OURS[self._name], f"training.steps={updates}", "sample.tokens=1"]
        if updates < self._whole:  # with the plan of a whole run: a shorter one might have another
            choices = json.loads(
                (self._folder_of("brimful", self._whole) / "plan.json").read_text()
            )
            changes = [f"plan.{key}={choices[key]}" for key in ("precision", "optimizer")] + changes
            changes.append(f"plan.compile={str(choices['compile']).lower()}")
        folder = self._folder_of(self._name, updates)
        shutil.rmtree(folder, ignore_errors=True)
        words = ["-m", "brimful", "train", "shakespeare-char", f"run.name={folder.name}"]
        _run([*words, *self._changes, *changes], self._runs.parent, self._threads)
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        steps = [each["step_time_s"] for each in records if each["kind"] == "step"]
        losses = [each["loss"] for each in records if each["kind"] == "evaluation"]
        timed = steps[min(SETTLING, len(steps) // 2) :]
        return {"step_s": statistics.mean(timed), "own_loss": losses[-1]}

    def loss(self) -> float:
        """Nats per character of the validation split."""
        from rich.console import Console

        from brimful.chains.scoring import evaluate

        scores = evaluate(self._folder_of(self._name, self._whole), Console(quiet=True))
        return float(scores["validation"]["loss"])

    def _folder_of(self, name: str, updates: int) -> Path:
        return self._runs / f"{re.sub(r'[^a-zA-Z0-9]+', '-', name)}-{updates}"


def _run(words: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None) -> str:
    """Run a program of Python's and return its output; end with it where it fails."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return done.stdout


COMPARISON = NanoGpt()
