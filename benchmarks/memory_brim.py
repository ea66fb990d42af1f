"""Jobs whose memory is limited below what they need, each in a control group of its own: is each
refused by its plan, or does it stop itself in time, with a checkpoint, before the system ends it?

    python benchmarks/memory_brim.py --folder FOLDER [--jobs 100] [--seed 48] [--part 1/2]
                                     [--first 1] [--answered FILE ...]

Needs Linux with control groups of version 1 whose memory controller may be written, as in many
containers. Each job trains a small model (JOBS) in a process forked from one that has loaded the
libraries, whose pages do not count. Half of the jobs get a limit between what their plan alone took
and what the whole job took without one. The others get one that they fit, and another process in
their group takes 4 to 32 MiB/s from their first step on until nothing is left; they would never
finish. What finishes below its limit was not over it, and another one is drawn. Of every tenth job
that stops itself the limit is lifted, and it goes on. With --part, as many processes share the jobs
and write no record; --first is the number of the first one; with --answered, rows that they printed
are kept.
"""

import argparse
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import brimful
from brimful.base.errors import PlanError, SessionOver
from brimful.base.units import MIB
from record import write_record

JOBS: dict[str, list[str]] = {
    "weights": ["quickstart", "model.width=384", "sequence_length=64", "plan.micro_batch=8"],
    "activations": ["quickstart", "model.layers=2", "plan.micro_batch=8"],
    "masked": ["tiny-encoder", "batch.sequences=16", "plan.micro_batch=16"],
}
ALWAYS = ["plan.threads=1", "plan.compile=false", "evaluation.every=1000000"]
STEPS, ENDLESS = 4, 1_000_000
TIME_LIMIT_S = 400.0


