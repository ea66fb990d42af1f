"""The same steps really run on this CPU, and what torch's profiler saw them allocate: the check on
the rehearsal.

Suffixes: E events.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from brimful.base.arrays import Ints
from brimful.data.batches import MicroBatch
from brimful.planning.step import StepSpec
from brimful.rehearsal.models import transformers_model
from brimful.rehearsal.optimizers import optimizer_of
from brimful.rehearsal.training import (
    Watcher,
    blank_batch,
    method_of,
    network_of,
    prepare,
    repeat_steps,
    warm_up,
    without_garbage_collector,
)
from brimful.training.method import blocks_of, compiled

_MARK = "brimful phase "


@dataclass(frozen=True)
class Allocation:
    """A storage of a measured step.

    Attributes:
        size_bytes: As asked for.
        made_in: Operators during which it was allocated, outermost first, joined by " > ".
        freed_in: The same of its end; "" where it is alive at the end of the steps.
    """

    size_bytes: int
    made_in: str
    freed_in: str


@dataclass(frozen=True, eq=False)
class MeasuredSteps:
    """What the profiler recorded.

    Attributes:
        start_bytes: Weights and buffers that were there before.
        changes_E: Bytes allocated (positive) or freed, in order of time.
        addresses_E: Where.
        phases_E: Phase of each event, numbered as in a trace's marks ("forward", "forward 2").
        operators_E: Operators during which it happened, outermost first, joined by " > "; ""
            outside of all.
    """

    start_bytes: int
    changes_E: Ints
    addresses_E: Ints
    phases_E: tuple[str, ...]
    operators_E: tuple[str, ...]

    def live_E(self) -> Ints:  # noqa: N802 - shape suffix
        """Bytes alive after each event, as asked for."""
        return self.start_bytes + np.cumsum(self.changes_E, dtype=np.int64)

    def peaks(self) -> dict[str, int]:
        """Highest number of live bytes in each phase."""
        highest: dict[str, int] = {}
        for phase, live in zip(self.phases_E, self.live_E().tolist(), strict=True):
            highest[phase] = max(highest.get(phase, 0), live)
        return highest

    def without(self, is_left_out: Callable[[Allocation], bool]) -> "MeasuredSteps":
        """Return the same without the allocations of which the function says so."""
        dropped = np.zeros(len(self.changes_E), bool)
        for made, freed in self._lives():
            ends = self.operators_E[freed] if freed is not None else ""
            if is_left_out(Allocation(int(self.changes_E[made]), self.operators_E[made], ends)):
                dropped[made] = True
                if freed is not None:
                    dropped[freed] = True
        kept = np.flatnonzero(~dropped)
        return MeasuredSteps(
            self.start_bytes,
            self.changes_E[kept],
            self.addresses_E[kept],
            tuple(self.phases_E[event] for event in kept),
            tuple(self.operators_E[event] for event in kept),
        )

    def _lives(self) -> Iterator[tuple[int, int | None]]:
        """(event that allocates, event that frees or None) of all that was allocated."""
        made: dict[int, int] = {}
        for event, (change, address) in enumerate(
            zip(self.changes_E.tolist(), self.addresses_E.tolist(), strict=True)
        ):
            if change > 0:
                made[address] = event
            elif address in made:
                yield made.pop(address), event
        for event in made.values():
            yield event, None

    def alive_at(self, event: int) -> list[tuple[int, str]]:
        """Bytes and operators of what was allocated up to this event and not freed; nothing from
        before the steps.
        """
        alive: dict[int, tuple[int, str]] = {}
        for change, address, operators in zip(
            self.changes_E[: event + 1], self.addresses_E, self.operators_E, strict=False
        ):
            if change > 0:
                alive[int(address)] = (int(change), operators)
            else:
                alive.pop(int(address), None)
        return list(alive.values())


class _Marks(Watcher):
    """Phases as named ranges in the profile."""

    def begin(self, phase: str) -> None:
        with record_function(_MARK + phase):
            pass


def measure_steps(
    model: nn.Module,
    spec: StepSpec,
    micro_batch: int,
    batch: Callable[[], MicroBatch] | None = None,
) -> MeasuredSteps:
    """Run the steps that `record_steps` rehearses on a real model with values, under the profiler,
    on blank micro-batches of full rows or on those that `batch` makes.

    Scratch memory that a kernel takes without torch's allocator (oneDNN's, the C library's) is not
    in it. Compiled blocks are those of the training loop, by the real compiler.
    """
    prepare(spec, model)
    optimizer = optimizer_of(
        spec, [parameter for parameter in model.parameters() if parameter.requires_grad]
    )
    start_bytes = storage_bytes(model)
    body = None
    if spec.compiled == "blocks":
        inner, rows = transformers_model(model), spec.kind.rows_per_sample * micro_batch
        shape = (rows, spec.sequence_length)
        if spec.loss == "chunked":
            body = compiled(inner, shape=shape, say=_refuse)
        else:
            for block in blocks_of(inner):
                block.compile(dynamic=False)
        warm_up(model, spec, micro_batch, body)
    with (
        without_garbage_collector(),
        torch.random.fork_rng(devices=[]),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
    ):
        repeat_steps(
            network_of(model, spec, body),
            method_of(spec),
            optimizer,
            spec,
            batch or (lambda: blank_batch(spec, micro_batch)),
            _Marks(),
        )
    return read_profile(profiler, start_bytes)


def _refuse(message: str) -> NoReturn:
    """Say that the compiler failed, in place of measuring eager steps."""
    raise RuntimeError(message)


def storage_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers, shared ones once."""
    tensors = [*model.parameters(), *model.buffers()]
    # Linear layers keep it where their weight is divided; experts have it on their weights alone.
    holders = [*model.modules(), *model.parameters()]
    for state in [getattr(each, "quant_state", None) for each in holders]:
        if state is not None:  # bitsandbytes keeps scales beside the weight
            tensors += [
                state.absmax,
                state.code,
                state.offset,
                state.state2.absmax,
                state.state2.code,
            ]
    tensors = [each.to_local() if hasattr(each, "to_local") else each for each in tensors]
    return sum(
        {
            tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors
        }.values()
    )


