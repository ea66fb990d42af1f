"""Kill a training run with SIGKILL at random points, run the same command again, and compare with
an undisturbed run bit for bit.

    python benchmarks/kill.py [--trials 20]

Half of the kills come at a random moment of training, half at a random fsync or rename of a
checkpoint, so also between write and rename. Every trial is killed twice before it may finish.
Compared are the final checkpoint's weights, optimizer states, random generators and progress, the
exported model file, and every measured number of metrics.jsonl.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from brimful.base.rundir import read_journal
from brimful.training.checkpoint import CheckpointStore, differences, load
from record import write_record

RECIPE = """
name: kill
sequence_length: 64
batch: {sequences: 16}
training: {steps: 60}
model: {architecture: gpt2, layers: 2, heads: 2, width: 64, dropout: 0.1}
tokenizer: {kind: bpe, vocabulary: 512}
data: {path: "builtin:python-docs", max_documents: 300, validation: 0.1}
optimizer: {learning_rate: 3e-3, warmup: 5}
evaluation: {every: 15, max_sequences: 50}
checkpoint: {every: 4}
sample: {tokens: 5}
plan: {device: cpu, precision: bf16, compile: false, threads: 1}
"""
TIMING = {"step_time_s", "loader_wait_s", "tokens_per_second", "memory_bytes", "time", "seconds"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(int(options.child))
        return
    with tempfile.TemporaryDirectory() as folder:
        _measure(Path(folder), options.trials)


def _measure(folder: Path, trials: int) -> None:
    (folder / "kill.yaml").write_text(RECIPE)
    _run(folder, "undisturbed").wait()
    training_s = next(
        record["seconds"]
        for record in read_journal(folder / "undisturbed" / "metrics.jsonl")
        if record["kind"] == "end"
    )
    drawn, equal, kills, continued = random.Random(0), 0, [], 0
    for trial in range(trials):
        name = f"trial{trial}"
        kills += [
            _kill_once(
                folder,
                name,
                drawn,
                at_random_moment=(trial + kill) % 2 == 0,
                reach=0.7 / (kill + 1),
                training_s=training_s,
            )
            for kill in range(2)
        ]
        if _run(folder, name).wait():
            raise SystemExit(f"{name} did not finish")
        odd = _differences(folder / name, folder / "undisturbed")
        continued += _continued(folder / name)
        equal += not odd
        print(
            f"{name}: killed {kills[-2]} and {kills[-1]}: {odd or 'equal bit for bit'}", flush=True
        )
    print(f"{equal} of {trials} equal to the undisturbed run")
    values = {
        "trials": trials,
        "kills": kills,
        "equal": equal,
        "continued_from_a_checkpoint": continued,
    }
    print(write_record("kill", values))
    raise SystemExit(equal != trials)


def _run(folder: Path, name: str, kill_at_call: int = 0) -> "subprocess.Popen[bytes]":
    words = ["train", str(folder / "kill.yaml"), f"run.folder={folder}", f"run.name={name}"]
    environment = {**os.environ, "BRIMFUL_CACHE": str(folder / "cache")}
    command = [sys.executable, __file__, "--child", str(kill_at_call)]
    return subprocess.Popen(
        command,
        env={**environment, "KILL_WORDS": "\n".join(words)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _child(kill_at_call: int) -> None:
    """`brimful ...`, dying at the n-th fsync or rename when asked to."""
    from brimful.cli import main as brimful

    count = 0

    def deadly(real: Any) -> Any:
        def act(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == kill_at_call:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return act

    if kill_at_call:
        os.fsync, os.rename = deadly(os.fsync), deadly(os.rename)
    sys.argv = ["brimful", *os.environ["KILL_WORDS"].split("\n")]
    brimful()


def _kill_once(
    folder: Path,
    name: str,
    drawn: random.Random,
    *,
    at_random_moment: bool,
    reach: float,
    training_s: float,
) -> str:
    if not at_random_moment:
        call = drawn.randint(8, int(8 + 140 * reach))
        code = _run(folder, name, call).wait()
        return (
            f"at file operation {call}"
            if code == -signal.SIGKILL
            else f"not: it had fewer than {call} file operations"
        )
    process = _run(folder, name)
    journal = folder / name / "metrics.jsonl"
    before = journal.stat().st_size if journal.exists() else -1
    while process.poll() is None and (not journal.exists() or journal.stat().st_size == before):
        time.sleep(0.005)
    delay_s = drawn.uniform(0, reach * training_s)
    time.sleep(delay_s)
    process.kill()
    return (
        f"{delay_s:.2f} s into training"
        if process.wait() == -signal.SIGKILL
        else "not: it had finished"
    )


def _differences(left: Path, right: Path) -> list[str]:
    odd = differences(_final(left), _final(right))
    if (left / "model" / "model.safetensors").read_bytes() != (
        right / "model" / "model.safetensors"
    ).read_bytes():
        odd.append("exported model")
    return odd + (["metrics"] if _numbers(left) != _numbers(right) else [])


def _final(run_folder: Path) -> Any:
    store = CheckpointStore(run_folder / "checkpoints", keep=2)
    return load(store.path_of(store.steps()[-1]))


def _numbers(run_folder: Path) -> list[dict[str, Any]]:
    records = (
        record
        for record in read_journal(run_folder / "metrics.jsonl")
        if record["kind"] in ("step", "evaluation")
    )
    return [
        {key: value for key, value in record.items() if key not in TIMING} for record in records
    ]


def _continued(run_folder: Path) -> bool:
    return any(
        record["kind"] == "start" and record["resumed"]
        for record in read_journal(run_folder / "metrics.jsonl")
    )


if __name__ == "__main__":
    main()
