"""How long plans take and what memory they need, each in a process of its own: asked for the first
time, changed, and asked again; with and without recordings that come with brimful; and what
`brimful train` plans before its first step.

    python benchmarks/plan_speed.py [--rounds N] [--cases WORD ...]

Each case begins with an empty cache folder, which its later questions share. CPU seconds count, of
all threads; wall seconds depend on what else the machine does. Files of Python and of the libraries
are in the page cache after the first process, which is not measured, and compiled Python files are
there. The model of the training case has to be in the user's cache folder, as after a
`brimful train lora`.
"""

import argparse
import contextlib
import json
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.base.env import cache_folder
from brimful.base.units import MIB

_LORA = ("plan", "quickstart", "tokenizer=null", "sequence_length=2048", "batch.sequences=16")
_RANK = "adapter.rank=16"
_8B = (*_LORA, "model=meta-llama/Llama-3.1-8B")
_70B = (*_LORA, "model=meta-llama/Llama-3.1-70B", "quantize=nf4", "--on", "NVIDIA H200")
_EIGHT = "8 x NVIDIA H100 80GB HBM3"
_PARTS = (*_LORA[:-1], "batch.sequences=64", "model=meta-llama/Llama-3.1-70B")
_1B = (*_LORA, _RANK, "model=EleutherAI/pythia-1b", "--on", "T4")
_GEMMA = ("plan", "code-lora", "--on", "all")
TRAINED = (
    "lora",
    "data.path=pairs.jsonl",
    "batch.sequences=4",
    "training={steps: 3}",
    "run.name=planned",
)
_SPOKEN = "brimful train " + " ".join(TRAINED)


@dataclass(frozen=True)
class Question:
    """One row of the table.

    Attributes:
        words: Of the command.
        before_s: CPU seconds when the work on it began, as that task says (one thread of a busy
            machine).
        wanted_s: At most.
        first_answer_s: At most until the answer is shown, where the rest may follow.
    """

    words: tuple[str, ...]
    before_s: str
    wanted_s: float
    first_answer_s: float | None = None


CASES: dict[str, dict[str, Question]] = {
    "8B LoRA, one device": {
        "first": Question((*_8B, _RANK, "--on", "T4"), "46", 1.0),
        "again": Question((*_8B, _RANK, "--on", "T4"), "0.5-0.7", 1.0),
    },
    "8B LoRA, all devices": {"first": Question((*_8B, _RANK, "--on", "all"), "87", 3.0)},
    "code-lora (Gemma 2 2B), all devices": {"first": Question(_GEMMA, "303", 4.0)},
    "70B QLoRA, one device": {
        "first": Question((*_70B, _RANK), "27", 1.5),
        "another rank": Question((*_70B, "adapter.rank=24"), "1.5-2.8", 0.3),
    },
    "70B in parts, LoRA": {
        "first": Question((*_PARTS, _RANK, "--on", _EIGHT), "41", 30.0),
        "16 devices": Question((*_PARTS, _RANK, "--on", f"2 x {_EIGHT}"), "-", 5.0),
        "64 devices": Question((*_PARTS, _RANK, "--on", f"8 x {_EIGHT}"), "29.6", 5.0),
    },
    "70B in parts, QLoRA": {
        "first": Question((*_PARTS, _RANK, "quantize=nf4", "--on", "2 x NVIDIA L4"), "55", 30.0),
    },
    "pythia-1b LoRA, no recording ships, one device": {"first": Question(_1B, "-", 12.0, 6.0)},
    "train, 135M, what it plans": {"first": Question(TRAINED, "36", 3.0)},
}
TARGET_MEMORY_BYTES = 300_000_000
"""Of a process that plans with shipped recordings."""


@dataclass(frozen=True)
class Measured:
    """One process: processor and wall seconds, the most memory it had resident, and the processor
    seconds until its terminal showed an answer.
    """

    cpu_s: float
    wall_s: float
    memory_bytes: int
    first_answer_s: float | None = None


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", nargs="+", default=[""], help="words in their names; all")
    parser.add_argument("--planning", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.planning:
        print(json.dumps(planning_of_training(arguments.planning)))
        return
    load = os.getloadavg()[0]
    chosen = {
        name: questions
        for name, questions in CASES.items()
        if any(word in name for word in arguments.cases)
    }
    _warm_up()
    # This process has no torch meanwhile: a process that it starts counts its memory, too.
    measured = {name: _case(name, chosen[name], arguments.rounds) for name in chosen}
    results = {
        name: {kind: _row(chosen[name][kind], runs) for kind, runs in each.items()}
        for name, each in measured.items()
    }
    values = {
        "rounds": arguments.rounds,
        "cores": os.cpu_count(),
        "load_average_before": load,
        "target_memory_bytes": TARGET_MEMORY_BYTES,
        "results": results,
    }
    if len(chosen) == len(CASES):
        from record import write_record  # brings torch

        print(write_record("plan_speed", values))


def _warm_up() -> None:
    """Let Python compile what plans import."""
    with tempfile.TemporaryDirectory() as folder:
        for words in (CASES["8B LoRA, one device"]["first"].words, _1B):
            plan(words, Path(folder))


def _case(name: str, questions: dict[str, Question], rounds: int) -> dict[str, list[Measured]]:
    measured: dict[str, list[Measured]] = {kind: [] for kind in questions}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            for kind, question in questions.items():
                measured[kind].append(_ask(question, Path(folder)))
    for kind, question in questions.items():
        _say(f"{name}, {kind}", question, measured[kind])
    return measured


def _ask(question: Question, cache: Path) -> Measured:
    if question.words is TRAINED:
        return _train(cache)
    return plan(question.words, cache, watched=question.first_answer_s is not None)


def _say(name: str, question: Question, runs: Sequence[Measured]) -> None:
    def median(key: str) -> float:
        return float(statistics.median(getattr(run, key) for run in runs))

    first = ""
    if question.first_answer_s is not None:
        first = f", answer after {median('first_answer_s'):.1f}"
    print(
        f"{name}: {median('cpu_s'):.2f} s CPU ({min(run.cpu_s for run in runs):.2f} to"
        f" {max(run.cpu_s for run in runs):.2f}; wanted {question.wanted_s:g}, was"
        f" {question.before_s}){first}, {median('wall_s'):.1f} s,"
        f" {median('memory_bytes') / MIB:.0f} MiB",
        flush=True,
    )


def _row(question: Question, runs: Sequence[Measured]) -> dict[str, Any]:
    from record import summary  # brings torch

    is_training = question.words is TRAINED
    row: dict[str, Any] = {
        "command": _SPOKEN if is_training else " ".join(["brimful", *question.words]),
        "before_cpu_s": question.before_s,
        "wanted_cpu_s": question.wanted_s,
    }
    keys = ["cpu_s", "wall_s", "memory_bytes"]
    if question.first_answer_s is not None:
        row["wanted_first_answer_cpu_s"] = question.first_answer_s
        keys.append("first_answer_s")
    return row | {key: summary([getattr(run, key) for run in runs]) for key in keys}


def _environment(cache: Path) -> dict[str, str]:
    """The environment of a user's process: Python keeps what it compiled."""
    kept = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"BRIMFUL_CACHE": str(cache), "HF_HUB_OFFLINE": "1"}


