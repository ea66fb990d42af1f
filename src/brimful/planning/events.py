"""Passes over the events and storages of a trace: in C where the package could be built with it,
else with numpy. Tests hold both equal.

Suffixes: E events, S storages.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Array, Bools, Ints

BLOCK_BYTES = 512
"""CUDA's allocator gives multiples of it."""


def _built() -> Any:
    """Return the extension; None where it was not built, or built from an older source."""
    try:
        from brimful.planning import _replay  # noqa: PLC0415
    except ImportError:  # installed where no C compiler was
        return None
    return _replay if hasattr(_replay, "moved_runs") else None


extension: Any = _built()


def peak_bytes(events_E: NDArray[np.int32], sizes_S: Ints) -> int:
    """Return the most that storages hold together if each takes whole blocks."""
    if extension is not None:
        return int(extension.peak(_whole(events_E, np.int32), _whole(sizes_S, np.int64)))
    blocks_S = -(-sizes_S // BLOCK_BYTES) * BLOCK_BYTES
    return int(np.cumsum(np.sign(events_E) * blocks_S[np.abs(events_E) - 1]).max(initial=0))


def alive(events_E: NDArray[np.int32], count: int) -> NDArray[np.int8]:
    """Return which of so many storages live after these events; each lives once."""
    lives_S = np.zeros(count, np.int8)
    if extension is not None:
        extension.alive(_whole(events_E, np.int32), lives_S)
    else:
        lives_S[events_E[events_E > 0] - 1] = 1
        lives_S[-events_E[events_E < 0] - 1] = 0
    return lives_S


def sizes_at(
    lines: tuple[Ints, Ints, Ints],
    evaluates_S: Bools,
    rows: tuple[float, float],
    positions: int,
    piece: int,
) -> Ints:
    """Return the sizes of a micro-batch.

    Args:
        lines: Bytes that depend on nothing, bytes per sequence, and bytes per token of a piece of
            the loss; these are negative for storages of the last, partial piece.
        evaluates_S: Storages of the evaluation batch.
        rows: Sequences of the micro-batch, and of the evaluation batch.
        positions: The positions of a sequence that the loss is computed of.
        piece: Tokens of a piece of the loss.
    """
    base_S, slope_S, chunk_slope_S = lines
    if extension is not None:
        result_S = np.empty(len(base_S), np.int64)
        whole = (_whole(each, np.int64) for each in lines)
        extension.sizes_at(*whole, _whole(evaluates_S, np.bool_), result_S, *rows, positions, piece)
        return result_S
    sequences_S = np.where(evaluates_S, rows[1], rows[0])
    tokens_S = sequences_S * positions
    chunk_S = np.minimum(piece, tokens_S)
    last_chunk_S = np.minimum(tokens_S, 2 * chunk_S) / positions
    batch_S = np.where(chunk_slope_S < 0, last_chunk_S, sequences_S)
    growth_S = np.rint(slope_S * batch_S) + np.rint(chunk_slope_S * chunk_S)
    sizes_S: Ints = base_S + growth_S.astype(np.int64)
    return sizes_S


def moved_runs(
    runs: Ints,
    events: tuple[NDArray[np.int32], NDArray[np.int32]],
    storages: tuple[NDArray[np.int32], Ints],
    offsets: Ints,
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return runs of events one after another, each moved by a number of blocks, and the blocks
    that compute at them. What lies outside the blocks, in block -1, stays there.

    Args:
        runs: Start, end and number of blocks of each (runs x 3).
        events: They, and the blocks that compute at them.
        storages: The block of each storage, and its number among those of its block.
        offsets: Number of the first storage outside the blocks, of block 0, block 1 ... where the
            events are moved to.
    """
    events_E, labels_E = events
    layers_S, ordinals_S = storages
    starts_P, ends_P, shifts_P = runs.T
    lengths_P = ends_P - starts_P
    if extension is not None:
        moved_E, moved_labels_E = (np.empty(int(lengths_P.sum()), np.int32) for _ in range(2))
        extension.moved_runs(
            _whole(runs, np.int64),
            _whole(events_E, np.int32),
            _whole(labels_E, np.int32),
            _whole(layers_S, np.int32),
            _whole(ordinals_S, np.int64),
            _whole(offsets, np.int64),
            moved_E,
            moved_labels_E,
        )
        return moved_E, moved_labels_E
    event_E = np.repeat(starts_P - (np.cumsum(lengths_P) - lengths_P), lengths_P)
    event_E += np.arange(len(event_E))
    shift_E = np.repeat(shifts_P, lengths_P)
    storage_E = np.abs(events_E[event_E]) - 1
    block_E = layers_S[storage_E].astype(np.int64)
    block_E += np.where(block_E < 0, 0, shift_E)
    births_E = offsets[block_E + 1] + ordinals_S[storage_E] + 1
    label_E = labels_E[event_E]
    return (
        (np.sign(events_E[event_E]) * births_E).astype(np.int32),
        np.where(label_E < 0, label_E, label_E + shift_E).astype(np.int32),
    )


def _whole(values: Array, kind: type) -> Array:
    return np.ascontiguousarray(values, kind)
