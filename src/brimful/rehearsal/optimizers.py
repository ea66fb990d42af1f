"""The optimizer of a declared step: torch's AdamW in its variants, and what 8-bit and paged variants hold."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from brimful.planning.step import StepSpec
from brimful.rehearsal.recorder import note_kernel

EIGHT_BIT_BLOCK = 256
"""Elements that share a scale in bitsandbytes' block-wise 8-bit states."""
EIGHT_BIT_FROM = 4096
"""Smaller tensors keep fp32 states (bitsandbytes min_8bit_size)."""
PAGED_FROM = 100_000
"""Smaller tensors' states are not paged (bitsandbytes)."""


def optimizer_of(spec: StepSpec, parameters: list[nn.Parameter]) -> Any:
    """An optimizer over `parameters`, matrices and vectors in groups of their own as in `training.optim.build_optimizer`."""
    groups = [
        {"params": [parameter for parameter in parameters if parameter.ndim >= 2], "weight_decay": 0.1},
        {"params": [parameter for parameter in parameters if parameter.ndim < 2], "weight_decay": 0.0},
    ]
    if spec.optimizer in {"8bit", "paged_8bit"}:
        return EightBitAdamW(groups, paged=spec.optimizer == "paged_8bit")
    return torch.optim.AdamW(groups, fused=spec.optimizer == "fused", foreach=spec.optimizer == "foreach")


class EightBitAdamW(torch.optim.Optimizer):
    """Memory of bitsandbytes' AdamW8bit: two states of one byte and a scale per block; its values mean nothing.

    Args:
        paged: Large states live in memory that the driver moves, so they take nothing from the allocator.
    """

    def __init__(self, groups: list[dict[str, Any]], *, paged: bool) -> None:
        super().__init__(groups, {"fused": False})
        self._paged = paged

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Makes the states of every parameter that has a gradient; updates in place have no temporaries."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if not self.state[parameter]:
                    self.state[parameter] = self._states(parameter)
                states = list(self.state[parameter].values())
                note_kernel("adamw_8bit", "optimizer", (parameter, parameter.grad, *states), (parameter, *states))

    def _states(self, parameter: Tensor) -> dict[str, Tensor]:
        count = parameter.numel()
        if count < EIGHT_BIT_FROM:
            return {name: torch.empty_like(parameter, dtype=torch.float32) for name in ("state1", "state2")}
        states = {f"absmax{number}": torch.empty(-(-count // EIGHT_BIT_BLOCK), dtype=torch.float32) for number in (1, 2)}
        if not (self._paged and count >= PAGED_FROM):
            states |= {f"state{number}": torch.empty_like(parameter, dtype=torch.uint8) for number in (1, 2)}
        return states
