"""One trace for all micro-batches and any number of blocks: sizes are affine in the micro-batch,
equal blocks repeat.

`stretch` refuses steps whose blocks do not repeat, and `recordings` compares the result with a
further trace.

Suffixes: E events, S storages.
"""

import dataclasses
import re
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Bools, Ints
from brimful.planning.block_rows import BlockRows, Irregular
from brimful.planning.step import EVALUATION_FACTOR
from brimful.planning.trace import Int32Array, Names, Trace
from brimful.planning.work import GLOBAL, ParametricWork

Run = tuple[int, int, int]
"""Events of one block: start, end, and its number or by how much that is shifted."""


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
        sequences_S = np.where(self.trace.is_evaluation_S, EVALUATION_FACTOR * rows, rows)
        tokens_S = sequences_S * self.sequence_length
        chunk_S = np.minimum(self.loss_chunk, tokens_S)
        last_chunk_S = np.minimum(tokens_S, 2 * chunk_S) / self.sequence_length
        batch_S = np.where(self.chunk_slope_S < 0, last_chunk_S, sequences_S)
        growth_S = np.rint(self.slope_S * batch_S) + np.rint(self.chunk_slope_S * chunk_S)
        return dataclasses.replace(self.trace, sizes_S=self.base_S + growth_S.astype(np.int64))


def stretch(short: Trace, rows: BlockRows) -> tuple[Trace, Ints]:
    """Return the trace of a model with many blocks from one with few, and for each of its storages
    the equal one of the short trace. Sizes and numbers of parameters are those of the short one.

    Args:
        short: A step with the few blocks.
        rows: The kinds of these, and of the many.

    Raises:
        Irregular: the blocks do not repeat.
    """
    if int(short.layers_S.max()) + 1 != len(rows.few):
        raise Irregular(f"the trace has no {len(rows.few)} blocks")
    blocks = len(rows.all)
    _refuse_unlike_blocks(short, rows)
    origin_S, layer_S = _origins(short, rows)
    offsets = np.searchsorted(
        layer_S, np.arange(GLOBAL, blocks)
    )  # of GLOBAL, block 0, block 1, ...
    events_E, event_layers_E, moved_starts = _repeated_events(short, rows, offsets)
    cursor = len(events_E)
    places_S, places = _renamed(short, rows)
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


def _repeated_events(
    short: Trace, rows: BlockRows, offsets: NDArray[np.intp]
) -> tuple[Int32Array, Int32Array, dict[int, int]]:
    """Return events and their blocks in the long trace, and where each run of events begins there
    first.

    Args:
        offsets: Number of the first storage outside the blocks, of block 0, block 1 ...
    """
    runs = np.array(_passes(short, rows), np.int64).reshape(-1, 3)
    starts_P, ends_P, shifts_P = runs.T
    lengths_P = ends_P - starts_P
    moved_P = np.cumsum(lengths_P) - lengths_P  # where each run begins in the long trace
    event_E = np.repeat(starts_P - moved_P, lengths_P)
    event_E += np.arange(len(event_E))
    shift_E = np.repeat(shifts_P, lengths_P)
    storage_E = np.abs(short.events_E[event_E]) - 1
    block_E = short.layers_S[storage_E].astype(np.int64)
    block_E += np.where(block_E < 0, 0, shift_E)  # what lies outside the blocks stays there
    births_E = offsets[block_E + 1] + _ordinals(short.layers_S)[storage_E] + 1
    label_E = short.event_layers_E[event_E]
    moved_starts: dict[int, int] = {}
    for start, moved in zip(starts_P.tolist(), moved_P.tolist(), strict=True):
        moved_starts.setdefault(start, moved)
    return (
        (np.sign(short.events_E[event_E]) * births_E).astype(np.int32),
        np.where(label_E < 0, label_E, label_E + shift_E).astype(np.int32),
        moved_starts,
    )


def _refuse_unlike_blocks(short: Trace, rows: BlockRows) -> None:
    firsts: dict[str, Bools] = {}
    for place, letter in enumerate(rows.few[1:-1], start=1):
        here = short.layers_S == place
        first = firsts.setdefault(letter, here)
        if not (
            np.array_equal(short.sizes_S[first], short.sizes_S[here])
            and np.array_equal(short.kinds_S[first], short.kinds_S[here])
        ):
            raise Irregular("blocks differ in the tensors they make")


def _ordinals(layers_S: Int32Array) -> Ints:
    """Return the number of each storage among those of its block."""
    ordinal_S = np.zeros(len(layers_S), np.int64)
    for layer in np.flatnonzero(np.bincount(layers_S - GLOBAL)) + GLOBAL:
        members = np.flatnonzero(layers_S == layer)
        ordinal_S[members] = np.arange(len(members))
    return ordinal_S


