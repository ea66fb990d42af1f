"""One trace for all micro-batches and any number of blocks: sizes are affine in the micro-batch,
equal blocks repeat.

Neither is believed: `affine` refuses traces whose events differ, `stretch` refuses steps whose
blocks do not repeat, and the caller checks both against a further trace.

Suffixes: E events, S storages.
"""

import dataclasses
import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from brimful.planning.step import EVALUATION_FACTOR
from brimful.planning.trace import Int32Array, Int64Array, Trace, same_events
from brimful.planning.work import GLOBAL, ParametricWork

EXAMPLES = (4, 5)
"""Blocks that a step can be traced with to be stretched.

Going forward a block ends tensors of the one before it, going backward of the one after it. With
four blocks the two in the middle stand for all: forward the later one repeats, backward the earlier
one, so what either ends is a tensor of the other. Where a block touches both neighbours in one
pass, five are needed, of which the third repeats.
"""


class Irregular(Exception):
    """The step is not a repetition of equal blocks, or sizes are not affine; it has to be traced as
    it is.
    """


@dataclass(frozen=True)
class ParametricTrace:
    """Events that hold for every micro-batch, with sizes that are affine in it.

    The chunked loss is traced with two chunks. A third and later one takes and gives back what the
    second did, so peaks stand for any number of chunks; with one chunk the second one's tensors are
    empty.

    Attributes:
        trace: The events; its sizes are those of one micro-batch.
        base_S: Bytes that depend on neither.
        slope_S: Bytes per sequence of the micro-batch.
        chunk_slope_S: Bytes per token of a chunk of the loss; negative for tensors of the last,
            partial chunk.
        sequence_length: Tokens per sequence.
        loss_chunk: Tokens per chunk of the loss.
        lowest: The smallest micro-batch it holds for: operators may treat one sequence in a way of
            their own.
        work: What the operators compute; None where that does not follow from small traces.
    """

    trace: Trace
    base_S: Int64Array
    slope_S: Int64Array
    chunk_slope_S: Int64Array
    sequence_length: int
    loss_chunk: int
    lowest: int = 1
    work: ParametricWork | None = None

    def at(self, micro_batch: int) -> Trace:
        """The trace of this micro-batch; its evaluation batch is EVALUATION_FACTOR times as
        large.
        """
        sequences_S = np.where(
            self.trace.is_evaluation_S, EVALUATION_FACTOR * micro_batch, micro_batch
        )
        tokens_S = sequences_S * self.sequence_length
        chunk_S = np.minimum(self.loss_chunk, tokens_S)
        last_chunk_S = np.minimum(tokens_S, 2 * chunk_S) / self.sequence_length
        batch_S = np.where(self.chunk_slope_S < 0, last_chunk_S, sequences_S)
        sizes_S = (
            self.base_S
            + np.rint(self.slope_S * batch_S).astype(np.int64)
            + self.chunk_slope_S * chunk_S
        )
        return dataclasses.replace(self.trace, sizes_S=sizes_S)


def affine(low: Trace, high: Trace, low_at: int, high_at: int) -> tuple[Int64Array, Int64Array]:
    """Bytes at 0 and per unit of the line through two traces, for every storage.

    Raises:
        Irregular: the events differ, or a size does not grow by whole bytes.
    """
    if not same_events(low, high):
        raise Irregular("the events differ between two sizes of the step")
    slope_S, rest_S = np.divmod(high.sizes_S - low.sizes_S, high_at - low_at)
    if rest_S.any():
        raise Irregular("a size does not grow by whole bytes")
    return low.sizes_S - slope_S * low_at, slope_S


