"""nanoGPT's `shakespeare_char` on a CPU: karpathy/nanoGPT's own train.py with the settings of its
README for a laptop, beside brimful's recipe of the same network on the same text.

    git clone https://github.com/karpathy/nanoGPT
    python benchmarks/nanogpt_cpu.py --nanogpt nanoGPT --text .../tinyshakespeare/input.txt --folder
    RESULTS [--pairs 5] [--updates 250] [--threads 2] [--without "nanoGPT, compiled"]

Rules: wall time on a machine that does nothing else, the same number of threads for everyone, each
run a process of its own, rounds of short runs forwards and backwards in turn. Timed are updates
after the first `SETTLING`, without evaluations and checkpoints, as each side records them itself.
", memory kept" is its script with the setting of the C library's allocator that brimful gives
itself; "nanoGPT, compiled" its own `--compile=True`, which the README turns off for CPUs. On a CPU
its script has fp32 alone, whatever its `--dtype`; brimful runs in the precision that it plans, and
in either. Every update is of 12 x 64 characters.

Losses come from whole runs of 2,000 updates: what each side says itself, and all characters of the
validation split, each scored once in windows of 64, as both models end. nanoGPT's script is told to
keep its last checkpoint, too, not only one whose loss over 20 batches was the best so far. brimful
runs with its recipe as shipped, and at nanoGPT's learning rate, whose schedule is the same.

Every run's result is kept in RESULTS as it ends; the same command goes on from there.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from contestant import OURS, allocator_variables, and_memory_kept, fastest, setting

SETTLING = 50
"""Updates that are not timed."""
WHOLE = 2000
CONTEXT = 64
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
    "--max_iters=2000",
    "--lr_decay_iters=2000",
    "--dropout=0.0",
]
EVALUATED_EVERY = 250
"""Of config/train_shakespeare_char.py."""
PLAIN, COMPILED = "nanoGPT", "nanoGPT, compiled"
THEIRS = {PLAIN: [], COMPILED: ["--compile=True"]}
"""Flags beside those of the README."""
IN_EITHER = {f"{OURS}, {precision}": precision for precision in ("fp32", "bf16")}
OURS_AT_THEIR_RATE = "brimful, nanoGPT's learning rate"
WHOLE_RUNS: Mapping[str, list[str]] = {
    PLAIN: [],
    OURS: [],
    OURS_AT_THEIR_RATE: ["optimizer.learning_rate=1e-3"],
}
"""Changes to the recipe."""
ITERATION = re.compile(r"^iter (\d+): loss \S+, time ([\d.]+)ms", re.MULTILINE)
ESTIMATE = re.compile(r"^step (\d+): train loss \S+, val loss (\S+)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nanogpt", type=Path, required=True, help="a checkout of nanoGPT")
    parser.add_argument("--text", type=Path, required=True, help="Tiny Shakespeare, input.txt")
    parser.add_argument("--folder", type=Path, required=True, help="where results are kept")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--updates", type=int, default=250, help="of each timed run")
    parser.add_argument("--whole", type=int, default=WHOLE, help="updates of the whole runs")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--without", action="append", default=[], help="a contestant that is not timed"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    kept = _Kept(options.folder / "results.jsonl")
    runs = _Runs(options)
    for name in WHOLE_RUNS:
        kept.get("whole", name, 0, lambda name=name: runs.whole(name))
    every = (*and_memory_kept(list(THEIRS)), OURS, *IN_EITHER)
    names = [name for name in every if name not in options.without]
    for number in range(options.pairs):
        for name in names if number % 2 == 0 else reversed(names):
            kept.get("pair", name, number, lambda name=name: runs.timed(name))
    _report(kept, names, options)


class _Kept:
    """Results of runs, one JSON line each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.results = [json.loads(line) for line in lines]

    def get(self, part: str, name: str, number: int, run: Any) -> None:
        """Run and keep what it gives, unless it is there already."""
        about = {"part": part, "name": name, "number": number}
        if any(about.items() <= result.items() for result in self.results):
            return
        load, began_s = os.getloadavg()[0], time.perf_counter()
        result = about | run() | {"load": load, "seconds": time.perf_counter() - began_s}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
        self.results.append(result)
        milliseconds = 1000 * result["step_s"]
        print(
            f"{part} {number} {name}: {milliseconds:.1f} ms an update,"
            f" {result['seconds']:.0f} s in all",
            flush=True,
        )

    def of(self, part: str, name: str) -> list[dict[str, Any]]:
        """Results of a contestant in the order of the rounds."""
        found = [each for each in self.results if (each["part"], each["name"]) == (part, name)]
        return sorted(found, key=lambda each: each["number"])


