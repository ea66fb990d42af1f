"""A run read on from another process: only what is new, times as the run had them, journals that
are cut back, processes that halt or go away.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from run_records import NOW, START
from run_records import watched_step as step

from brimful.base.rundir import Journal, Lease
from brimful.base.types import JsonDict
from brimful.report.live.watched import Watched
from brimful.runs.records import Record

HOLD = """
import sys
from pathlib import Path
from brimful.base.rundir import Lease
lease = Lease.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def write(path: Path, *records: JsonDict, changed: float = NOW + 50) -> None:
    with Journal(path) as journal:
        for record in records:
            journal.append(record)
    os.utime(path, (changed, changed))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of 100 steps of half a second that made 40, with its plan."""
    (tmp_path / "plan.json").write_text(
        json.dumps({"predicted": {"step_time_s": 0.25, "tokens_per_s": 1}})
    )
    write(
        tmp_path / "metrics.jsonl",
        START,
        *[step(number, loss=5.0 - number / 40) for number in range(1, 41)],
        changed=NOW + 20,
    )
    return tmp_path


@pytest.fixture
def holder(run: Path) -> Iterator[subprocess.Popen[str]]:
    """Another living process that holds the run's lease and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def watched_at(run: Path, now: float = NOW + 20) -> Watched:
    found = Watched(run, lambda: now)
    found.poll()
    return found


def test_what_happened_before_is_read_back_with_the_pace_it_had(run: Path) -> None:
    watched = watched_at(run)
    assert (
        watched.state.step,
        watched.state.total_steps,
        watched.state.planned["step_time_s"],
    ) == (40, 100, 0.25)
    assert watched.state.remaining_s == pytest.approx(30.0, abs=1.0)
    assert (len(watched.losses), watched.losses[-1]) == (40, 4.0)
    assert watched.newest_s == pytest.approx(0.0)


def test_only_new_records_are_told_and_each_as_the_state_was_then(run: Path) -> None:
    watched, told = watched_at(run), list[tuple[int, int]]()
    tell: Callable[[Record], None] = lambda record: told.append(  # noqa: E731
        (record.step, watched.state.step)
    )
    watched.poll(tell)
    write(run / "metrics.jsonl", step(41), step(42))
    watched.poll(tell)
    assert told == [(41, 41), (42, 42)]


def test_a_resumed_run_is_read_anew_and_only_its_new_session_told(run: Path) -> None:
    watched, told = watched_at(run), list[Record]()
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "plan.json").write_text(json.dumps({"predicted": {"step_time_s": 0.4}}))
    with Journal(run / "metrics.jsonl", keep_bytes=sum(map(len, lines[:31]))) as journal:
        journal.append(START | {"step": 30, "resumed": True})
        journal.append(step(31, time=NOW + 900))
    watched.poll(told.append)
    assert [(record.kind, record.step) for record in told] == [("start", 30), ("step", 31)]
    assert (watched.state.step, len(watched.losses), watched.state.planned) == (
        31,
        31,
        {"step_time_s": 0.4},
    )


def test_the_monitors_newest_sample_and_limits_are_kept(run: Path) -> None:
    watched = watched_at(run)
    assert watched.sample is None
    write(
        run / "monitor.jsonl",
        {"kind": "monitor", "time": NOW, "limits": {"cores": 2, "power_limit_w": "four"}},
        {"kind": "sample", "time": NOW + 1, "covers_s": 1.0, "rss_bytes": 7},
    )
    write(
        run / "monitor.jsonl",
        {"kind": "sample", "time": "noon"},
        {"kind": "sample", "time": NOW + 2, "covers_s": 1.0, "rss_bytes": 8},
    )
    watched.poll()
    assert watched.sample is not None
    assert (watched.sample.readings["rss_bytes"], watched.limits) == (8.0, {"cores": 2})


def test_a_record_is_stale_when_it_is_older_than_steps_explain(run: Path) -> None:
    assert not watched_at(run, NOW + 20 + 29).is_stale
    assert watched_at(run, NOW + 20 + 31).is_stale
    write(run / "metrics.jsonl", step(41, step_time_s=60.0), changed=NOW + 80)
    assert not watched_at(run, NOW + 80 + 590).is_stale
    assert watched_at(run, NOW + 80 + 610).is_stale


def test_a_clock_that_runs_behind_makes_no_negative_age(run: Path) -> None:
    assert watched_at(run, NOW - 500).newest_s == 0.0


def test_the_age_in_a_copy_is_that_of_the_record_not_of_the_copying(run: Path) -> None:
    (run / "mirror.json").write_text(
        json.dumps({"path": str(run), "state": "ok", "since": NOW, "durable_step": 40})
    )
    os.utime(run / "metrics.jsonl", (NOW + 320,) * 2)
    assert watched_at(run, NOW + 320).newest_s == pytest.approx(300.0)


def test_who_writes_is_seen_and_that_it_waits_halts_or_is_gone(
    run: Path, holder: subprocess.Popen[str]
) -> None:
    now = time.time()
    watched = Watched(run, lambda: now)
    watched.poll()
    assert watched.writer is not None
    assert watched.writer.pid == holder.pid
    assert watched.status().description.startswith(f"running: process {holder.pid}, since ")
    now += 0.1  # one hundredth of CPU time in so short a time would look like a busy process
    watched.poll()
    assert watched.cores is None
    now += 60
    watched.poll()
    assert watched.cores is not None
    assert watched.cores < 0.2
    holder.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 120
    while not watched.is_halted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watched.is_halted
    holder.kill()
    holder.wait()
    watched.poll()
    assert (watched.writer, watched.process_has_ended, watched.process_lives) == (None, True, False)


def test_the_end_of_a_session_is_known_from_the_recipe_and_the_process(run: Path) -> None:
    (run / "recipe.yaml").write_text("name: x\nrun: {session: 2h}\n")
    with Lease.acquire(run):
        started = psutil.Process().create_time()
        watched = watched_at(run, started + 3600)
        assert watched.session_left_s == pytest.approx(3600, abs=1)
    (run / "recipe.yaml").write_text("name: x\nrun: {session: forever}\n")
    assert watched_at(run).session_left_s is None


def test_a_look_costs_little_however_long_the_run_is(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(run / "metrics.jsonl", *[step(number) for number in range(41, 3000)])
    with Lease.acquire(run):
        watched = watched_at(run)
        monkeypatch.setattr("json.loads", lambda *_: pytest.fail("a line was read again"))
        monkeypatch.setattr("brimful.report.live.watched.run_writer", lambda _: watched.writer)
        monkeypatch.setattr("brimful.report.live.watched.recovery_points", lambda _: watched.points)
        watched.poll()
        monkeypatch.undo()


def test_a_folder_that_holds_nothing_yet_is_watched_without_trouble(tmp_path: Path) -> None:
    watched = watched_at(tmp_path)
    assert (watched.newest_s, watched.is_stale, watched.sample, watched.status().status) == (
        None,
        False,
        None,
        "not started",
    )
