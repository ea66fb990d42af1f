"""A stand-in for the host's memory in recordings of steps on CUDA: what lies there takes no memory
of the device.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class _Shape(NamedTuple):
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class NotOnCuda:
    """Forgets a tensor and makes one like it, as copying to the host and back does to the device's
    memory. Only for tensors without values.
    """

    def away(self, tensor: Tensor) -> _Shape:
        """Forget a tensor but its shape."""
        return _Shape(tensor.size(), tensor.stride(), tensor.dtype)

    def back(self, kept: _Shape) -> Tensor:
        """Return another one of that shape."""
        return torch.empty_strided(kept.size, kept.stride, dtype=kept.dtype)