def main() -> None:
    """Measure what jobs need, run them under limits, print and record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=48)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--answered", type=Path, nargs="+", default=[])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    part, parts = map(int, asked.part.split("/"))
    lines = [line for file in asked.answered for line in file.read_text().splitlines()]
    known = [json.loads(line) for line in lines]
    needed = {
        row["job"]: (row["plan_bytes"], row["most_bytes"]) for row in known if "plan_bytes" in row
    }
    for job in sorted(JOBS.keys() - needed.keys()):
        _run(job, asked.folder, None, STEPS, 0)  # fills the cache of data and passes
        planned = _run(job, asked.folder, None, 0, 0)
        row = _run(job, asked.folder, None, STEPS, 0) | {"plan_bytes": planned["most_bytes"]}
        if row["outcome"] != "finished":
            raise SystemExit(f"{row}")
        needed[job] = row["plan_bytes"], row["most_bytes"]
        print(json.dumps(row), flush=True)
    answered = {row["number"]: row for row in known if "number" in row}
    results = list(answered.values())
    number = asked.first - 1
    while sum(row["outcome"] != "finished" for row in results) < asked.jobs / parts:
        number += 1
        if number % parts == part and number not in answered:
            results.append(_drawn(number, asked.seed, asked.folder, needed))
            print(json.dumps(results[-1]), flush=True)
    outcomes = Counter(row["outcome"] for row in results)
    about = {
        "over": len(results) - outcomes["finished"],
        **dict(outcomes),
        "went_on": sum(row.get("went_on", False) for row in results),
        "asked_to_go_on": sum("went_on" in row for row in results),
    }
    print(json.dumps(about))
    if parts == 1:
        values = {"seed": asked.seed, "summary": about, "needed": needed, "jobs": results}
        print(write_record("memory_brim", values))


def _drawn(
    number: int, seed: int, folder: Path, needed: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    """Run the job of this number."""
    drawn = random.Random(f"{seed} {number}")
    job = drawn.choice(sorted(JOBS))
    rate = drawn.choice([0, drawn.uniform(4, 32)])
    share = drawn.uniform(1.2, 1.5) if rate else drawn.uniform(0.1, 0.95)
    plan_bytes, most_bytes = needed[job]
    limit_bytes = plan_bytes + int(share * (most_bytes - plan_bytes))
    row = _run(job, folder, limit_bytes, ENDLESS if rate else STEPS, rate)
    row = {"number": number, "share": round(share, 2), "rate_mib_s": round(rate), **row}
    if row["outcome"] == "stopped" and number % 10 == 0:
        row["went_on"] = _goes_on(job, folder, row["step"])
    return row


def _run(
    job: str, folder: Path, limit_bytes: int | None, steps: int, rate_mib_s: float
) -> dict[str, Any]:
    """Run a job in a group with this limit, beside a process that takes so much a second, and tell
    how it ended.
    """
    run_folder = folder / job
    shutil.rmtree(run_folder, ignore_errors=True)
    group = _own_group() / f"brim-{os.getpid()}"
    group.mkdir()
    if limit_bytes is not None:
        (group / "memory.limit_in_bytes").write_text(str(limit_bytes))
    reads, writes = os.pipe()
    trains = _forked(
        group, lambda: os.write(writes, json.dumps(_train(job, folder, steps)).encode())
    )
    os.close(writes)
    others = []
    if rate_mib_s:
        others.append(_forked(group, lambda: _take(run_folder / "metrics.jsonl", rate_mib_s)))
    status, until_s = None, time.monotonic() + TIME_LIMIT_S
    while status is None and time.monotonic() < until_s:
        time.sleep(0.05)
        ended, told = os.waitpid(trains, os.WNOHANG)
        status = told if ended else None
    for each in [*others, *([] if status is not None else [trains])]:
        os.kill(each, signal.SIGKILL)
        os.waitpid(each, 0)
    with open(reads, "rb") as pipe:
        told_bytes = pipe.read()
    most_bytes = int((group / "memory.max_usage_in_bytes").read_text())
    group.rmdir()
    row = json.loads(told_bytes) if told_bytes else {"outcome": f"ended with status {status}"}
    limit = {} if limit_bytes is None else {"limit_mib": limit_bytes // MIB}
    return {"job": job, **limit, **row, "most_bytes": most_bytes}


def _own_group() -> Path:
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    path = next(line.split(":", 2)[2] for line in lines if line.split(":")[1] == "memory")
    return Path("/sys/fs/cgroup/memory") / path.lstrip("/")


def _forked(group: Path, act: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        act()
        os._exit(0)
    return child


def _train(job: str, folder: Path, steps: int) -> dict[str, Any]:
    recipe, *changes = JOBS[job]
    planned_only, steps = not steps, steps or STEPS
    words = [
        *changes,
        *ALWAYS,
        f"training.steps={steps}",
        f"run.folder={folder}",
        f"run.name={job}",
    ]
    try:
        resolved = brimful.load_recipe(recipe, words)
        if planned_only:
            brimful.plan(resolved)
        else:
            brimful.train(resolved, accept=["training.steps"])
    except PlanError as error:
        return {"outcome": "refused", "says": str(error)[:200]}
    except SessionOver as error:
        kept = sorted((folder / job / "checkpoints").glob("step-*"))
        step = int(kept[-1].name.removeprefix("step-")) if kept else None
        outcome = "stopped" if kept else "no checkpoint"
        return {"outcome": outcome, "step": step, "says": str(error)[:200]}
    except Exception as error:  # a benchmark counts whatever happens
        return {"outcome": "failed", "says": repr(error)[:400]}
    return {"outcome": "finished"}


def _goes_on(job: str, folder: Path, step: int) -> bool:
    """Whether the same command without a limit goes on from the checkpoint to the end."""

    def go_on() -> None:
        os._exit(_train(job, folder, step + 2)["outcome"] != "finished")

    return os.waitpid(_forked(_own_group(), go_on), 0)[1] == 0


def _take(journal: Path, rate_mib_s: float) -> None:
    while not journal.exists() or b'"step"' not in journal.read_bytes():
        time.sleep(0.05)
    held = []
    while True:
        held.append(bytearray(os.urandom(4096) * (MIB // 4096)))
        time.sleep(1 / rate_mib_s)


if __name__ == "__main__":
    main()
