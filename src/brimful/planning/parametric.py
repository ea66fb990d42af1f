"""One trace for all micro-batches and any number of blocks: sizes are affine in the micro-batch,
equal blocks repeat.

`stretch` refuses steps whose blocks do not repeat, and `recordings` compares the result with a
further trace.

Suffixes: E events, S storages.
"""

import dataclasses
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Bools, Ints
from brimful.planning.events import moved_runs, sizes_at
from brimful.planning.step import EVALUATION_FACTOR
from brimful.planning.trace import Int32Array, Names, Trace
from brimful.planning.work import GLOBAL, ParametricWork

EXAMPLES = (4, 5)
"""Numbers of blocks in a trace that can be stretched.

In the forward pass a block frees tensors of the block before it, in the backward pass of the block
after it. With four blocks, the third repeats in the forward pass and the second in the backward
pass, so that each frees tensors of the other. Where a block touches both neighbours in one pass,
five are needed, of which the third repeats.
"""


class Irregular(Exception):
    """The step does not repeat equal blocks, or sizes are not affine: it has to be traced whole."""


@dataclass(frozen=True)
class ParametricTrace:
    """Events that hold for every micro-batch, with sizes that are affine in it.

    The chunked loss is traced with two chunks. Later chunks allocate and free what the second one
    does, so peaks hold for any number of chunks; with one chunk the tensors of the second one are
    empty.

    Attributes:
        trace: The events; its sizes are those of one micro-batch.
        base_S: Bytes that depend on neither micro-batch nor chunk.
        slope_S: Bytes per sequence of the micro-batch.
        chunk_slope_S: Bytes per token of a chunk of the loss; negative for tensors of the last,
            partial chunk.
        sequence_length: Tokens per sequence that the loss is computed of.
        loss_chunk: Tokens per chunk of the loss.
        lowest: The smallest micro-batch that it holds for: one sequence may be a special case.
        work: Work of the operators; None where it does not follow from small traces.
    """

    trace: Trace
    base_S: Ints
    slope_S: Ints
    chunk_slope_S: Ints
    sequence_length: int
    loss_chunk: int
    lowest: int = 1
    work: ParametricWork | None = None

    def at(self, rows: float) -> Trace:
        """Return the trace of a micro-batch of so many sequences, with an evaluation batch that is
        EVALUATION_FACTOR times as large. A fraction stands for rows that are not full.
        """
        sizes_S = sizes_at(
            (self.base_S, self.slope_S, self.chunk_slope_S),
            self.trace.is_evaluation_S,
            (rows, EVALUATION_FACTOR * rows),
            self.sequence_length,
            self.loss_chunk,
        )
        return dataclasses.replace(self.trace, sizes_S=sizes_S)


def stretch(short: Trace, blocks: int) -> tuple[Trace, Ints]:
    """Return the trace of a model with `blocks` equal blocks from one with few, and for each of its
    storages the equal one of the short trace. Sizes and numbers of parameters are those of the
    short one.

    Args:
        short: A step with as many blocks as EXAMPLES says.
        blocks: Number of blocks, at least as many as are there.

    Raises:
        Irregular: the blocks do not repeat.
    """
    example = _Example(int(short.layers_S.max()) + 1, blocks)
    _refuse_unlike_blocks(short, example)
    origin_S, layer_S = _origins(short, example)
    offsets = np.searchsorted(
        layer_S, np.arange(GLOBAL, blocks)
    )  # of GLOBAL, block 0, block 1, ...
    events_E, event_layers_E, moved_starts = _repeated_events(short, example, offsets)
    cursor = len(events_E)
    places_S, places = _renamed(short, example)
    long = Trace(
        events_E=events_E,
        event_layers_E=event_layers_E,
        sizes_S=short.sizes_S[origin_S],
        kinds_S=short.kinds_S[origin_S],
        places_S=places_S,
        layers_S=layer_S.astype(np.int32),
        places=places,
        blocks=short.blocks,
        marks={name: moved_starts.get(event, cursor) for name, event in short.marks.items()},
        parameters=short.parameters,
        trainable=short.trainable,
    )
    return long, origin_S


def equal(one: Trace, other: Trace) -> bool:
    """Return whether two traces are equal except for the numbers of their storages."""
    return (
        one.events_E.shape == other.events_E.shape
        and np.array_equal(np.sign(one.events_E), np.sign(other.events_E))
        and np.array_equal(_by_event(one, one.sizes_S), _by_event(other, other.sizes_S))
        and np.array_equal(_by_event(one, one.kinds_S), _by_event(other, other.kinds_S))
        and np.array_equal(_birth_events(one), _birth_events(other))
    )