def read_profile(profiler: profile, start_bytes: int) -> MeasuredSteps:
    """Return what a profiler saw allocated beside `start_bytes` that were there before.

    A block from before can only be freed unseen. The profiler tells of one where an earlier profile
    saw it made, such as tensors of an earlier run that a cycle of objects held, which the Trainer's
    call of the garbage collector frees; these would lower all that follows, so they are left out.
    """
    roots = profiler.profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    rows = _of_this_profile(sorted(_allocations(roots), key=lambda row: row[0]))
    phases, counts, phase = [], Counter[str](), ""
    for _, change, _, operators in rows:
        if not change:
            counts[operators] += 1
            phase = operators if counts[operators] == 1 else f"{operators} {counts[operators]}"
        phases.append(phase)
    kept = [index for index, row in enumerate(rows) if row[1]]
    return MeasuredSteps(
        start_bytes,
        np.array([rows[index][1] for index in kept], np.int64),
        np.array([rows[index][2] for index in kept], np.int64),
        tuple(phases[index] for index in kept),
        tuple(rows[index][3] for index in kept),
    )


def _of_this_profile(
    rows: Iterable[tuple[int, int, int, str]],
) -> list[tuple[int, int, int, str]]:
    """Return the rows without frees of what was not allocated in them before."""
    kept, alive = [], set[int]()
    for row in rows:
        _, change, address, _ = row
        if change < 0 and address not in alive:
            continue
        if change:
            (alive.add if change > 0 else alive.discard)(address)
        kept.append(row)
    return kept


def _allocations(roots: Iterable[Any]) -> Iterator[tuple[int, int, int, str]]:
    """(time in ns, bytes, address, operators) of allocations and frees; phase marks have 0 bytes
    and their name in place of operators.
    """
    stack: list[tuple[Any, tuple[str, ...]]] = [(root, ()) for root in roots]
    while stack:
        node, operators = stack.pop()
        if node.name == "[memory]":
            yield (
                node.start_time_ns,
                node.extra_fields.alloc_size,
                node.extra_fields.ptr,
                " > ".join(operators),
            )
        elif node.name.startswith(_MARK):
            yield node.start_time_ns, 0, 0, node.name.removeprefix(_MARK)
        stack += [(child, (*operators, node.name)) for child in node.children]
