"""What the allocator reserves over passes of many lengths."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from brimful.base.units import MIB
from brimful.planning.memory import VARYING_SHARE, Replays
from brimful.planning.ragged import RAGGED_SHARE, high_at_least, reserved_over
from brimful.planning.survey import Memory
from brimful.planning.target import Target
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

    assert (peaks.least, peaks.expected) == (160 * MIB, 220 * MIB)
    assert peaks.share == RAGGED_SHARE
    assert peaks.high == peaks.share[1] * 220 * MIB
    backwards = reserved_over(Replays(Steps()), (3, 2, 1), 0)
    assert backwards.expected == 160 * MIB


def test_passes_of_one_row_at_most_are_joined_although_one_row_alone_is_a_special_case() -> None:
    class OneIsSpecial(Steps):
        def at(self, rows: float) -> Trace:
            """A step of one row has a storage less."""
            trace = super().at(rows)
            if rows != 1:
                return trace
            return dataclasses.replace(trace, events_E=np.array([1, 2, -2], np.int32))

    peaks = reserved_over(Replays(OneIsSpecial()), (0.25, 0.5, 1), 0)

    assert (peaks.share, peaks.expected) == (RAGGED_SHARE, 120 * MIB)


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

    assert (peaks.least, peaks.expected) == (160 * MIB,) * 2
    assert peaks.share == VARYING_SHARE
    assert peaks.high == pytest.approx(VARYING_SHARE[1] * 160 * MIB)


@pytest.mark.parametrize("rows", [(1, 2, 3), (3, 2, 1), (2, 3, 2.5)])
@pytest.mark.parametrize("marks", [{}, {"inputs": 1}], ids=["a run", "cannot be put together"])
def test_the_longest_pass_alone_bounds_the_upper_end(
    rows: tuple[float, ...], marks: dict[str, int]
) -> None:
    replays = Replays(Steps(**marks))
    bound = high_at_least(replays.at(max(rows), 0))

    assert bound == RAGGED_SHARE[1] * 160 * MIB
    assert bound <= reserved_over(replays, rows, 0).high


@pytest.mark.parametrize(
    ("limit_mib", "replays_a_run"), [(150, False), (223, False), (225, True), (309, True)]
)
def test_a_run_is_replayed_only_where_its_longest_pass_does_not_decide(
    limit_mib: int, replays_a_run: bool
) -> None:
    """Tensors of 160 MiB, of which the upper end is 224; of the run it is 308."""
    replays = Replays(Steps())
    target = Target("cuda", 2000 * MIB)
    memory = Memory(replays, target, fractions=(1 / 3, 2 / 3, 1.0))

    is_below = memory.high_below(3, limit_mib * MIB)

    assert any(name.startswith("run of") for name in replays.known) is replays_a_run
    assert is_below is (limit_mib == 309)
    assert memory.at(3).reserved.high == pytest.approx(308 * MIB)
