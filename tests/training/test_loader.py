"""What the loader would have done with other numbers of threads: measured only where steps waited,
and on batches nobody used.
"""

import threading
import time
from typing import Any

from brimful.base.types import JsonDict
from brimful.data.batches import StepBatch
from brimful.training.loader import measure_loader, seconds_per_batch, waited


class Slow:
    """Makes a batch in so many seconds, whatever the others do."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.made = seconds, list[int]()
        self.most_at_once, self._at_once, self._lock = 0, 0, threading.Lock()

    def batch(self, first_sample: int, count: int) -> StepBatch:
        with self._lock:
            self.made.append(first_sample)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
        time.sleep(self._seconds)
        with self._lock:
            self._at_once -= 1
        return None  # type: ignore[return-value]


def steps(wait_s: float, count: int = 10, **more: Any) -> list[JsonDict]:
    return [
        {"kind": "step", "step": step, "step_time_s": 0.1, "loader_wait_s": wait_s, **more}
        for step in range(count)
    ]


def test_threads_are_kept_busy_and_no_batch_is_made_twice() -> None:
    slow = Slow(0.002)
    found = seconds_per_batch(slow, 8, 800, 0.3)

    assert list(found) == [1, 2, 4]
    assert slow.most_at_once == 4
    assert len(set(slow.made)) == len(slow.made)
    assert all(seconds > 0 and count >= 2 * workers for workers, (seconds, count) in found.items())


def test_numbers_of_threads_for_which_there_is_no_time_are_left_out() -> None:
    assert seconds_per_batch(Slow(0.03), 8, 0, 0.01) == {}
    assert 4 not in seconds_per_batch(Slow(0.05), 8, 0, 0.2)


def test_the_share_of_waiting_counts_steps_that_tell_it() -> None:
    old = {"kind": "step", "step": 1, "step_time_s": 5.0}

    assert waited([old, {"kind": "evaluation"}, *steps(0.025, 4)]) == (0.1, 0.4)


def test_where_steps_did_not_wait_nothing_is_measured() -> None:
    unused = Slow(0.0)

    assert measure_loader(steps(0.004), unused, 8, 0) is None
    assert measure_loader([], unused, 8, 0) is None
    assert unused.made == []


def test_looking_takes_no_longer_than_the_run_waited() -> None:
    """0.2 s of waiting in all: two seconds of measuring would be worse than the illness."""
    slow = Slow(0.001)
    record = measure_loader(steps(0.02), slow, 8, 80)

    assert record is not None
    assert (record["kind"], min(slow.made)) == ("loader", 80)
    assert record["seconds"] < 1.0
    assert record["seconds_per_batch"].keys() == record["batches"].keys() <= {"1", "2", "4"}