def _passes(short: Trace, rows: BlockRows) -> list[Run]:
    """Return the runs of events of one block (start, end, shift of the block's number), in their
    order with all blocks.
    """
    labels_E, last = short.event_layers_E, len(rows.few) - 1
    changes = np.flatnonzero(np.diff(labels_E)) + 1
    starts = sorted({0, *changes.tolist(), *short.marks.values(), len(labels_E)})
    runs = [(start, end, int(labels_E[start])) for start, end in pairwise(starts)]
    result: list[Run] = []
    refuse = _Neighbours(short, rows).refuse_others
    index = 0
    while index < len(runs):
        found = _pass_over_blocks(runs[index : index + len(rows.few)], rows)
        if found is None:
            start, end, label = runs[index]
            if 0 < label < last:
                raise Irregular(f"events {start} to {end} belong to block {label} alone")
            result.append((start, end, len(rows.all) - len(rows.few) if label == last else 0))
            index += 1
            continue
        times = Counter(source for _, source in found.sources)
        for layer, source in found.sources:
            run = found.runs[source]
            refuse(run, layer, source, repeats=times[source] > 1)
            result.append((*run, layer - source))
        index += len(found.runs)
    return result


@dataclass(frozen=True)
class _BlockPass:
    """Runs of events of one block after another.

    Attributes:
        runs: Start and end by traced block.
        sources: The blocks of the long model, as they come, and the traced block that each equals.
    """

    runs: dict[int, tuple[int, int]]
    sources: list[tuple[int, int]]


def _pass_over_blocks(runs: list[Run], rows: BlockRows) -> _BlockPass | None:
    """Return the pass that runs are, if they are of all blocks in their order or in the reverse
    one; or of all but the last one: what each leaves for the next, where that is kept; or of all
    but those of the first one's kind: buffers that these have not, as of layers without experts.
    """
    labels, rising = [label for _, _, label in runs], list(range(len(rows.few)))
    spans = {label: (start, end) for start, end, label in runs}
    if labels == rising:
        return _BlockPass(spans, list(enumerate(rows.rising)))
    if labels == rising[::-1]:
        return _BlockPass(spans, list(enumerate(rows.falling))[::-1])
    if labels[: len(rising) - 1] == rising[:-1]:
        kept = {label: spans[label] for label in rising[:-1]}
        return _BlockPass(kept, list(enumerate(rows.rising))[:-1])
    others = [label for label in rising if rows.few[label] != rows.few[0]]
    if others and labels[: len(others)] == others:
        kept = {label: (start, end) for start, end, label in runs[: len(others)]}
        moved = [each for each in enumerate(rows.rising) if each[1] in kept]
        return _BlockPass(kept, moved)
    return None


class _Neighbours:
    """What the blocks of a long model have in place of the storages that traced blocks touch."""

    def __init__(self, short: Trace, rows: BlockRows) -> None:
        self._short, self._rows = short, rows
        self._ordinals_S = _ordinals(short.layers_S)
        self._touched: dict[tuple[int, int], dict[int, Ints]] = {}
        self._equal: set[tuple[tuple[int, int], int, int]] = set()

    def refuse_others(
        self, run: tuple[int, int], layer: int, source: int, *, repeats: bool
    ) -> None:
        """Raise Irregular unless a run for another block touches only storages of which the blocks
        there have equal ones, and none outside the blocks if it repeats.
        """
        if layer == source:
            return
        for place, touched in self._touched_by(run).items():
            if place == GLOBAL:
                if repeats:
                    raise Irregular("a block that repeats makes or ends a tensor of no block")
                continue
            moved = place + layer - source
            like = self._rows.rising[moved] if 0 <= moved < len(self._rows.all) else GLOBAL
            if like != place and (run, place, like) not in self._equal:
                self._refuse_unequal(touched, place, like)
                self._equal.add((run, place, like))

    def _touched_by(self, run: tuple[int, int]) -> dict[int, Ints]:
        if run not in self._touched:
            touched = np.unique(np.abs(self._short.events_E[run[0] : run[1]]) - 1)
            places = self._short.layers_S[touched]
            self._touched[run] = {
                place: touched[places == place] for place in np.unique(places).tolist()
            }
        return self._touched[run]

    def _refuse_unequal(self, touched: Ints, place: int, like: int) -> None:
        short, ordinals, few = self._short, self._ordinals_S[touched], self._rows.few
        if like != GLOBAL and few[like] == few[place]:
            others = np.flatnonzero(short.layers_S == like)
            if len(others) > ordinals.max() and all(
                np.array_equal(values_S[others[ordinals]], values_S[touched])
                for values_S in (short.sizes_S, short.kinds_S)
            ):
                return
        raise Irregular(
            f"a block that repeats makes or ends a tensor of block {place} that others do not have"
        )


def _origins(short: Trace, rows: BlockRows) -> tuple[Ints, Ints]:
    """Return for each storage of the long trace the equal storage of the short one, and its block;
    blocks rise.
    """
    members = {
        layer: np.flatnonzero(short.layers_S == layer) for layer in range(GLOBAL, len(rows.few))
    }
    of_blocks = [members[GLOBAL], *(members[source] for source in rows.rising)]
    sizes = [len(each) for each in of_blocks]
    blocks = len(rows.all)
    return np.concatenate(of_blocks), np.repeat(np.arange(GLOBAL, blocks), sizes)


def _renamed(short: Trace, rows: BlockRows) -> tuple[Int32Array, Names]:
    """Return the places with the numbers of their blocks in the long trace, in the order of
    `_origins`.
    """
    of_traced = {layer: _in_order(short, layer) for layer in range(GLOBAL, len(rows.few))}
    of_layer = [of_traced[layer] for layer in (GLOBAL, *rows.rising)]
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
