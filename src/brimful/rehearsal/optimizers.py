"""The optimizer of a declared step: torch's AdamW in its variants, that of bf16 weights, and what
8-bit and paged variants hold.
"""

import functools
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.types import JsonDict
from brimful.model.blocks import hidden_matrices
from brimful.planning.choices import MUON, ROUNDED
from brimful.planning.step import StepSpec
from brimful.rehearsal.recorder import note_kernel
from brimful.training.optim import MuonAndAdamW, parameter_groups
from brimful.training.rounded import RandomRounding, RoundedAdamW, in_fp32
from brimful.training.tensorfile import Tensors

FP32_VARIANTS = ("fused", "foreach", "for_loop")
"""Kernels of torch's AdamW, for weights and states in fp32."""

EIGHT_BIT_BLOCK = 256
"""Elements that share a scale in bitsandbytes' block-wise 8-bit states."""
EIGHT_BIT_FROM = 4096
"""Smaller tensors keep fp32 states (bitsandbytes min_8bit_size)."""
SEARCH_BYTES = 100
"""A CPU looks for the nearest of 256 levels for each element; this takes it about as long as moving
so many bytes (9 ns on a core of the development machine, bitsandbytes 0.50.2, 2026-11-21; a rough
figure, as the two need not go together elsewhere).
"""
PAGED_FROM = 100_000
"""Smaller tensors' states are not paged (bitsandbytes)."""


def optimizer_of(
    spec: StepSpec,
    parameters: list[nn.Parameter],
    hidden: Collection[nn.Parameter] = (),
    wide: Collection[int] = (),
) -> Any:
    """An optimizer over `parameters`, in groups as in `training.optim.build_optimizer`.

    Args:
        hidden: matrices inside the blocks, which Muon updates.
        wide: ids of parameters that `EightBitAdamW` keeps fp32 states of.
    """
    if spec.optimizer == MUON:
        return MuonAndAdamW(parameter_groups(parameters, 0.1, hidden), lr=1e-3)
    groups = parameter_groups(parameters, 0.1)
    if spec.optimizer == ROUNDED:
        return RoundedAdamW(groups, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, seed=0)
    if spec.optimizer not in FP32_VARIANTS:
        make = RoundedEightBitAdamW if spec.optimizer.startswith(ROUNDED) else EightBitAdamW
        return make(groups, paged="paged" in spec.optimizer, cuda=spec.cuda, wide=wide)
    return torch.optim.AdamW(
        groups, fused=spec.optimizer == "fused", foreach=spec.optimizer == "foreach"
    )


@functools.singledispatch
def optimizer_for(spec: StepSpec, model: nn.Module) -> Any:
    """The optimizer of a model's step. Subclasses of StepSpec may register their own."""
    hidden = hidden_matrices(model) if spec.optimizer == MUON else ()
    return optimizer_of(spec, trainable_parameters(model), hidden)


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are updated."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class EightBitAdamW(torch.optim.Optimizer):
    """Memory and work of bitsandbytes' AdamW8bit: two states of one byte and a scale per block; its
    values mean nothing.

    Args:
        paged: Whether large states live in memory that the driver moves, on CUDA, so that they take
            nothing from the allocator.
        cuda: One kernel updates in place; a CPU holds both states of a tensor in fp32 meanwhile.

    Attributes:
        wide: Ids of parameters whose states are in fp32, beside small ones.
    """

    def __init__(
        self,
        groups: list[JsonDict],
        *,
        paged: bool,
        cuda: bool = True,
        wide: Collection[int] = (),
    ) -> None:
        super().__init__(groups, {"fused": False})
        self._paged, self._cuda, self._wide = paged and cuda, cuda, wide

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Makes all states first, as `training.eight_bit` does, then updates every parameter that
        has a gradient.
        """
        parameters = [
            parameter
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = self._states(parameter)
        for parameter in parameters:
            self.update(parameter, self.state[parameter])

    def update(self, parameter: Tensor, states: Tensors) -> None:
        """Update one parameter with its gradient."""
        if self._cuda or "absmax1" not in states:
            every = list(states.values())
            read: tuple[Any, ...] = (parameter, parameter.grad, *every)
            note_kernel("adamw_8bit", "optimizer", read, (parameter, *every))
        else:
            _update_through_fp32(parameter, states)

    def _states(self, parameter: Tensor) -> Tensors:
        count = parameter.numel()
        if count < EIGHT_BIT_FROM or id(parameter) in self._wide:
            return {
                name: torch.empty_like(parameter, dtype=torch.float32)
                for name in ("state1", "state2")
            }
        states = {
            f"absmax{number}": torch.empty(-(-count // EIGHT_BIT_BLOCK), dtype=torch.float32)
            for number in (1, 2)
        }
        if not (self._paged and count >= PAGED_FROM):
            states |= {
                f"state{number}": torch.empty_like(parameter, dtype=torch.uint8)
                for number in (1, 2)
            }
        return states


class RoundedEightBitAdamW(EightBitAdamW):
    """The same for parameters in bf16: each is updated in fp32 and rounded at random."""

    divisor: Tensor | None = None

    def update(self, parameter: Tensor, states: Tensors) -> None:
        """Update one parameter, as `training.eight_bit` does."""
        values = parameter.detach().float()
        values.grad = in_fp32(parameter, self.divisor)
        super().update(values, states)
        values.grad = None
        RandomRounding(0)(parameter, values, 0, 0)


def _update_through_fp32(parameter: Tensor, states: Tensors) -> None:
    """The passes of bitsandbytes' CPU kernel (backends/cpu/ops.py, 0.50.2), each an operator of its
    own, on as many temporaries.
    """
    first, second = (states[name].float() for name in ("state1", "state2"))
    gradient: Tensor = parameter.grad * 1.0  # type: ignore[assignment, operator]
    first.mul_(0.9).add_(gradient)
    second.mul_(0.95).addcmul_(gradient, gradient)
    denominator = (second.sqrt() / 1.0).add_(1.0)
    parameter.mul_(1.0).addcdiv_(first, denominator, value=0.0)
    for name, value in (("state1", first), ("state2", second)):
        quantised = torch.empty_like(states[name])
        note_kernel(
            "quantize_blockwise",
            "optimizer",
            (value,),
            (quantised,),
            extra_bytes=SEARCH_BYTES * value.numel(),
        )
        states[name].copy_(quantised)
