"""Optimizers of other trainers that brimful's own loop does not have."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from brimful.integrations.other_tools.optimizers import SMALLEST, OptimizerStates
from brimful.model.published import import_adapters
from brimful.rehearsal.optimizers import PAGED_FROM
from brimful.rehearsal.recorder import note_kernel
from brimful.training.tensorfile import Tensors


def optimizer_in_torch(name: str, parameters: list[nn.Parameter]) -> Any:
    """Return an optimizer whose own code is traced, as transformers' Trainer makes it.

    Args:
        name: sgd, adagrad, rmsprop or adafactor.
        parameters: What it updates.
    """
    if name == "adafactor":
        import_adapters(quantized=False)  # quietly, before transformers does
        from transformers.optimization import Adafactor  # noqa: PLC0415 - half a second

        return Adafactor(parameters, lr=1e-3, scale_parameter=False, relative_step=False)
    kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "rmsprop": torch.optim.RMSprop}
    return kinds[name](parameters, lr=1e-3, foreach=True)


class KeptStates(torch.optim.Optimizer):
    """Memory and work of an optimizer by what it keeps; its values mean nothing. On CUDA paged
    states of tensors from PAGED_FROM elements on take nothing from the allocator.

    Args:
        parameters: What it updates.
        kept: What it keeps of them.
        embeddings: Ids of those whose states may be wider.
        cuda: Whether the device is CUDA.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        kept: OptimizerStates,
        embeddings: Collection[int],
        *,
        cuda: bool,
    ) -> None:
        super().__init__(parameters, {"fused": False})
        self._kept, self._cuda = kept, cuda
        self._wide = embeddings if kept.wide_embeddings else ()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Makes the states where there are none, and updates every parameter that has a
        gradient.
        """
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is None:
                continue
            bits = self._bits(parameter)
            paged = self._kept.paged and self._cuda and parameter.numel() >= PAGED_FROM
            if not self.state[parameter]:
                self.state[parameter] = self._states(parameter, bits, paged=paged)
            states = list(self.state[parameter].values())
            moved = self._kept.states * bits // 8 * parameter.numel() if paged else 0
            note_kernel(
                "update",
                "optimizer",
                (parameter, parameter.grad, *states),
                (parameter, *states),
                extra_bytes=2 * moved,
            )

    def _bits(self, parameter: Tensor) -> int:
        is_wide = id(parameter) in self._wide or parameter.numel() < SMALLEST
        return 32 if is_wide else self._kept.bits

    def _states(self, parameter: Tensor, bits: int, *, paged: bool) -> Tensors:
        kept, count = self._kept, parameter.numel()
        made = {}
        for number in range(kept.states):
            if not paged:
                made[f"state{number}"] = torch.empty(count * bits // 8, dtype=torch.uint8)
            if bits < 32:
                made[f"scales{number}"] = torch.empty(-(-count // kept.block))
        return made
