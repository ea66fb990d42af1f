"""How fast batches are made: how long steps waited for theirs, and what other numbers of threads
would have made of it, measured.
"""

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from brimful.training.loop import Sequences

WAITED_SHARE = 0.05
"""Of the step time: below it nothing is measured."""
LONGEST_LOOK_S = 2.0
"""For all numbers of threads together; and never longer than the run waited."""
WORKERS_TRIED = (1, 2, 4)
MOST_BATCHES = 200
BATCHES_PER_WORKER = 2
"""The least that says something of a number of threads."""


def waited(records: Iterable[Mapping[str, Any]]) -> tuple[float, float]:
    """(seconds that steps waited for batches, seconds that they took), over the `step` records that
    tell both.
    """
    told = [
        record
        for record in records
        if record.get("kind") == "step" and record.get("loader_wait_s") is not None
    ]
    return sum(record["loader_wait_s"] for record in told), sum(
        record["step_time_s"] for record in told
    )


def measure_loader(
    records: Iterable[Mapping[str, Any]], sequences: Sequences, count: int, next_sample: int
) -> dict[str, Any] | None:
    """The `loader` record of a session that has ended; None where its steps did not wait, or no
    longer than looking would take.

    Args:
        records: Of the session.
        count: Sequences of a batch.
        next_sample: The first one that the session did not use.
    """
    waited_s, stepping_s = waited(records)
    if waited_s <= WAITED_SHARE * stepping_s:
        return None
    started_s = time.perf_counter()
    found = seconds_per_batch(sequences, count, next_sample, min(LONGEST_LOOK_S, waited_s))
    if not found:
        return None
    each = {str(workers): seconds for workers, (seconds, _) in found.items()}
    numbers = {str(workers): number for workers, (_, number) in found.items()}
    return {
        "kind": "loader",
        "seconds_per_batch": each,
        "batches": numbers,
        "seconds": time.perf_counter() - started_s,
    }


def seconds_per_batch(
    sequences: Sequences, count: int, next_sample: int, within_s: float
) -> dict[int, tuple[float, int]]:
    """Threads -> (seconds from one batch to the next, batches timed); numbers of threads for which
    there is no time are left out.

    Args:
        within_s: About how long it may take in all; batches that are in the making then are waited
            for.
    """
    until_s, found = time.perf_counter() + within_s, dict[int, tuple[float, int]]()
    starts = itertools.count(next_sample, count)
    for place, workers in enumerate(WORKERS_TRIED):
        share_s = (until_s - time.perf_counter()) / (len(WORKERS_TRIED) - place)
        timed = _timed(sequences, count, starts, workers, share_s) if share_s > 0 else None
        if timed is not None:
            found[workers] = timed
    return found


def _timed(
    sequences: Sequences, count: int, starts: Iterator[int], workers: int, within_s: float
) -> tuple[float, int] | None:
    """As many batches in the making as there are threads, as in the loop; the first of each thread
    are not timed. None where time was too short.
    """
    executor = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="batches")
    try:
        until_s = time.perf_counter() + within_s
        made = deque(executor.submit(sequences.batch, next(starts), count) for _ in range(workers))
        taken, before_s, now_s = -workers, 0.0, 0.0
        while now_s < until_s and taken < MOST_BATCHES:
            made.popleft().result()
            made.append(executor.submit(sequences.batch, next(starts), count))
            taken, now_s = taken + 1, time.perf_counter()
            before_s = now_s if taken == 0 else before_s
        return (
            ((now_s - before_s) / taken, taken) if taken >= BATCHES_PER_WORKER * workers else None
        )
    finally:
        executor.shutdown(cancel_futures=True)
