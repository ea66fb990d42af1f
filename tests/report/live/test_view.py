"""What a watched run shows: every number that is known and none that is not, in any width, on any
console.
"""

import io
import json
import os
import random
import re
import time
from pathlib import Path

import pytest
from rich.console import Console
from run_records import NOW, START, watched_step
from syrupy.assertion import SnapshotAssertion

from brimful.base.rundir import Journal, Lease
from brimful.base.types import JsonDict
from brimful.recipe import shipped_text
from brimful.report.live.view import WatchView, state_line
from brimful.report.live.watched import Watched

GPU = {
    "kind": "sample",
    "time": NOW + 20,
    "covers_s": 2.0,
    "device_utilization": 0.97,
    "device_memory_bytes": 5 * 1024**3,
    "power_w": 65.2,
    "temperature_c": 71.0,
    "sm_clock_mhz": 1590.0,
    "throttled_s": {"power cap": 0.8, "thermal (software)": 0.0},
    "process_cpu_cores": 1.1,
    "rss_bytes": 3 * 1024**3,
    "memory_available_bytes": 9 * 1024**3,
    "process_swap_bytes": 1024**2,
    "disk_free_bytes": 1024**3,
}
LIMITS = {
    "kind": "monitor",
    "time": NOW,
    "limits": {"power_limit_w": 70.0, "device_memory_bytes": 16 * 1024**3, "cores": 2},
}
MIRROR = {
    "schema_version": 1,
    "path": "/drive/quickstart",
    "state": "behind",
    "since": NOW - 60,
    "local_step": 40,
    "durable_step": 20,
    "durable_time": NOW - 110,
}


