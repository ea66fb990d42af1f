"""What `brimful train quickstart training.steps=1` takes until its step is done, and what part of
`brimful run quickstart` is not training.

    python benchmarks/start_cpu.py [--rounds 5] [--runs 1]

Every round is two processes, one after the other. CPU seconds of all their threads and processes
count until they say that the step is done. The first process has an empty cache folder, the second
one finds what the first has left. `brimful run quickstart` is timed by the wall clock, with an
empty cache folder, beside the time its run says steps took. Data are prepared in a process of their
own where there are two cores.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

NAME, ONE_STEP, FIRST_STEP = "quickstart", "training.steps=1", "step 1/1"
WANTED_S, WANTED_SHARE = 5.0, 0.08


def main() -> None:
    """Measure, print, and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=1, help="of `brimful run quickstart`")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    empty_s, kept_s = [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            empty_s.append(_before_first_step(Path(folder)))
            kept_s.append(_before_first_step(Path(folder)))
        print(f"first step after {empty_s[-1]:.1f} CPU s, again {kept_s[-1]:.1f}", flush=True)
    runs = [_quickstart() for _ in range(options.runs)]
    print(f"quickstart: {runs}")
    from record import summary, write_record  # bring torch

    values: dict[str, Any] = {
        "load_average_before": load,
        "cores": len(os.sched_getaffinity(0)),
        "first_step_cpu_s": {
            "empty_cache": summary(empty_s),
            "later": summary(kept_s),
            "wanted": WANTED_S,
        },
        "quickstart": {"runs": runs, "wanted_share_outside_training": WANTED_SHARE},
    }
    print(write_record("start_cpu", values))


def _before_first_step(folder: Path) -> float:
    """CPU seconds of a new process and its children until its first step is done."""
    name = f"start-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "brimful", "train", NAME, ONE_STEP, f"run.name={name}"],
        env=os.environ | {"BRIMFUL_CACHE": str(folder / "cache"), "BRIMFUL_RUNS": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said, seconds = [], None
    for line in process.stdout:
        said.append(line)
        if seconds is None and line.startswith(FIRST_STEP):
            seconds = _cpu_s(psutil.Process(process.pid))
    if process.wait() or seconds is None:
        raise SystemExit(f"no first step:\n{''.join(said)}")
    return seconds


def _cpu_s(process: psutil.Process) -> float:
    """Of a process, of its living children and of those it waited for."""
    times = process.cpu_times()
    own = times.user + times.system + times.children_user + times.children_system
    return float(own + sum(map(_cpu_s, process.children())))


def _quickstart() -> dict[str, float]:
    """Wall seconds of the whole command, and those of its steps."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "brimful", "run", NAME],
            env=os.environ | {"BRIMFUL_CACHE": f"{folder}/cache", "BRIMFUL_RUNS": folder},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        wall_s = time.perf_counter() - began
        from brimful.report.predictions import comparisons  # only where it is needed
        from brimful.runs import read_run

        measured = {each.key: each.measured for each in comparisons(read_run(Path(folder, NAME)))}
    steps_s = float(measured["training_time_s"] or 0.0)
    return {"wall_s": wall_s, "training_s": steps_s, "share_outside": 1 - steps_s / wall_s}


if __name__ == "__main__":
    main()
