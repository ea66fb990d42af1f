"""Time and memory of the optimizer steps of somebody else's training loop."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from brimful.training.meter import DevicePeak

LOOK_EVERY_S = 0.25
"""Memory is read at most so often: the system keeps the peak between two looks."""
MOST_LOOKS = 4000
WARM_UP_STEPS = 1
"""The first step of a training loads kernels and makes optimizer states."""


@dataclass(frozen=True)
class MeasuredTraining:
    """What was measured of a training.

    Attributes:
        step_times_s: Times of every optimizer step, from the end of the one before.
        peak_bytes: Memory held by torch's allocator on a GPU, by the process on a CPU.
        tensors_bytes: The peak of tensors alone; None where only the whole is counted.
        looks: Seconds since the beginning, and the peak so far in bytes.
        device: torch's device type.
    """

    step_times_s: tuple[float, ...]
    peak_bytes: int
    tensors_bytes: int | None
    looks: tuple[tuple[float, int], ...]
    device: str

    @property
    def steady_s(self) -> tuple[float, ...]:
        """Step times without those of warming up, where there are others."""
        return self.step_times_s[WARM_UP_STEPS:] or self.step_times_s

    @property
    def step_time_s(self) -> float | None:
        """The median step; None where there was none."""
        return statistics.median(self.steady_s) if self.step_times_s else None


class StepMeter:
    """Measures steps as they end. Nothing waits for a GPU: its steps are as far apart as it takes
    for them, once its queue is full.

    Args:
        device: Device that trains.
        clock: Seconds; another one in tests.
    """

    def __init__(
        self, device: torch.device, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self._device, self._clock, self._peak = device, clock, DevicePeak(device)
        self._times: list[float] = []
        self._looks: list[tuple[float, int]] = []
        self._began_s = self._last_s = clock()
        self._look(self._began_s)

    def step_ended(self) -> None:
        """An optimizer step is over."""
        now_s = self._clock()
        self._times.append(now_s - self._last_s)
        if now_s - self._began_s - self._looks[-1][0] >= LOOK_EVERY_S:
            self._look(now_s)
        self._last_s = now_s

    def leave_out(self) -> None:
        """What was done since the last step, such as an evaluation, is not part of the next."""
        self._last_s = self._clock()

    def finish(self) -> MeasuredTraining:
        """Look at memory a last time and return what was measured."""
        self._look(self._clock())
        return MeasuredTraining(
            tuple(self._times),
            self._looks[-1][1],
            self._peak.look_at_tensors(),
            tuple(self._looks),
            self._device.type,
        )

    def _look(self, now_s: float) -> None:
        if len(self._looks) >= MOST_LOOKS:
            self._looks = self._looks[::2]
        self._looks.append((now_s - self._began_s, self._peak.look()))