def write(path: Path, *records: JsonDict) -> None:
    with Journal(path) as journal:
        for record in records:
            journal.append(record)
    os.utime(path, (NOW + 20, NOW + 20))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run in the midst of its work, on a GPU, with a mirror."""
    steps = [
        watched_step(number, loss=8.0 - number / 10, loader_wait_s=0.1) for number in range(1, 41)
    ]
    (tmp_path / "recipe.yaml").write_text(shipped_text("quickstart"))
    (tmp_path / "plan.json").write_text(
        json.dumps({"predicted": {"step_time_s": 0.45, "peak_memory_bytes": 1.5 * 1024**3}})
    )
    write(tmp_path / "metrics.jsonl", START, *steps)
    write(tmp_path / "monitor.jsonl", LIMITS, GPU)
    (tmp_path / "mirror.json").write_text(json.dumps(MIRROR))
    point = tmp_path / "checkpoints" / "step-00000040"
    point.mkdir(parents=True)
    os.utime(point, (NOW + 8, NOW + 8))
    return tmp_path


def look(run: Path, now: float = NOW + 21) -> Watched:
    watched = Watched(run, lambda: now)
    watched.poll()
    return watched


def screen(view: WatchView, width: int = 100, encoding: str = "utf-8") -> str:
    buffer = io.BytesIO()
    file = io.TextIOWrapper(buffer, encoding=encoding, errors="strict")
    Console(file=file, force_terminal=True, width=width, color_system=None).print(view)
    file.flush()
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", buffer.getvalue().decode(encoding))


def plain(watched: Watched, of_several: str = "") -> list[str]:
    return WatchView(watched, of_several).lines(Console(file=io.StringIO(), width=80))


def test_every_number_is_there_in_lines(run: Path, snapshot: SnapshotAssertion) -> None:
    with Lease.acquire(run):
        lines = plain(look(run), "s: 1 of 4 runs finished; quickstart")
    assert lines == snapshot


@pytest.mark.parametrize("width", [20, 40, 60, 80, 140])
def test_no_line_is_wider_than_the_terminal_and_sixty_columns_lose_nothing(
    run: Path, width: int
) -> None:
    with Lease.acquire(run):
        shown = screen(WatchView(look(run)), width)
    assert max(map(len, shown.splitlines())) <= width
    if width >= 60:
        words = " ".join(shown.split())
        for told in (
            "40/100 (40 %)",
            "32 s left",
            "loss 4.840",
            "device 97 %",
            "of 16.0 GiB",
            "65 of 70 W",
            "power cap 40 %",
            "disk free 1.00 GiB",
        ):
            assert told in words
        for told in ("step 40, 13 s ago", "step 20, 2m 11s ago (behind)", "newest record 1 s ago"):
            assert told in words


def test_an_ascii_terminal_gets_ascii_only(run: Path) -> None:
    assert screen(WatchView(look(run)), encoding="ascii").isascii()


def test_what_was_not_read_is_not_shown(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    write(tmp_path / "metrics.jsonl", START, {"kind": "step", "step": 1})
    write(
        tmp_path / "monitor.jsonl",
        {"kind": "sample", "time": NOW + 20, "covers_s": 0.0, "rss_bytes": 1024},
    )
    with Lease.acquire(tmp_path):
        lines = plain(look(tmp_path))
    assert lines[1:-1] == snapshot


def test_old_samples_say_how_old_they_are(run: Path, snapshot: SnapshotAssertion) -> None:
    with Lease.acquire(run):
        assert plain(look(run, NOW + 220))[4] == snapshot


def test_what_device_and_machine_did_last_is_not_shown_of_a_run_that_nobody_writes(
    run: Path,
) -> None:
    assert not [line for line in plain(look(run)) if "device" in line or "CPU" in line]


def test_a_mirror_that_fails_says_since_when_and_why(
    run: Path, snapshot: SnapshotAssertion
) -> None:
    def points() -> str:
        return next(line for line in plain(look(run)) if line.startswith("recovery point"))

    (run / "mirror.json").write_text(
        json.dumps(MIRROR | {"state": "failing", "error": "No space left on device"})
    )
    assert points() == snapshot
    (run / "mirror.json").write_text(
        json.dumps(MIRROR | {"durable_step": None, "durable_time": None})
    )
    assert points() == snapshot


def test_in_a_copy_the_points_of_both_places_are_told(
    run: Path, snapshot: SnapshotAssertion
) -> None:
    (run / "run.json").write_text('{"schema_version": 1, "status": "running"}')
    (run / "mirror.json").write_text(json.dumps(MIRROR | {"path": str(run), "state": "ok"}))
    os.utime(run / "mirror.json", (NOW + 20,) * 2)
    (run / "environment.json").write_text('{"brimful": ""}')
    (run / "data.json").write_text('{"fingerprints": {}}')
    lines = plain(look(run))
    assert lines == snapshot
    assert state_line(look(run, NOW + 115)) == snapshot
    (run / "data.json").write_text("{")
    assert state_line(look(run)) == snapshot


def test_a_silent_run_says_how_long_and_what_its_process_does(
    run: Path, snapshot: SnapshotAssertion
) -> None:
    with Lease.acquire(run):
        watched = look(run, NOW + 220)
        watched.cores = 1.9
        assert state_line(watched) == snapshot
        watched.cores = 0.0
        assert state_line(watched) == snapshot
        watched.cores = None
        assert state_line(watched) == snapshot
        assert "left" not in plain(watched)[0]


def test_a_run_without_records_prepares(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with Lease.acquire(tmp_path):
        assert state_line(look(tmp_path, time.time())) == snapshot


def test_a_run_that_nobody_writes_says_where_it_ended_and_what_is_missing(
    run: Path, snapshot: SnapshotAssertion
) -> None:
    (run / "run.json").write_text('{"schema_version": 1, "status": "stopped"}')
    assert state_line(look(run)) == snapshot


def test_records_of_any_values_are_shown_or_left_out(tmp_path: Path) -> None:
    """Random values under the names that are read, in every file that is read."""
    drawn = random.Random(3)
    values = [None, True, 0, -1, 1e308, float("inf"), "x", [], [1], {}, {"a": 1}, 3.5]
    names = [
        "step",
        "total_steps",
        "loss",
        "step_time_s",
        "loader_wait_s",
        "memory_bytes",
        "skipped",
        "time",
        "best",
        "bytes",
        "seconds",
        "reason",
        "from",
        "to",
    ]
    names += [
        "run",
        "seconds_per_batch",
        "limits",
        "covers_s",
        "device_utilization",
        "power_w",
        "throttled_s",
        "rss_bytes",
        "disk_free_bytes",
        "message",
    ]
    kinds = [
        "start",
        "step",
        "evaluation",
        "checkpoint",
        "event",
        "out_of_memory",
        "end",
        "loader",
        "monitor",
        "sample",
        7,
        None,
    ]
    for number in range(60):
        run = tmp_path / str(number)
        run.mkdir()
        for file in ("metrics.jsonl", "monitor.jsonl"):
            records = [
                {
                    "kind": drawn.choice(kinds),
                    **{name: drawn.choice(values) for name in drawn.sample(names, 8)},
                }
                for _ in range(6)
            ]
            (run / file).write_text("".join(json.dumps(record) + "\n" for record in records))
        status = {
            name: drawn.choice(values)
            for name in (
                "path",
                "state",
                "since",
                "local_step",
                "durable_step",
                "durable_time",
                "error",
            )
        }
        (run / "mirror.json").write_text(
            json.dumps(status | drawn.choice([{}, {"path": "/drive", "since": 1.0}]))
        )
        (run / "plan.json").write_text(
            json.dumps({"predicted": {"step_time_s": drawn.choice(values)}})
        )
        (run / "run.json").write_text(
            json.dumps({"schema_version": 1, "status": drawn.choice(values)})
        )
        watched = look(run)
        assert screen(WatchView(watched), 60)
        assert plain(watched)
