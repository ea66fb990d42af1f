"""What a session does, one piece of work after the other, how long each is expected to take, and
how long a rank computes and is in communication.
"""

import platform
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from brimful.base.types import JsonDict, Numbers
from brimful.planning.cost import Conditions, checkpoint_seconds
from brimful.planning.plan import Plan
from brimful.planning.spacing import interval
from brimful.planning.spread import RANK_STEP
from brimful.recipe import Recipe

BATCH, STEP, EVALUATION = "a batch", "a step", "an evaluation"
DRAWING = "answers to learn from"
BASE, CHECKPOINT, EXPORT = "the base's score", "a checkpoint", "the exported model"


def expected_seconds(recipe: Recipe, plan: Plan, total_steps: int) -> Numbers:
    """Return the seconds that each piece of work takes, as the plan predicts; without those of
    which it predicts no time.
    """
    predicted = {name: prediction.value for name, prediction in plan.predicted.items()}
    save_s = checkpoint_seconds(recipe, plan, Conditions()).high
    expected = {CHECKPOINT: save_s, EXPORT: 2 * save_s}
    step_s = predicted.get("step_time_s", predicted.get(RANK_STEP))
    if step_s is not None:
        expected[STEP] = expected[BATCH] = step_s
    if "evaluation_time_s" in predicted:
        share = min(1.0, interval(recipe, plan, total_steps) / total_steps)
        expected[EVALUATION] = expected[BASE] = predicted["evaluation_time_s"] * share
    return expected


def with_start(expected: Numbers, plan: Plan) -> Numbers:
    """Return the expected seconds with those of compiling added to a step's, as the first step
    takes them.
    """
    start = plan.predicted.get("start_time_s")
    if start is None or STEP not in expected:
        return expected
    return {**expected, STEP: expected[STEP] + start.value}


class Spans:
    """Adds up how long pieces of work took: on CUDA by events on the current stream, else by the
    clock.

    Attributes:
        count: Pieces since the last `take`.
        is_counted: Whether time is taken now.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._open: deque[tuple[Any, Any]] = deque()
        self._seconds, self.count = 0.0, 0
        self.is_counted = True

    @contextmanager
    def span(self) -> Iterator[None]:
        """Around a piece of work."""
        if not self.is_counted:
            yield
            return
        begun = self._mark()
        yield
        self._open.append((begun, self._mark()))
        self.count += 1
        while self._open and (not self._is_cuda or self._open[0][1].query()):
            self._close()

    def take(self) -> float:
        """Return the seconds since the last call; on CUDA, wait for the device."""
        if self._is_cuda and self._open:
            self._open[-1][1].synchronize()
        while self._open:
            self._close()
        seconds, self._seconds, self.count = self._seconds, 0.0, 0
        return seconds

    def _mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _close(self) -> None:
        begun, ended = self._open.popleft()
        took = begun.elapsed_time(ended) / 1000 if self._is_cuda else ended - begun
        self._seconds += took


class RankPace:
    """The pace of one rank among several.

    Args:
        device: Device of the rank.

    Attributes:
        talking: Entered around what exchanges weights or gradients with other ranks, or waits for
            it; counted in steps, not in evaluations.
    """

    def __init__(self, device: torch.device) -> None:
        self._computing, self.talking = Spans(device), Spans(device)
        self.talking.is_counted = False

    def timed(
        self, together: Callable[[Callable[[], Tensor]], Tensor]
    ) -> Callable[[Callable[[], Tensor]], Tensor]:
        """Return what computes the gradients of all ranks, with its time taken."""

        def act(gradients: Callable[[], Tensor]) -> Tensor:
            self.talking.is_counted = True
            try:
                with self._computing.span():
                    return together(gradients)
            finally:
                self.talking.is_counted = False

        return act

    def take(self) -> JsonDict:
        """Return means per step since the last call: JSON. `computing_s` is the time of the passes
        without what was spent in communication.
        """
        steps = max(1, self._computing.count)
        talking_s = self.talking.take()
        return {
            "machine": platform.node(),
            "computing_s": max(0.0, self._computing.take() - talking_s) / steps,
            "communication_s": talking_s / steps,
        }