def stretch(short: Trace, blocks: int, longer: Trace | None = None) -> Trace:
    """The trace of a model with `blocks` equal blocks, from one with few.

    Args:
        short: A step with as many blocks as EXAMPLES says.
        blocks: At least as many.
        longer: The same step with one block more, from which sizes outside the blocks that grow
            with their number are known.

    Raises:
        Irregular: the blocks do not repeat.
    """
    layers_S, ordinal_S = short.layers_S, _ordinals(short.layers_S)
    example = _Example(int(layers_S.max()) + 1, blocks)
    _refuse_unlike_blocks(short, example)
    counts = [int((layers_S == layer).sum()) for layer in range(GLOBAL, example.size)]
    sources = np.array([example.source(layer) for layer in range(blocks)])
    sizes = np.array([counts[0], *(counts[source + 1] for source in sources)])
    offsets = np.concatenate([[0], np.cumsum(sizes)])[:-1]  # of GLOBAL, block 0, block 1, ...
    pieces, piece_layers = [], []
    moved_starts: dict[int, int] = {}
    cursor = 0
    for start, end, shift in _passes(short, example):
        moved_starts.setdefault(start, cursor)
        cursor += end - start
        number_E = np.abs(short.events_E[start:end]) - 1
        layer_E = layers_S[number_E]
        moved_E = np.where(layer_E == GLOBAL, GLOBAL, layer_E + shift)
        pieces.append(
            np.sign(short.events_E[start:end]) * (offsets[moved_E + 1] + ordinal_S[number_E] + 1)
        )
        event_layer_E = short.event_layers_E[start:end]
        piece_layers.append(np.where(event_layer_E == GLOBAL, GLOBAL, event_layer_E + shift))
    origin_S, layer_S = _origins(short, sources, sizes, example.size)
    places_S, places = _renamed(short, origin_S, layer_S)
    return Trace(
        events_E=np.concatenate(pieces).astype(np.int32),
        event_layers_E=np.concatenate(piece_layers).astype(np.int32),
        sizes_S=_grown_sizes(short, longer, example)[origin_S],
        kinds_S=short.kinds_S[origin_S],
        places_S=places_S,
        layers_S=layer_S.astype(np.int32),
        places=places,
        blocks=short.blocks,
        marks={name: moved_starts.get(event, cursor) for name, event in short.marks.items()},
        parameters=_grown(short.parameters, None if longer is None else longer.parameters, example),
        trainable=_grown(short.trainable, None if longer is None else longer.trainable, example),
    )


def equal(one: Trace, other: Trace) -> bool:
    """Whether two traces tell the same, whatever their numbering of storages."""
    return (
        one.events_E.shape == other.events_E.shape
        and np.array_equal(np.sign(one.events_E), np.sign(other.events_E))
        and np.array_equal(_by_event(one, one.sizes_S), _by_event(other, other.sizes_S))
        and np.array_equal(_by_event(one, one.kinds_S), _by_event(other, other.kinds_S))
        and np.array_equal(_birth_events(one), _birth_events(other))
    )


def _by_event(trace: Trace, values_S: Int64Array | Int32Array) -> Int64Array | Int32Array:
    picked_E: Int64Array | Int32Array = values_S[np.abs(trace.events_E) - 1]
    return picked_E


def _birth_events(trace: Trace) -> Int64Array:
    """For each event, the event at which its storage was born."""
    birth_S = np.zeros(len(trace.sizes_S), np.int64)
    born = trace.events_E > 0
    birth_S[trace.events_E[born] - 1] = np.flatnonzero(born)
    birth_E: Int64Array = birth_S[np.abs(trace.events_E) - 1]
    return birth_E


@dataclass(frozen=True)
class _Example:
    """A few blocks that stand for many."""

    size: int
    blocks: int

    def __post_init__(self) -> None:
        if self.size not in EXAMPLES or self.blocks < self.size:
            raise Irregular(f"{self.size} blocks are no example of {self.blocks}")

    @property
    def alike(self) -> list[int]:
        """Blocks that are like each other: all but the first and the last."""
        return list(range(1, self.size - 1))

    @property
    def added(self) -> int:
        return self.blocks - self.size

    def source(self, layer: int, *, falling: bool = False) -> int:
        """Which of the example's blocks a block of the long model is like in a pass over them."""
        after = self.blocks - 1 - layer
        if layer == 0 or after == 0:
            return 0 if layer == 0 else self.size - 1
        repeats = 1 if self.size == 4 and falling else 2
        if layer < repeats:
            return layer
        return self.size - 1 - after if after < self.size - 1 - repeats else repeats


def _refuse_unlike_blocks(short: Trace, example: _Example) -> None:
    first, *others = (short.layers_S == layer for layer in example.alike)
    for other in others:
        if not (
            np.array_equal(short.sizes_S[first], short.sizes_S[other])
            and np.array_equal(short.kinds_S[first], short.kinds_S[other])
        ):
            raise Irregular("blocks differ in the tensors they make")


def _ordinals(layers_S: Int32Array) -> Int64Array:
    """Number of each storage among those of its block."""
    ordinal_S = np.zeros(len(layers_S), np.int64)
    for layer in np.unique(layers_S):
        members = layers_S == layer
        ordinal_S[members] = np.arange(members.sum())
    return ordinal_S