class _Runs:
    """Runs each contestant in a process of its own."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._workspace = options.folder / "nanogpt"
        self._nanogpt = options.nanogpt.resolve()
        if not (self._workspace / "data/shakespeare_char/meta.pkl").exists():
            self._prepare()

    def _prepare(self) -> None:
        """A folder as train.py expects it, with the data made by nanoGPT's own script."""
        shutil.rmtree(self._workspace, ignore_errors=True)
        data = self._workspace / "data/shakespeare_char"
        data.mkdir(parents=True)
        for name in ("configurator.py", "config"):
            (self._workspace / name).symlink_to(self._nanogpt / name)
        (data / "prepare.py").symlink_to(self._nanogpt / "data/shakespeare_char/prepare.py")
        (data / "input.txt").symlink_to(self._options.text.resolve())
        _run([sys.executable, str(data / "prepare.py")], self._workspace, {})

    def timed(self, name: str) -> dict[str, Any]:
        updates = self._options.updates
        if not name.startswith(OURS):
            return self._theirs(name, [f"--max_iters={updates}"], updates)
        # As the plan of the whole run has it: a shorter one might have another.
        choices = json.loads((self._folder_of(OURS) / "plan.json").read_text())
        fixed = {key: choices[key] for key in ("precision", "compile", "optimizer")}
        fixed["micro_batch"] = choices["micro_batches"][0]
        fixed["precision"] = IN_EITHER.get(name, choices["precision"])
        changes = [f"plan.{key}={json.dumps(value)}" for key, value in fixed.items()]
        return self._ours("timed", [*changes, f"training.steps={updates}", "sample.tokens=1"])

    def whole(self, name: str) -> dict[str, Any]:
        steps = self._options.whole
        if name != PLAIN:
            changes = [*WHOLE_RUNS[name], f"training.steps={steps}"]
            return self._ours(name, changes) | self._our_scores(name)
        flags = ["--always_save_checkpoint=True", f"--max_iters={steps}"]
        if steps < EVALUATED_EVERY:  # a trial: else there is no checkpoint
            flags.append(f"--eval_interval={steps}")
        return self._theirs(name, flags, steps) | {"loss": self._their_loss()}

    def _environment(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self._options.threads)}

    def _theirs(self, name: str, flags: Sequence[str], updates: int) -> dict[str, Any]:
        words = [
            sys.executable,
            str(self._nanogpt / "train.py"),
            "config/train_shakespeare_char.py",
        ]
        cache = {"TORCHINDUCTOR_CACHE_DIR": str((self._options.folder / "inductor").resolve())}
        output = _run(
            [*words, *README, *THEIRS[setting(name)], *flags, "--out_dir=out"],
            self._workspace,
            self._environment() | cache | allocator_variables(name),
        )
        took = {int(number): float(ms) / 1000 for number, ms in ITERATION.findall(output)}
        timed = [
            seconds
            for number, seconds in took.items()
            if min(SETTLING, updates // 2) <= number and number % EVALUATED_EVERY
        ]
        estimates = [float(loss) for _, loss in ESTIMATE.findall(output)]
        return {
            "step_s": statistics.mean(timed),
            "median_step_s": statistics.median(timed),
            "own_loss": estimates[-1],
        }

    def _their_loss(self) -> float:
        """Nats per character of the validation split, by nanoGPT's own model and checkpoint."""
        import numpy as np
        import torch

        torch.set_num_threads(self._options.threads)
        spec = importlib.util.spec_from_file_location("nanogpt_model", self._nanogpt / "model.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["nanogpt_model"] = module
        spec.loader.exec_module(module)
        stored = torch.load(self._workspace / "out/ckpt.pt", weights_only=True)
        model = module.GPT(module.GPTConfig(**stored["model_args"]))
        model.load_state_dict(stored["model"])
        model.eval()
        data = self._workspace / "data/shakespeare_char"
        tokens_N = torch.from_numpy(np.fromfile(data / "val.bin", dtype=np.uint16).astype(np.int64))
        total = 0.0
        with torch.no_grad():
            whole = (len(tokens_N) - 1) // CONTEXT * CONTEXT
            inputs_WT = tokens_N[:whole].view(-1, CONTEXT)
            targets_WT = tokens_N[1 : whole + 1].view(-1, CONTEXT)
            rest = slice(whole, len(tokens_N) - 1), slice(whole + 1, len(tokens_N))
            pieces = [*zip(inputs_WT.split(64), targets_WT.split(64), strict=True)]
            pieces.append((tokens_N[rest[0]][None], tokens_N[rest[1]][None]))
            for inputs, targets in pieces:
                if inputs.numel():
                    total += model(inputs, targets)[1].item() * targets.numel()
        return total / (len(tokens_N) - 1)

    def _folder_of(self, name: str) -> Path:
        return Path(self._options.folder.resolve(), "runs", re.sub(r"\W+", "-", name))

    def _ours(self, name: str, changes: Sequence[str]) -> dict[str, Any]:
        folder = self._folder_of(name)
        shutil.rmtree(folder, ignore_errors=True)
        text = f"data.path={self._options.text.resolve()}"
        words = [sys.executable, "-m", "brimful", "train", "shakespeare-char", text, *changes]
        words += [f"run.folder={folder.parent}", f"run.name={folder.name}"]
        words += [f"plan.threads={self._options.threads}", "plan.device=cpu"]
        _run(words, self._options.folder, self._environment())
        lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        steps = [each for each in records if each["kind"] == "step"]
        settling = min(SETTLING, len(steps) // 2)
        timed = [each["step_time_s"] for each in steps if each["step"] > settling]
        evaluations = [each["loss"] for each in records if each["kind"] == "evaluation"]
        return {
            "step_s": statistics.mean(timed),
            "median_step_s": statistics.median(timed),
            "own_loss": evaluations[-1],
        }

    def _our_scores(self, name: str) -> dict[str, Any]:
        from rich.console import Console

        from brimful.chains.scoring import evaluate

        scores = evaluate(self._folder_of(name), Console(quiet=True))["validation"]
        plan = json.loads((self._folder_of(name) / "plan.json").read_text())
        choices = {choice["name"]: choice["value"] for choice in plan["choices"]}
        return {
            "loss": scores["loss"],
            "loss_interval": scores["loss_interval"],
            "plan": choices | {"threads": plan["threads"]},
        }


def _run(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run a program and return its output; end with it where it fails."""
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return done.stdout


def _report(kept: _Kept, names: Sequence[str], options: argparse.Namespace) -> None:
    from record import of_this_kind_of_cpu, ratio_interval, summary, write_record

    step_s = {name: [each["step_s"] for each in kept.of("pair", name)] for name in names}
    timed = {
        name: {
            "step_s": summary(seconds),
            "updates_per_s": 1 / statistics.median(seconds),
            "speed_over_nanogpt": ratio_interval(step_s[PLAIN], seconds),
        }
        for name, seconds in step_s.items()
    }
    whole = {name: kept.of("whole", name)[0] for name in WHOLE_RUNS}
    for name, result in timed.items():
        ratio = result["speed_over_nanogpt"]
        print(
            f"{name:<28} {1000 * result['step_s']['median']:6.1f} ms an update "
            f" {ratio['median']:.2f}x nanoGPT [{ratio['low']:.2f}, {ratio['high']:.2f}]"
        )
    for name, result in whole.items():
        print(
            f"{name:<34} {1000 * result['step_s']:6.1f} ms an update, {result['seconds']:.0f} s in"
            f" all, loss {result['loss']:.4f}, by its own estimate {result['own_loss']:.4f}"
        )
    hashes = {
        name: hashlib.sha256((options.nanogpt / name).read_bytes()).hexdigest()
        for name in ("train.py", "model.py", "config/train_shakespeare_char.py")
    }
    best = fastest(step_s)
    values = {
        "nanogpt_sha256": hashes,
        "pairs": options.pairs,
        "updates": options.updates,
        "whole_updates": options.whole,
        "contestant_threads": options.threads,
        "loads": [each["load"] for each in kept.results],
        "over_the_best_of_nanogpt": {"best": best, **ratio_interval(step_s[best], step_s[OURS])},
        "timed": timed,
        "whole": {
            name: {key: value for key, value in result.items() if key not in ("part", "number")}
            for name, result in whole.items()
        },
    }
    if options.whole == WHOLE:
        print(write_record(of_this_kind_of_cpu("nanogpt_cpu"), values))


if __name__ == "__main__":
    main()
