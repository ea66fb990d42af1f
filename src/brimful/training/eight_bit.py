"""AdamW with states of 8 bits, through bitsandbytes (Dettmers et al. 2022, "8-bit Optimizers via
Block-wise Quantization").

Tensors of fewer than 4,096 elements keep states in fp32 (bitsandbytes' min_8bit_size). Unlike the
paper, embeddings get 8 bits, too.
"""

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.errors import CheckpointError, DeviceError, RequestError
from brimful.base.libraries import how_to_install
from brimful.base.types import JsonDict
from brimful.model.quiet import quiet_bitsandbytes
from brimful.planning.choices import EIGHT_BIT_VARIANTS, ROUNDED
from brimful.recipe import OptimizerRecipe
from brimful.training.rounded import RandomRounding, in_fp32
from brimful.training.tensorfile import Tensors

PAGED = "paged_8bit"
"""The variant whose large states lie in unified memory, which the driver moves between host and
device.
"""
KINDS = {variant: (kind, devices) for kind, (variant, devices) in EIGHT_BIT_VARIANTS.items()}
"""The variants made here -> the recipe's `optimizer.kind`, and the device types that have kernels
for it.
"""


def require(variant: str, device_type: str) -> None:
    """Raise if a variant cannot run.

    Args:
        variant: 8bit or paged_8bit.
        device_type: cpu, cuda or mps.

    Raises:
        DeviceError: there are no kernels for this device.
        RequestError: bitsandbytes is not installed.
    """
    kind, device_types = KINDS[variant]
    if device_type not in device_types:
        raise DeviceError(
            f"optimizer.kind={kind} has kernels for {' and '.join(device_types)} only, not for"
            f" {device_type}; use optimizer.kind=adamw."
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise RequestError(
            "8-bit optimizers need bitsandbytes, which is not installed. Use"
            f" optimizer.kind=adamw, or install it. {how_to_install('quantize')}"
        )


def build(
    groups: list[JsonDict], settings: OptimizerRecipe, *, variant: str, seed: int = 0
) -> torch.optim.Optimizer:
    """Return AdamW in 8 bits over groups of parameters that all lie on one device.

    States are allocated before the first update writes anything, so that an update that runs out of
    memory there can be repeated.

    Args:
        variant: One of KINDS, or `rounded_` and one of them for parameters in bf16.
        seed: Seed of random rounding.

    Raises:
        DeviceError, RequestError: as `require`.
    """
    is_rounded = variant.startswith(ROUNDED)
    variant = variant.removeprefix(f"{ROUNDED}_")
    device_types = {parameter.device.type for group in groups for parameter in group["params"]}
    for device_type in device_types:
        require(variant, device_type)
    betas = (settings.beta1, settings.beta2)
    make = _rounded_class(seed) if is_rounded else _library().AdamW8bit
    optimizer: torch.optim.Optimizer = make(
        groups, lr=settings.learning_rate, betas=betas, eps=settings.eps, is_paged=variant == PAGED
    )
    optimizer.register_step_pre_hook(_make_states)
    return optimizer


def _rounded_class(seed: int) -> Any:
    """Return bitsandbytes' AdamW8bit for parameters in bf16: each is updated in fp32 and rounded at
    random, where bitsandbytes rounds to the nearest.
    """
    library, rounding = _library(), RandomRounding(seed)

    class RoundedAdamW8bit(library.AdamW8bit):  # type: ignore[misc, name-defined]
        divisor: Tensor | None = None  # as of RoundedAdamW

        @torch.no_grad()
        def update_step(self, group: Any, p: Tensor, gindex: int, pindex: int) -> None:
            values = p.detach().float()
            values.grad = in_fp32(p, self.divisor)
            self.state[values] = self.state[p]
            try:
                super().update_step(group, values, gindex, pindex)
            finally:
                del self.state[values]
            values.grad = None
            before = sum(len(earlier["params"]) for earlier in self.param_groups[:gindex])
            rounding(p, values, before + pindex, int(self.state[p]["step"]))

    return RoundedAdamW8bit


def _library() -> Any:
    with quiet_bitsandbytes():
        return importlib.import_module("bitsandbytes.optim")


def _make_states(optimizer: Any, *_: object) -> None:
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if parameter.grad is not None and not optimizer.state.get(parameter):
                optimizer.init_state(group, parameter, group_index, index)


def is_eight_bit(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether an optimizer was made by `build`."""
    return hasattr(optimizer, "init_state")


def load_states(optimizer: Any, states: Mapping[nn.Parameter, Tensors]) -> None:
    """Copy stored states into the optimizer's own tensors, which may be paged. Parameters without
    stored states lose theirs.

    Raises:
        CheckpointError: the states were written by another version of bitsandbytes.
    """
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if parameter not in states:
                optimizer.state.pop(parameter, None)
                continue
            if not optimizer.state.get(parameter):
                optimizer.init_state(group, parameter, group_index, index)
            _copy_into(optimizer.state[parameter], states[parameter])


def _copy_into(state: JsonDict, stored: Tensors) -> None:
    if _layout(state.items()) != _layout(stored.items()):
        raise CheckpointError(
            "the checkpoint's optimizer states are of another version of bitsandbytes; install the"
            " one it was written with."
        )
    for key, value in stored.items():
        if isinstance(state[key], Tensor):
            state[key].copy_(value)
        else:
            state[key] = int(value)


def _layout(values: Iterable[tuple[str, Any]]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(getattr(value, "shape", ())) for key, value in values}
