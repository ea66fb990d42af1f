"""Every second of a run under one heading, whatever kind of run it was."""

import json
from collections.abc import Callable

import pytest
from fixture_types import MakeRun
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.predictions import comparisons
from brimful.report.time_spent import TimeSpent, time_spent
from brimful.runs.folder import read_run
from brimful.runs.measurements import measured


def start(step: int = 0) -> JsonDict:
    return {"kind": "start", "step": step, "total_steps": 40, "resumed": step > 0}


def steps(
    first: int, last: int, step_time_s: float, wait_s: float | None = None, time_s: float = 0.0
) -> list[JsonDict]:
    waited = {} if wait_s is None else {"loader_wait_s": wait_s}
    return [
        {
            "kind": "step",
            "step": step,
            "loss": 1.0,
            "step_time_s": step_time_s,
            "memory_bytes": 5,
            "time": time_s + step * step_time_s,
            **waited,
        }
        for step in range(first, last + 1)
    ]


def beside(step: int) -> list[JsonDict]:
    return [
        {"kind": "evaluation", "step": step, "loss": 1.0, "seconds": 3.0},
        {"kind": "checkpoint", "step": step, "bytes": 100, "seconds": 1.0},
    ]


END = {"kind": "end", "step": 40, "seconds": 100.0, "reason": "finished"}


@pytest.fixture
def spent(new_run: MakeRun) -> Callable[..., TimeSpent]:
    def of(*records: JsonDict, monitor: list[JsonDict] | None = None) -> TimeSpent:
        folder = new_run(metrics=list(records))
        if monitor is not None:
            (folder / "monitor.jsonl").write_text(
                "".join(json.dumps(record) + "\n" for record in monitor)
            )
        found = time_spent(read_run(folder))
        assert found is not None
        assert sum(seconds for _, seconds in found.parts) == pytest.approx(found.total_s)
        assert all(seconds > 0 for _, seconds in found.parts)
        return found

    return of


def test_the_parts_add_up_to_the_time_in_all(
    spent: Callable[..., TimeSpent], snapshot: SnapshotAssertion
) -> None:
    found = spent(start(), *steps(1, 10, 2.0, 0.5), *steps(11, 40, 1.0, 0.25), *beside(40), END)

    assert found.total_s == pytest.approx(100.0)
    assert (found.loader_s, found.evaluation_s, found.checkpoint_s) == (
        pytest.approx(12.5),
        3.0,
        1.0,
    )
    assert found.compile_s == pytest.approx(10.0), "ten steps took a second longer than the others"
    assert found.compute_s == pytest.approx(40 - 12.5)
    assert found.start_s == pytest.approx(100 - 40 - 4 - 10)
    assert found.waiting_share == pytest.approx(12.5 / 40)
    assert found.share(found.evaluation_s) == pytest.approx(0.03)
    assert [name for name, _ in found.parts][:2] == snapshot


def test_a_run_from_before_waiting_was_measured_does_not_say_that_it_did_not_wait(
    spent: Callable[..., TimeSpent],
) -> None:
    found = spent(start(), *steps(1, 10, 2.0), *steps(11, 40, 1.0), END)

    assert (found.loader_s, found.waiting_share, found.device_idle_share) == (None, None, None)
    assert "Waiting for data" not in dict(found.parts)


def test_steps_that_a_rollback_repeats_took_their_time_twice(
    spent: Callable[..., TimeSpent],
) -> None:
    found = spent(start(), *steps(1, 20, 1.0, 0.1), *steps(11, 40, 1.0, 0.1), END)

    assert found.compute_s + (found.loader_s or 0.0) == pytest.approx(50.0)


def test_a_step_that_only_waited_is_not_longer_than_it_was(spent: Callable[..., TimeSpent]) -> None:
    found = spent(start(), *steps(1, 40, 1.0, 1.5), END)

    assert (found.compute_s, found.loader_s) == (0.0, 40.0)