def plan(words: Sequence[str], cache: Path, *, watched: bool = False) -> Measured:
    """Run the command in a fresh process with this cache folder; `watched`: on a terminal, and its
    first answer is waited for.

    Raises:
        RuntimeError: it could not estimate anything, or crashed.
    """
    command = [sys.executable, "-c", "from brimful.cli import main; main()", *words]
    ours, theirs = pty.openpty() if watched else (None, subprocess.DEVNULL)
    with tempfile.TemporaryFile() as errors:
        start_s = time.perf_counter()
        process = subprocess.Popen(
            command,
            env=_environment(cache) | {"TERM": "xterm", "COLUMNS": "150"},
            stdout=theirs,
            stderr=theirs if watched else errors,
        )
        first_answer_s = None
        if ours is not None:
            os.close(theirs)
            first_answer_s = _first_answer_s(ours, process.pid)
            os.close(ours)
        measured = _ended(process, start_s, first_answer_s)
        if process.returncode not in (0, 1):
            errors.seek(0)
            raise RuntimeError(
                f"brimful {' '.join(words)} ended with {process.returncode}:"
                f" {errors.read().decode(errors='replace')[-2000:]}"
            )
    return measured


def _ended(
    process: subprocess.Popen[Any], start_s: float, first_answer_s: float | None = None
) -> Measured:
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    return Measured(cpu_s, wall_s, usage.ru_maxrss * 1024, first_answer_s)


def _first_answer_s(terminal: int, pid: int) -> float | None:
    """Read a process's terminal to its end; return its processor seconds when an answer came."""
    shown, seconds = b"", None
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(terminal, 65_536):
            shown += part
            if seconds is None and re.search(rb"(Fits|fit) [^:]*: [\d.]+ of [\d.]+ GiB", shown):
                fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1]
                ticks = sum(int(each) for each in fields.split()[11:13])
                seconds = ticks / os.sysconf("SC_CLK_TCK")
    return seconds


def _train(cache: Path) -> Measured:
    """Measure what a training plans, in a process that ends before its first step."""
    (cache / "models").symlink_to(cache_folder() / "models")
    command = [sys.executable, __file__, "--planning", str(cache)]
    start_s = time.perf_counter()
    process = subprocess.Popen(
        command, env=_environment(cache), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    said, errors = process.stdout.read(), process.stderr.read()
    whole = _ended(process, start_s)
    if process.returncode:
        raise RuntimeError(f"planning of a training failed: {errors[-2000:]}")
    planned = json.loads(said.splitlines()[-1])
    return Measured(planned["cpu_s"], planned["wall_s"], whole.memory_bytes)


class _Planned(BaseException):
    """All is planned."""


def planning_of_training(folder: Path) -> dict[str, float]:
    """Return processor and wall seconds of planning in a training that begins in a folder, before
    and after its data are read. Its first step is not made.
    """
    from rich.console import Console

    from brimful.cli.output import loading
    from brimful.recipe.loading import load

    with loading():  # as the command does
        from brimful.chains import pipeline

    os.chdir(folder)
    rows = [
        {"question": f"What is {number} plus {number}?", "answer": f"{2 * number}, of course."}
        for number in range(200)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    Path("pairs.jsonl").write_text(text, encoding="utf-8")
    spent = {"cpu_s": 0.0, "wall_s": 0.0}

    def timed(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            result = function(*arguments)
            spent["cpu_s"] += time.process_time() - cpu_s
            spent["wall_s"] += time.perf_counter() - wall_s
            return result

        return call

    def stop(*arguments: Any) -> None:
        raise _Planned

    replaced = {name: timed(getattr(pipeline, name)) for name in ("earlier_plans", "settle_plan")}
    for name, function in (replaced | {"train_session": stop}).items():
        setattr(pipeline, name, function)
    with contextlib.suppress(_Planned):
        pipeline.train(load(TRAINED[0], list(TRAINED[1:])), Console(file=sys.stderr))
    return spent


if __name__ == "__main__":
    main()
