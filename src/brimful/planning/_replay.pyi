"""Built from _replay.c where there is a C compiler; see allocator.py."""

import numpy as np
from numpy.typing import NDArray

def replay_sizes(
    events: NDArray[np.int32], sizes: NDArray[np.int64], limit: int, /
) -> tuple[int, int, int, int, int, int, int]: ...