def test_a_killed_session_has_at_least_the_time_of_its_steps(
    spent: Callable[..., TimeSpent],
) -> None:
    records = [*steps(1, 10, 1.0, 0.1, time_s=1000.0), *steps(11, 20, 1.5, 0.1, time_s=994.5)]
    for record in records[:10]:
        record["time"] = 1010.0  # the first ten were timed together
    found = spent(start(), *records)

    assert found.total_s == pytest.approx(10.0 + 15.0)
    assert (found.start_s, found.lost_s) == (0.0, 0.0)


def monitor(*sessions: tuple[float, bool]) -> list[JsonDict]:
    """(seconds, whether it ended by itself) of each; one begins where the one before it ended."""
    records: list[JsonDict] = []
    time_s = 0.0
    for covers_s, is_ended in sessions:
        begin = {"kind": "monitor", "time": time_s}
        time_s += covers_s
        sample = {
            "kind": "sample",
            "time": time_s,
            "covers_s": covers_s,
            "device_utilization": 0.75,
            "energy_j": covers_s * 36,
        }
        records += [begin, sample, *([{"kind": "monitor_end", "time": time_s}] if is_ended else [])]
    return records


def test_what_a_kill_cost_is_told_by_the_monitor(spent: Callable[..., TimeSpent]) -> None:
    records = [
        start(),
        *steps(1, 1, 1.001),
        *steps(2, 20, 1.0, 0.1),
        start(20),
        *steps(21, 40, 1.0, 0.1),
        {**END, "seconds": 30.0},
    ]
    killed = spent(*records, monitor=monitor((35.0, False), (30.0, True)))

    assert killed.device_idle_share == pytest.approx(0.25)
    assert killed.lost_s == pytest.approx(35.0 - 20.0, abs=0.01)
    assert killed.total_s == pytest.approx(65.0)


def test_without_a_kill_nothing_is_lost(spent: Callable[..., TimeSpent]) -> None:
    assert (
        spent(start(), *steps(1, 40, 1.0, 0.1), END, monitor=monitor((120.0, True))).lost_s == 0.0
    )


def test_no_timed_step_no_time_spent(new_run: MakeRun) -> None:
    assert time_spent(read_run(new_run(metrics=[start()]))) is None


def test_energy_is_measured_where_every_session_was_watched(
    new_run: MakeRun, snapshot: SnapshotAssertion
) -> None:
    records = [start(), *steps(1, 20, 1.0), start(20), *steps(21, 40, 1.0, time_s=100.0), END]
    whole, half = new_run("whole", metrics=records), new_run("half", metrics=records)
    for folder, sessions in ((whole, 2), (half, 1)):
        told = monitor(*[(100.0, True)] * sessions)
        (folder / "monitor.jsonl").write_text("".join(json.dumps(record) + "\n" for record in told))

    assert measured(read_run(whole))["energy_wh"] == pytest.approx(2.0)
    assert "energy_wh" not in measured(read_run(half))
    told = {row.key: row for row in comparisons(read_run(whole))}
    assert (told["energy_wh"].measured, told["energy_wh"].error) == (
        pytest.approx(2.0),
        pytest.approx(0.05),
    )
    assert told["energy_wh"].source == snapshot
    assert told["peak_memory_bytes"].source == snapshot


@pytest.mark.parametrize(
    ("watched_s", "energy_wh"),
    [(1000.0, 1000 * 36 / 3600), (960.0, 960 * 36 / 3600), (940.0, None), (50.0, None)],
)
def test_energy_of_a_part_of_the_run_is_not_told(
    new_run: MakeRun, watched_s: float, energy_wh: float | None
) -> None:
    """A monitor that ended early, as where the disk was full for a moment, in a run of 1000 s."""
    folder = new_run(metrics=[start(), *steps(1, 40, 25.0), {**END, "seconds": 1000.0}])
    (folder / "monitor.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in monitor((watched_s, False)))
    )

    assert measured(read_run(folder)).get("energy_wh") == energy_wh
