"""The memory trace of one training step: allocations and frees of storages, in order.

A trace is recorded on fake tensors (`brimful.rehearsal`) and replayed here and in `allocator`.
Nothing here imports torch.

Suffixes: E events, S storages.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Bools, Ints
from brimful.base.errors import PlanError
from brimful.base.types import Counts
from brimful.planning.work import Details, Work

KINDS = (
    "weights",
    "adapters",
    "gradients",
    "optimizer states",
    "16-bit weight copies",
    "activations",
    "loss and logits",
    "KV cache",
    "inputs",
    "temporaries",
    "library workspaces",
    "gathered weights",
    "communication buffers",
)
"""Purposes of a storage. Communication buffers were made on a stream of their own, for which CUDA's
allocator keeps memory apart.
"""
Int32Array = NDArray[np.int32]


class Unrecorded(PlanError):
    """A step has no recording, and none can be made here."""


class Names(Sequence[str]):
    """Names that are made when they are asked for: a long trace has ten thousand of them, of which
    a plan says ten.

    Args:
        count: How many there are.
        name_of: Makes the one of this index.
    """

    def __init__(self, count: int, name_of: Callable[[int], str]) -> None:
        self._count, self._name_of = count, name_of

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        """Return one name, or several."""
        if isinstance(index, slice):
            return [self._name_of(each) for each in range(self._count)[index]]
        return self._name_of(range(self._count)[index])


@dataclass(frozen=True, eq=False)
class Trace:
    """Allocations and frees of storages over some steps.

    Attributes:
        events_E: +(i+1): storage i is allocated; -(i+1): it is freed.
        event_layers_E: The block that computed at the event, GLOBAL outside the blocks.
        sizes_S: Bytes asked for, before any rounding.
        kinds_S: Index into KINDS.
        places_S: Index into `places`: module or parameter, and operator.
        layers_S: The block that allocated a storage, GLOBAL outside.
        places: Names.
        blocks: Name of the list of blocks, as it stands in places.
        marks: Phase name -> index of its first event, in order.
        parameters, trainable: Counts of the model, tied ones once; a weight packed into 4 bits
            counts as one.
        work: Work of the operators; None where it was not recorded.
        details: Summands of the counts of `work`; only directly after recording.
    """

    events_E: Int32Array
    event_layers_E: Int32Array
    sizes_S: Ints
    kinds_S: Int32Array
    places_S: Int32Array
    layers_S: Int32Array
    places: Sequence[str]
    blocks: str = ""
    marks: Counts = field(default_factory=dict)
    parameters: int = 0
    trainable: int = 0
    work: Work | None = None
    details: Details | None = None

    @cached_property
    def is_evaluation_S(self) -> Bools:  # noqa: N802 - shape suffix
        """Storages that are allocated in the evaluation batch."""
        first = self.marks.get("evaluation", len(self.events_E))
        born = self.events_E[first:]
        is_evaluation_S = np.zeros(len(self.sizes_S), np.bool_)
        is_evaluation_S[born[born > 0] - 1] = True
        return is_evaluation_S

    def live_E(self) -> Ints:  # noqa: N802 - shape suffix
        """Return the live bytes after each event, unrounded."""
        return np.cumsum(
            np.sign(self.events_E) * self.sizes_S[np.abs(self.events_E) - 1], dtype=np.int64
        )

    def alive_at(self, event: int) -> Ints:
        """Return the storages that are alive after an event, in order of allocation."""
        if event not in self._alive:
            events_E = self.events_E[: event + 1]
            lives_S = np.zeros(len(self.sizes_S), np.bool_)
            lives_S[events_E[events_E > 0] - 1] = True
            lives_S[-events_E[events_E < 0] - 1] = False
            self._alive.clear()  # the same event is asked for again, others seldom
            self._alive[event] = np.flatnonzero(lives_S)
        return self._alive[event]

    @cached_property
    def _alive(self) -> dict[int, Ints]:
        return {}


def in_one_pass(trace: Trace) -> Trace:
    """Return the trace of steps with one micro-batch from that of a step with two: without the
    second one. What that would free of the first one's, its inputs and its loss, is freed there.
    """
    if not {"inputs 3", "optimizer 2"} <= trace.marks.keys():
        return trace
    start, end = trace.marks["inputs 3"], trace.marks["optimizer 2"]
    storages_E = np.abs(trace.events_E) - 1
    is_second_S = np.zeros(len(trace.sizes_S), np.bool_)
    is_second_S[storages_E[start:end][trace.events_E[start:end] > 0]] = True
    kept_E = ~is_second_S[storages_E]
    return dataclasses.replace(
        trace,
        events_E=trace.events_E[kept_E],
        event_layers_E=trace.event_layers_E[kept_E],
        marks={
            name: int(np.count_nonzero(kept_E[:event]))
            for name, event in trace.marks.items()
            if not start <= event < end
        },
    )


def same_events(one: Trace, other: Trace) -> bool:
    """Return whether two traces differ in sizes only."""
    return (
        np.array_equal(one.events_E, other.events_E)
        and np.array_equal(one.event_layers_E, other.event_layers_E)
        and np.array_equal(one.kinds_S, other.kinds_S)
    )
