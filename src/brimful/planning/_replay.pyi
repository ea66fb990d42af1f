"""Built from _replay.c where there is a C compiler; see allocator.py and events.py."""

import numpy as np
from numpy.typing import NDArray

def replay_sizes(
    events: NDArray[np.int32], sizes: NDArray[np.int64], limit: int, /
) -> tuple[int, int, int, int, int, int, int]: ...
def peak(events: NDArray[np.int32], sizes: NDArray[np.int64], /) -> int: ...
def alive(events: NDArray[np.int32], lives: NDArray[np.int8], /) -> None: ...
def sizes_at(
    base: NDArray[np.int64],
    slope: NDArray[np.int64],
    chunk_slope: NDArray[np.int64],
    evaluates: NDArray[np.bool_],
    result: NDArray[np.int64],
    rows: float,
    rows_there: float,
    positions: float,
    piece: float,
    /,
) -> None: ...
def moved_runs(
    runs: NDArray[np.int64],
    events: NDArray[np.int32],
    labels: NDArray[np.int32],
    layers: NDArray[np.int32],
    ordinals: NDArray[np.int64],
    offsets: NDArray[np.int64],
    moved: NDArray[np.int32],
    moved_labels: NDArray[np.int32],
    /,
) -> None: ...