def _by_event(trace: Trace, values_S: Ints | Int32Array) -> Ints | Int32Array:
    picked_E: Ints | Int32Array = values_S[np.abs(trace.events_E) - 1]
    return picked_E


def _birth_events(trace: Trace) -> Ints:
    """Return for each event the event that allocated its storage."""
    birth_S = np.zeros(len(trace.sizes_S), np.int64)
    born = trace.events_E > 0
    birth_S[trace.events_E[born] - 1] = np.flatnonzero(born)
    birth_E: Ints = birth_S[np.abs(trace.events_E) - 1]
    return birth_E


@dataclass(frozen=True)
class _Example:
    """A few traced blocks that represent many."""

    size: int
    blocks: int

    def __post_init__(self) -> None:
        if self.size not in EXAMPLES or self.blocks < self.size:
            raise Irregular(f"{self.size} blocks are no example of {self.blocks}")

    @property
    def alike(self) -> list[int]:
        """Blocks that equal each other: all but the first and the last."""
        return list(range(1, self.size - 1))

    @property
    def added(self) -> int:
        return self.blocks - self.size

    def source(self, layer: int, *, falling: bool = False) -> int:
        """Return the traced block that a block of the long model equals in a pass over all
        blocks.
        """
        after = self.blocks - 1 - layer
        if layer == 0:
            return 0
        if after == 0:
            return self.size - 1
        repeats = 1 if self.size == 4 and falling else 2
        if layer < repeats:
            return layer
        return max(repeats, self.size - 1 - after)


def _repeated_events(
    short: Trace, example: _Example, offsets: NDArray[np.intp]
) -> tuple[Int32Array, Int32Array, dict[int, int]]:
    """Return events and their blocks in the long trace, and where each run of events begins there
    first.

    Args:
        offsets: Number of the first storage outside the blocks, of block 0, block 1 ...
    """
    runs = np.array(_passes(short, example), np.int64).reshape(-1, 3)
    events_E, layers_E = moved_runs(
        runs,
        (short.events_E, short.event_layers_E),
        (short.layers_S, _ordinals(short.layers_S)),
        offsets,
    )
    moved_starts: dict[int, int] = {}
    moved = 0
    for start, end, _ in runs.tolist():
        moved_starts.setdefault(start, moved)
        moved += end - start
    return events_E, layers_E, moved_starts


def _refuse_unlike_blocks(short: Trace, example: _Example) -> None:
    first, *others = (short.layers_S == layer for layer in example.alike)
    for other in others:
        if not (
            np.array_equal(short.sizes_S[first], short.sizes_S[other])
            and np.array_equal(short.kinds_S[first], short.kinds_S[other])
        ):
            raise Irregular("blocks differ in the tensors they make")


def _ordinals(layers_S: Int32Array) -> Ints:
    """Return the number of each storage among those of its block."""
    ordinal_S = np.zeros(len(layers_S), np.int64)
    for layer in np.flatnonzero(np.bincount(layers_S - GLOBAL)) + GLOBAL:
        members = np.flatnonzero(layers_S == layer)
        ordinal_S[members] = np.arange(len(members))
    return ordinal_S


def _passes(short: Trace, example: _Example) -> list[tuple[int, int, int]]:
    """Return the runs of events of one block (start, end, shift of the block's number), in their
    order with all blocks.
    """
    labels_E = short.event_layers_E
    changes = np.flatnonzero(np.diff(labels_E)) + 1
    starts = sorted({0, *changes.tolist(), *short.marks.values(), len(labels_E)})
    runs = [(start, end, int(labels_E[start])) for start, end in pairwise(starts)]
    result: list[tuple[int, int, int]] = []
    repeats_S, alike = _repeating(short, example), example.alike
    index = 0
    while index < len(runs):
        found = _pass_over_blocks(runs[index : index + example.size], example)
        if found is None:
            start, end, label = runs[index]
            if label in alike:
                raise Irregular(f"events {start} to {end} belong to block {label} alone")
            result.append((start, end, example.added if label == example.size - 1 else 0))
            index += 1
            continue
        falling = found.order.step < 0
        _refuse_what_does_not_repeat(
            short, found.runs[1 if falling and example.size == 4 else 2], repeats_S
        )
        sources = [example.source(layer, falling=falling) for layer in found.order]
        result += [
            (*found.runs[source], layer - source)
            for layer, source in zip(found.order, sources, strict=True)
        ]
        index += len(found.runs)
    return result