def _passes(short: Trace, example: _Example) -> list[tuple[int, int, int]]:
    """Runs of events of one block (start, end, shift of the block's number), in the order they have
    with all blocks.
    """
    labels_E = short.event_layers_E
    changes = np.flatnonzero(np.diff(labels_E)) + 1
    starts = np.unique(
        np.concatenate([[0], changes, list(short.marks.values()), [len(labels_E)]])
    ).astype(np.int64)
    runs = [(start, end, int(labels_E[start])) for start, end in pairwise(starts.tolist())]
    rising = list(range(example.size))
    result: list[tuple[int, int, int]] = []
    index = 0
    while index < len(runs):
        labels = [label for _, _, label in runs[index : index + example.size]]
        if labels in (rising, rising[::-1]):
            group = {
                label: (start, end) for start, end, label in runs[index : index + example.size]
            }
            falling = labels != rising
            _refuse_what_does_not_repeat(
                short, group[1 if falling and example.size == 4 else 2], example
            )
            order = range(example.blocks - 1, -1, -1) if falling else range(example.blocks)
            sources = [example.source(layer, falling=falling) for layer in order]
            result += [
                (*group[source], layer - source)
                for layer, source in zip(order, sources, strict=True)
            ]
            index += example.size
            continue
        start, end, label = runs[index]
        if label in example.alike:
            raise Irregular(f"events {start} to {end} belong to block {label} alone")
        result.append((start, end, example.added if label == example.size - 1 else 0))
        index += 1
    return result


def _refuse_what_does_not_repeat(short: Trace, run: tuple[int, int], example: _Example) -> None:
    """The run of a block that repeats may touch tensors of the blocks that are alike, and of the
    others those that have their like there.
    """
    ordinal_S = _ordinals(short.layers_S)
    own_S = np.flatnonzero(short.layers_S == 1)
    for number in np.unique(np.abs(short.events_E[run[0] : run[1]]) - 1):
        if short.layers_S[number] in example.alike:
            continue
        like = (
            own_S[ordinal_S[number]]
            if short.layers_S[number] != GLOBAL and ordinal_S[number] < len(own_S)
            else None
        )
        if (
            like is None
            or short.sizes_S[like] != short.sizes_S[number]
            or short.kinds_S[like] != short.kinds_S[number]
        ):
            raise Irregular(
                f"a block that repeats makes or ends a tensor of block {short.layers_S[number]}"
                " that others do not have"
            )


def _origins(
    short: Trace, sources: Int64Array, sizes: Int64Array, example_size: int
) -> tuple[Int64Array, Int64Array]:
    """For each storage of the long trace: the storage of the short one that it is like, and its
    block.
    """
    members = {
        layer: np.flatnonzero(short.layers_S == layer) for layer in range(GLOBAL, example_size)
    }
    origin_S = np.concatenate([members[GLOBAL], *(members[int(source)] for source in sources)])
    return origin_S, np.repeat(np.arange(GLOBAL, len(sources)), sizes)


def _renamed(
    short: Trace, origin_S: Int64Array, layer_S: Int64Array
) -> tuple[Int32Array, tuple[str, ...]]:
    """Places with the number of the block they now stand for."""
    table: dict[tuple[int, int], int] = {}
    names: list[str] = []
    places_S = np.empty(len(origin_S), np.int32)
    pattern = re.compile(rf"\b{re.escape(short.blocks)}\.\d+")
    for index, (place, layer) in enumerate(
        zip(short.places_S[origin_S].tolist(), layer_S.tolist(), strict=True)
    ):
        key = (place, layer)
        if key not in table:
            table[key] = len(names)
            names.append(
                pattern.sub(f"{short.blocks}.{layer}", short.places[place])
                if layer != GLOBAL
                else short.places[place]
            )
        places_S[index] = table[key]
    return places_S, tuple(names)


def _grown(count: int, longer_count: int | None, example: _Example) -> int:
    return count if longer_count is None else count + (longer_count - count) * example.added


def _grown_sizes(short: Trace, longer: Trace | None, example: _Example) -> Int64Array:
    """Sizes with all blocks: those outside the blocks may grow by the same number of bytes with
    every block.
    """
    if longer is None:
        return short.sizes_S
    members, grown = (
        np.flatnonzero(short.layers_S == GLOBAL),
        np.flatnonzero(longer.layers_S == GLOBAL),
    )
    if len(members) != len(grown):
        raise Irregular("the number of tensors outside the blocks depends on their number")
    sizes_S = short.sizes_S.copy()
    sizes_S[members] += (longer.sizes_S[grown] - short.sizes_S[members]) * example.added
    return sizes_S
