"""The stopwatch takes the fastest batch, or the typical one of a process's own time."""

import pytest
import torch

from brimful.hardware import stopwatch
from brimful.hardware.stopwatch import Stopwatch

CPU = torch.device("cpu")


class _Clock:
    """Time that passes only while something runs."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    made = _Clock()
    monkeypatch.setattr(stopwatch.time, "perf_counter", made)
    monkeypatch.setattr(stopwatch.time, "process_time", made)
    return made


@pytest.mark.parametrize(("own_time", "counts_s"), [(False, 2.0), (True, 4.5)])
def test_the_fastest_run_counts_and_of_a_process_s_own_time_the_median(
    clock: _Clock, *, own_time: bool, counts_s: float
) -> None:
    durations_s = iter([9.0, 3.0, 5.0, 2.0, 4.0, 8.0])

    def run() -> None:
        clock.now_s += next(durations_s)

    assert Stopwatch(CPU, own_time=own_time, seconds=1.0).time_s(run) == counts_s


def test_short_runs_are_timed_many_at_once(clock: _Clock) -> None:
    runs = []

    def run() -> None:
        runs.append(1)
        clock.now_s += 1e-5

    assert Stopwatch(CPU, own_time=True, seconds=0.0).time_s(run) == pytest.approx(1e-5)
    assert len(runs) == pytest.approx(
        2 + stopwatch.FEWEST_BATCHES * stopwatch.BATCH_S / 1e-5, abs=10
    )


def test_either_clock_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    passed_s = iter(float(number) for number in range(1000))
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: next(passed_s))
    monkeypatch.setattr(stopwatch.time, "process_time", lambda: 0.0)

    assert Stopwatch(CPU, own_time=True, seconds=0.0).time_s(lambda: None) < 1e-9
    assert Stopwatch(CPU, own_time=False, seconds=0.0).time_s(lambda: None) >= 1.0


def test_issuing_is_the_fastest_of_many(clock: _Clock) -> None:
    durations_s = iter([5.0, *[3.0] * (stopwatch.ISSUED - 1), 1.0])

    def run() -> None:
        clock.now_s += next(durations_s)

    assert Stopwatch(CPU, own_time=False).issue_s(run) == 1.0
