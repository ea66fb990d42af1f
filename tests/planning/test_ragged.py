"""What the allocator reserves over passes of many lengths."""

from typing import Any

import numpy as np
import pytest

from brimful.base.units import MIB
from brimful.planning.memory import VARYING_SHARE, Replays
from brimful.planning.ragged import RAGGED_SHARE, reserved_over
from brimful.planning.trace import KINDS, Trace
from brimful.planning.work import GLOBAL


class Steps:
    """Two optimizer steps, each with activations of 20 MiB a row beside weights of 100 MiB."""

    def __init__(self, **marks: int) -> None:
        self._marks = marks or {"inputs 1": 1, "inputs 2": 3}

    def at(self, rows: float) -> Trace:
        """The trace of a pass of so many rows."""
        kinds = ("weights", "activations", "activations")
        return Trace(
            events_E=np.array([1, 2, -2, 3, -3], np.int32),
            event_layers_E=np.full(5, GLOBAL, np.int32),
            sizes_S=np.array([100 * MIB, round(rows * 20) * MIB, round(rows * 20) * MIB]),
            kinds_S=np.array([KINDS.index(kind) for kind in kinds], np.int32),
            places_S=np.arange(3, dtype=np.int32),
            layers_S=np.full(3, GLOBAL, np.int32),
            places=("weights", "activations", "activations"),
            marks=self._marks,
            parameters=1,
            trainable=1,
        )

    def work_at(self, micro_batch: int) -> Any:
        """Not asked for."""
        raise NotImplementedError


def test_a_pass_that_is_longer_than_those_before_it_needs_memory_of_its_own() -> None:
    """20, then 40, then 60 MiB take 120; backwards the first block serves all."""
    peaks = reserved_over(Replays(Steps()), (1, 2, 3), 0)

    assert (peaks.least, peaks.expected, peaks.most) == (160 * MIB, 220 * MIB, 220 * MIB)
    assert peaks.share == RAGGED_SHARE
    assert peaks.high == peaks.share[1] * 220 * MIB
    backwards = reserved_over(Replays(Steps()), (3, 2, 1), 0)
    assert (backwards.expected, backwards.most) == (160 * MIB, 220 * MIB)


def test_what_was_replayed_once_is_known_without_a_trace() -> None:
    first = Replays(Steps())
    peaks = reserved_over(first, (1, 2, 3), 0)

    class Never(Steps):
        def at(self, rows: float) -> Trace:
            """Not asked for."""
            raise NotImplementedError

    assert reserved_over(Replays(Never(), first.known), (1, 2, 3), 0) == peaks


def test_steps_that_cannot_be_put_together_have_a_wide_interval() -> None:
    peaks = reserved_over(Replays(Steps(inputs=1)), (1, 2, 3), 0)

    assert (peaks.least, peaks.expected, peaks.most) == (160 * MIB,) * 3
    assert peaks.share == VARYING_SHARE
    assert peaks.high == pytest.approx(VARYING_SHARE[1] * 160 * MIB)