@dataclass(frozen=True)
class _BlockPass:
    """Runs of events of one block after another.

    Attributes:
        runs: Start and end by traced block.
        order: The blocks of the long model, as they come.
    """

    runs: dict[int, tuple[int, int]]
    order: range


def _pass_over_blocks(runs: list[tuple[int, int, int]], example: _Example) -> _BlockPass | None:
    """Return the pass that runs are, if they are of all blocks in their order or in the reverse
    one, or of all but the last one: what each leaves for the next, where that is kept.
    """
    labels, rising = [label for _, _, label in runs], list(range(example.size))
    spans = {label: (start, end) for start, end, label in runs}
    if labels == rising:
        return _BlockPass(spans, range(example.blocks))
    if labels == rising[::-1]:
        return _BlockPass(spans, range(example.blocks - 1, -1, -1))
    if labels[: example.size - 1] == rising[:-1]:
        kept = {label: spans[label] for label in rising[:-1]}
        return _BlockPass(kept, range(example.blocks - 1))
    return None


def _refuse_what_does_not_repeat(short: Trace, run: tuple[int, int], repeats_S: Bools) -> None:
    """Raise Irregular unless the run of a repeating block touches only storages of `_repeating`."""
    touched = np.abs(short.events_E[run[0] : run[1]]) - 1
    others = touched[~repeats_S[touched]]
    if len(others):
        raise Irregular(
            f"a block that repeats makes or ends a tensor of block {short.layers_S[others.min()]}"
            " that others do not have"
        )


def _repeating(short: Trace, example: _Example) -> Bools:
    """Return which storages are of equal blocks, or of other blocks and have an equal one there."""
    layers_S, ordinal_S = short.layers_S, _ordinals(short.layers_S)
    repeats_S: Bools = (layers_S > 0) & (layers_S < example.size - 1)
    own_S = np.flatnonzero(layers_S == 1)
    others = np.flatnonzero(~repeats_S & (layers_S != GLOBAL) & (ordinal_S < len(own_S)))
    like = own_S[ordinal_S[others]]
    repeats_S[others] = (short.sizes_S[like] == short.sizes_S[others]) & (
        short.kinds_S[like] == short.kinds_S[others]
    )
    return repeats_S


def _origins(short: Trace, example: _Example) -> tuple[Ints, Ints]:
    """Return for each storage of the long trace the equal storage of the short one, and its block;
    blocks rise.
    """
    members = {
        layer: np.flatnonzero(short.layers_S == layer) for layer in range(GLOBAL, example.size)
    }
    of_blocks = [
        members[GLOBAL],
        *(members[example.source(layer)] for layer in range(example.blocks)),
    ]
    sizes = [len(each) for each in of_blocks]
    return np.concatenate(of_blocks), np.repeat(np.arange(GLOBAL, example.blocks), sizes)


def _renamed(short: Trace, example: _Example) -> tuple[Int32Array, Names]:
    """Return the places with the numbers of their blocks in the long trace, in the order of
    `_origins`.
    """
    of_traced = {layer: _in_order(short, layer) for layer in range(GLOBAL, example.size)}
    of_layer = [
        of_traced[layer if layer == GLOBAL else example.source(layer)]
        for layer in range(GLOBAL, example.blocks)
    ]
    starts = [0, *accumulate(len(places) for places, _ in of_layer)]
    numbers = [number_S + start for (_, number_S), start in zip(of_layer, starts, strict=False)]
    block = re.compile(rf"\b{re.escape(short.blocks)}\.\d+")

    def name_of(number: int) -> str:
        index = bisect_right(starts, number) - 1
        name = short.places[of_layer[index][0][number - starts[index]]]
        layer = GLOBAL + index
        if layer == GLOBAL:
            return name
        return f"{short.blocks}.{layer}".join(block.split(name))

    return np.concatenate(numbers).astype(np.int32), Names(starts[-1], name_of)


def _in_order(short: Trace, layer: int) -> tuple[list[int], Ints]:
    """Return the distinct places of a block's storages, ordered by the first storage of each, and
    for every storage the number of its place in that list.
    """
    place_S = short.places_S[short.layers_S == layer]
    places = list(dict.fromkeys(place_S.tolist()))
    number = np.zeros(len(short.places), np.int64)
    number[places] = np.arange(len(places))
    return places, number[place_S]
