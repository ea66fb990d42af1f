"""Optimizers of other trainers that brimful's own loop does not have."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from brimful.base.types import JsonDict
from brimful.rehearsal.optimizers import PAGED_FROM
from brimful.rehearsal.recorder import note_kernel


class PagedAdamW(torch.optim.Optimizer):
    """Memory and work of bitsandbytes' PagedAdamW32bit: one kernel updates in place; on CUDA the
    two fp32 states of tensors from PAGED_FROM elements on live in memory that the driver moves, so
    they take nothing from the allocator. Its values mean nothing.
    """

    def __init__(self, parameters: list[nn.Parameter], *, cuda: bool) -> None:
        super().__init__(parameters, {"fused": False})
        self._cuda = cuda

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Makes the states where there are none, and updates every parameter that has a
        gradient.
        """
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            state: JsonDict = self.state[parameter]
            if not state and not self._is_paged(parameter):
                for name in ("state1", "state2"):
                    state[name] = torch.empty_like(parameter, dtype=torch.float32)
            paged = 2 * 4 * parameter.numel() if self._is_paged(parameter) else 0
            states: list[Tensor] = list(state.values())
            note_kernel(
                "adamw_paged",
                "optimizer",
                (parameter, parameter.grad, *states),
                (parameter, *states),
                extra_bytes=2 * paged,
            )

    def _is_paged(self, parameter: Tensor) -> bool:
        return self._cuda and parameter.numel() >= PAGED_FROM
