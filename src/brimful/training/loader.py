"""How long steps waited for their batches, and how fast other numbers of threads make them."""

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from brimful.base.types import Json, JsonDict
from brimful.training.loop import Sequences

WAITED_SHARE = 0.05
"""Share of the step time; if steps waited less than this, nothing is measured."""
LONGEST_MEASUREMENT_S = 2.0
"""Most time for measuring all numbers of threads together; never longer than the run itself waited.
"""
WORKERS_TRIED = (1, 2, 4)
MOST_BATCHES = 200
BATCHES_PER_WORKER = 2
"""The fewest timed batches per thread from which a rate is reported."""


def waited(records: Iterable[Json]) -> tuple[float, float]:
    """Return (seconds that steps waited for batches, seconds that they took), summed over the
    `step` records that hold both.
    """
    waited_s = took_s = 0.0
    for record in records:
        if record.get("kind") == "step" and record.get("loader_wait_s") is not None:
            waited_s += record["loader_wait_s"]
            took_s += record["step_time_s"]
    return waited_s, took_s


def measure_loader(
    records: Iterable[Json], sequences: Sequences, count: int, next_sample: int
) -> JsonDict | None:
    """Return the `loader` record of a session that has ended; None if its steps hardly waited, or
    not long enough for a measurement.

    Args:
        records: The session's records.
        count: Sequences of a batch.
        next_sample: The first sequence that the session did not use.
    """
    waited_s, stepping_s = waited(records)
    if waited_s <= WAITED_SHARE * stepping_s:
        return None
    started_s = time.perf_counter()
    timings = seconds_per_batch(sequences, count, next_sample, min(LONGEST_MEASUREMENT_S, waited_s))
    if not timings:
        return None
    return {
        "kind": "loader",
        "seconds_per_batch": {str(workers): seconds for workers, (seconds, _) in timings.items()},
        "batches": {str(workers): number for workers, (_, number) in timings.items()},
        "seconds": time.perf_counter() - started_s,
    }


def seconds_per_batch(
    sequences: Sequences, count: int, next_sample: int, within_s: float
) -> dict[int, tuple[float, int]]:
    """Return threads -> (seconds from one batch to the next, batches timed). Numbers of threads for
    which no time is left, or in whose time too few batches were made, are omitted.

    Args:
        count: Sequences of a batch.
        within_s: Time budget for all numbers of threads. A batch that was started is finished.
    """
    until_s = time.perf_counter() + within_s
    timings: dict[int, tuple[float, int]] = {}
    starts = itertools.count(next_sample, count)
    for index, workers in enumerate(WORKERS_TRIED):
        share_s = (until_s - time.perf_counter()) / (len(WORKERS_TRIED) - index)
        if share_s > 0 and (timed := _timed(sequences, count, starts, workers, share_s)):
            timings[workers] = timed
    return timings


def _timed(
    sequences: Sequences, count: int, starts: Iterator[int], workers: int, within_s: float
) -> tuple[float, int] | None:
    """Make batches ahead with so many threads, as the loop does, and time them. The first batch of
    each thread is not timed. Return None if the time was too short.
    """
    executor = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="batches")
    try:
        until_s = time.perf_counter() + within_s
        made = deque(executor.submit(sequences.batch, next(starts), count) for _ in range(workers))
        taken, started_s, now_s = -workers, 0.0, 0.0
        while now_s < until_s and taken < MOST_BATCHES:
            made.popleft().result()
            made.append(executor.submit(sequences.batch, next(starts), count))
            taken, now_s = taken + 1, time.perf_counter()
            if taken == 0:
                started_s = now_s
        if taken < BATCHES_PER_WORKER * workers:
            return None
        return (now_s - started_s) / taken, taken
    finally:
        executor.shutdown(cancel_futures=True)
