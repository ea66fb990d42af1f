"""Which of this machine's devices still answer, after a rank has ended."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from brimful.base.env import visible_cuda_devices, with_cuda_devices

ANSWERS_WITHIN_S = 120.0
"""With the start of torch; a device that is lost can make a driver wait for ever."""
_COMPUTE = "import torch; assert torch.ones(8, device='cuda').sum().item() == 8"

Look = Callable[[], Sequence[str] | None]
"""Returns the names of CUDA devices that answer; None where ranks compute on the processor, which
none of them can lose.
"""


def cuda_devices(count: int) -> list[str]:
    """Return the names of the first CUDA devices that this process sees, as `CUDA_VISIBLE_DEVICES`
    takes them.
    """
    visible = visible_cuda_devices()
    names = list(map(str, range(count))) if visible is None else visible.split(",")
    return names[:count]


def answering(names: Sequence[str]) -> list[str]:
    """Return the CUDA devices that compute something right now, each asked by a process of its own:
    one that is lost harms only that.
    """
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        return [name for name, does in zip(names, pool.map(_answers, names), strict=True) if does]


def looking_at(asked: str, count: int) -> Look:
    """Return what looks at the devices of a launch.

    Args:
        asked: The kind of device: as `plan.device`.
        count: Ranks of the launch.
    """
    if asked == "cpu" or not torch.cuda.is_available():
        return lambda: None
    names = cuda_devices(count)
    return lambda: answering(names)


def _answers(name: str) -> bool:
    try:
        done = subprocess.run(  # noqa: S603 - this Python, a fixed program
            [sys.executable, "-c", _COMPUTE],
            env=with_cuda_devices([name]),
            capture_output=True,
            timeout=ANSWERS_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
