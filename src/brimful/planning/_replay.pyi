"""Built from _replay.c where there is a C compiler; see plain_replay.py."""

import numpy as np
from numpy.typing import NDArray

def replay(
    events: NDArray[np.int64], units: NDArray[np.int64], limit: int, /
) -> tuple[int, int, int, int, int, int, int]: ...
