"""How long an operator takes, from several batches of runs."""

import math
import statistics
import time
from collections.abc import Callable

import torch

FEWEST_BATCHES = 4
BATCH_S = 4e-3
"""Runs of a batch take at least this long, so that a clock's step does not count and other
programs' use of the caches does.
"""
MOST_RUNS = 1000
ISSUED = 40


class Stopwatch:
    """Times operators on one device.

    The fastest batch counts, because whatever else the machine does only slows one down. This
    process's own time stands while another program holds the core, so with it the median counts, as
    training will share caches and memory with the same neighbours. On CUDA the runs of a batch are
    one graph where the operator can be captured, so that the device's time is seen and not that of
    the program that issues them.

    Args:
        device: Where the operators run.
        own_time: Take this process's CPU time instead of the time that passes; for one thread on a
            CPU.
        seconds: Time to spend on an operator, if FEWEST_BATCHES fit.
    """

    def __init__(self, device: torch.device, *, own_time: bool, seconds: float = 0.08) -> None:
        self._device = device
        self._seconds = seconds
        self._clock = time.process_time if own_time else time.perf_counter
        self.typical: Callable[[list[float]], float] = statistics.median if own_time else min

    def time_s(self, run: Callable[[], object]) -> float:
        """Seconds of one run; the first two runs warm up."""
        self._batch_s(run, 1)
        runs = min(MOST_RUNS, max(1, math.ceil(BATCH_S / max(self._batch_s(run, 1), 1e-7))))
        batch = _captured(run, runs, self._device) if self._device.type == "cuda" else None
        times_s: list[float] = []
        end_s = time.perf_counter() + self._seconds
        while len(times_s) < FEWEST_BATCHES or time.perf_counter() < end_s:
            times_s.append(self._batch_s(run, runs) if batch is None else self._batch_s(batch, 1))
        return max(self.typical(times_s), 1e-9) / runs

    def issue_s(self, run: Callable[[], object]) -> float:
        """Seconds the program needs to issue one run, without waiting for the device."""
        self._batch_s(run, 1)
        times_s = []
        for _ in range(ISSUED):
            synchronize(self._device)
            start_s = self._clock()
            run()
            times_s.append(self._clock() - start_s)
        return self.typical(times_s)

    def _batch_s(self, run: Callable[[], object], runs: int) -> float:
        synchronize(self._device)
        start_s = self._clock()
        for _ in range(runs):
            run()
        synchronize(self._device)
        return self._clock() - start_s


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _captured(
    run: Callable[[], object], runs: int, device: torch.device
) -> Callable[[], None] | None:
    """The runs as one CUDA graph, None where they cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph):
            for _ in range(runs):
                run()
    except RuntimeError:
        torch.cuda.synchronize(device)
        return None
    return graph.replay
