"""What the monitor costs a run: CPU time of its thread over that of the process, and runs with and
without it side by side.

    python benchmarks/monitor_overhead.py [--rounds 8] [--steps 40] [recipe] [key=value ...]

Each round trains the recipe twice in this process, with the monitor and without, in turns first.
The share is read from what the monitor itself records (CLOCK_THREAD_CPUTIME_ID of its thread over
CLOCK_PROCESS_CPUTIME_ID while it ran); the comparison is of whole training sessions, and shows what
the share does not count, such as waiting for the interpreter.
"""

import argparse
import io
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from brimful.base import env

env.wait_politely()
env.keep_few_kernels()

from rich.console import Console  # noqa: E402

from brimful.base.rundir import read_journal  # noqa: E402
from brimful.chains import pipeline, training_session  # noqa: E402 - after what acts before torch is imported
from brimful.hardware.monitor import Monitor  # noqa: E402
from brimful.hardware.monitored import read_monitor  # noqa: E402
from brimful.recipe import load  # noqa: E402
from record import ratio_interval, summary, write_record  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("recipe", nargs="?", default="quickstart")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [*options.overrides, f"training.steps={options.steps}", f"run.folder={folder}"]
        _train(options.recipe, [*overrides, "run.name=warm"], with_monitor=True)
        found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
        for number in range(options.rounds):
            for with_monitor in (number % 2 == 0, number % 2 == 1):
                name = f"run.name=round{number}-{with_monitor}"
                found[with_monitor].append(
                    _train(options.recipe, [*overrides, name], with_monitor=with_monitor)
                )
                print(
                    number,
                    "with" if with_monitor else "without",
                    found[with_monitor][-1],
                    flush=True,
                )
    _write(options.recipe, options.steps, found[True], found[False])


def _train(recipe: str, overrides: list[str], *, with_monitor: bool) -> dict[str, Any]:
    """One run; its training session's time and CPU time, and what the monitor recorded of
    itself.
    """
    spent: dict[str, Any] = {}

    def timed(folder: Path, *arguments: Any, **options: Any) -> Any:
        spent["folder"] = folder
        inner = Monitor(folder, *arguments, **options) if with_monitor else nullcontext()
        return _Stopwatch(inner, spent)

    training_session.Monitor = timed  # type: ignore[assignment, attr-defined]
    pipeline.train(load(recipe, overrides), Console(file=io.StringIO()))
    records = list(read_journal(spent["folder"] / "metrics.jsonl"))
    steps = [record["step_time_s"] for record in records if record["kind"] == "step"]
    values = {
        "session_s": spent["seconds"],
        "cpu_s": spent["cpu_s"],
        "step_time_s": sorted(steps)[len(steps) // 2],
    }
    if not with_monitor:
        return values
    (end,) = (
        record
        for record in read_journal(spent["folder"] / "monitor.jsonl")
        if record["kind"] == "monitor_end"
    )
    samples = read_monitor(spent["folder"]).samples
    costs = {
        "samples": end["samples"],
        "sampling_cpu_s": end["sampling_cpu_s"],
        "share": end["sampling_cpu_s"] / end["process_cpu_s"],
    }
    return {**values, **costs, "longest_interval_s": max(sample.covers_s for sample in samples)}


class _Stopwatch:
    """Time and CPU time of a training session, the monitor's opening and closing in it."""

    def __init__(self, inner: Any, spent: dict[str, Any]) -> None:
        self._inner, self._spent = inner, spent

    def __enter__(self) -> None:
        self._before = time.perf_counter(), time.process_time()
        self._inner.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._inner.__exit__(*exception)
        self._spent |= {
            "seconds": time.perf_counter() - self._before[0],
            "cpu_s": time.process_time() - self._before[1],
        }


def _write(
    recipe: str, steps: int, watched: list[dict[str, Any]], alone: list[dict[str, Any]]
) -> None:
    names = ("session_s", "cpu_s", "step_time_s")
    ratios = {
        name: ratio_interval([each[name] for each in watched], [each[name] for each in alone])
        for name in names
    }
    costs = {
        name: summary([each[name] for each in watched])
        for name in ("share", "samples", "sampling_cpu_s", "longest_interval_s")
    }
    per_sample = summary([each["sampling_cpu_s"] / each["samples"] for each in watched])
    path = write_record(
        "monitor_overhead",
        {
            "recipe": recipe,
            "steps": steps,
            "share_of_process_cpu_time": costs.pop("share"),
            "cpu_s_per_sample": per_sample,
            **costs,
            "with_over_without": ratios,
            "with_monitor": watched,
            "without_monitor": alone,
        },
    )
    print(path.read_text())


if __name__ == "__main__":
    main()
