"""AdamW with states of 8 bits, through bitsandbytes (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization").

Tensors of fewer than 4,096 elements keep states in fp32 (bitsandbytes' min_8bit_size). Unlike the paper, embeddings get 8 bits, too.
"""

import importlib
import importlib.util
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from brimful.base.errors import CheckpointError, DeviceError, RequestError
from brimful.recipe import OptimizerRecipe

PAGED_BY_VARIANT = {"8bit": False, "paged_8bit": True}
"""Variants of the update that are made here, and whether large states live in memory that the driver moves."""
DEVICES = {"8bit": ("cpu", "cuda"), "paged_8bit": ("cuda",)}
"""Types of devices with kernels (bitsandbytes 0.50)."""


def require(variant: str, device_type: str) -> None:
    """Make sure that a variant can run.

    Args:
        variant: 8bit or paged_8bit.
        device_type: cpu, cuda or mps.

    Raises:
        DeviceError: there are no kernels for this device.
        RequestError: bitsandbytes is not installed.
    """
    if device_type not in DEVICES[variant]:
        kind = "paged_adamw_8bit" if PAGED_BY_VARIANT[variant] else "adamw_8bit"
        instead = "adamw_8bit or adamw" if device_type == "cpu" else "adamw"
        raise DeviceError(f"optimizer.kind={kind} runs on {' and '.join(DEVICES[variant])}, not on {device_type}; use optimizer.kind={instead}.")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise RequestError("8-bit optimizers need bitsandbytes, which is not installed: pip install 'brimful[quantize]', or use optimizer.kind=adamw.")


def build(groups: list[dict[str, Any]], settings: OptimizerRecipe, *, variant: str) -> torch.optim.Optimizer:
    """AdamW in 8 bits over groups of parameters that all live on one device.

    States are made before the first update writes anything, so that an update for which they do not fit can be repeated.

    Raises:
        DeviceError, RequestError: as `require`.
    """
    device_types = {parameter.device.type for group in groups for parameter in group["params"]}
    for device_type in device_types:
        require(variant, device_type)
    betas = (settings.beta1, settings.beta2)
    optimizer: torch.optim.Optimizer = _library().AdamW8bit(
        groups, lr=settings.learning_rate, betas=betas, eps=settings.eps, is_paged=PAGED_BY_VARIANT[variant]
    )
    optimizer.register_step_pre_hook(_make_states)
    return optimizer


def _library() -> Any:
    """bitsandbytes.optim; importing it tells about an optional CPU kernel that is not needed here."""
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return importlib.import_module("bitsandbytes.optim")
    finally:
        logger.setLevel(level)


def _make_states(optimizer: Any, *_: object) -> None:
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if parameter.grad is not None and not optimizer.state.get(parameter):
                optimizer.init_state(group, parameter, group_index, index)


def is_eight_bit(optimizer: torch.optim.Optimizer) -> bool:
    """Whether `build` made it."""
    return hasattr(optimizer, "init_state")


def load_states(optimizer: Any, states: Mapping[nn.Parameter, Mapping[str, Tensor]]) -> None:
    """Put stored states into the optimizer's own tensors, which may be paged; a parameter without stored ones loses its own.

    Raises:
        CheckpointError: they are not those of this version of bitsandbytes.
    """
    for group_index, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if parameter not in states:
                optimizer.state.pop(parameter, None)
                continue
            if not optimizer.state.get(parameter):
                optimizer.init_state(group, parameter, group_index, index)
            _copy_into(optimizer.state[parameter], states[parameter])


def _copy_into(state: dict[str, Any], stored: Mapping[str, Tensor]) -> None:
    if _layout(state.items()) != _layout(stored.items()):
        raise CheckpointError("the checkpoint's optimizer states are of another version of bitsandbytes; install the one it was written with.")
    for key, value in stored.items():
        if isinstance(state[key], Tensor):
            state[key].copy_(value)
        else:
            state[key] = int(value)


def _layout(values: Iterable[tuple[str, Any]]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(getattr(value, "shape", ())) for key, value in values}
