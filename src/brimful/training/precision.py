"""Precision of a step: the autocast dtype, and the loss scale that fp16 needs."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

FP16_INITIAL_SCALE = 2.0**16
FP16_GROWTH_INTERVAL = 2000
"""Good steps before the scale doubles, as torch.amp.GradScaler."""
FP16_NORM_SPIKE = 1000.0
"""fp16 only: a finite gradient norm this many times its running average is treated as an overflow
in the residual stream (reported as unslothai/unsloth-zoo#866: the loss stays finite while the
backward pass overflows).
"""


@dataclass(frozen=True)
class Precision:
    """Weights, gradients and optimizer states are fp32; matrix products run in `autocast_dtype`,
    None for fp32 throughout.
    """

    name: str

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        return {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[self.name]

    @property
    def scales_loss(self) -> bool:
        return self.name == "fp16"

    @property
    def initial_loss_scale(self) -> float:
        return FP16_INITIAL_SCALE if self.scales_loss else 1.0

    @property
    def norm_spike(self) -> float:
        return FP16_NORM_SPIKE if self.scales_loss else float("inf")

    def autocast(self, device: torch.device) -> AbstractContextManager[object]:
        return autocast(device, self.autocast_dtype)


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[object]:
    """Return a context in which the device computes in `dtype`; None: a context without effect."""
    if dtype is None:
        return nullcontext()
    return torch.autocast(device.type, dtype=dtype)
