"""Linear layers that adapters do not reach: attached to them they would fail, or learn nothing."""

import functools
import inspect
import re

import torch
from torch import nn

_TAKEN = re.compile(r"self\.(\w+)\.weight\b(?!\.(?:dtype|device|shape))")
_HANDED_ON = re.compile(r"self\.(\w+)\.weight\s*[,)@]")
_CALLED = re.compile(r"self\.(\w+)\(")


def out_of_reach(model: nn.Module) -> list[str]:
    """Return the names of the linear layers of a transformers model that get no adapter:

    - layers that compute something else than a product of their input, as a router that returns
      scores, or a product for each group (Llama 4, Phi-MoE, DeepSeek-V4);
    - layers whose weight the block above hands to a fused kernel, or that it never calls, so that
      an adapter is left out of the computation (projections of Mamba and Mamba-2, the router of
      LongCat-Flash). Mamba's blocks call some of them where the kernel is absent; which weights an
      adapter has must not depend on what is installed.
    """
    names = []
    for prefix, parent in model.named_modules():
        taken = _taken_weights(type(parent))  # type: ignore[arg-type]
        for name, module in parent.named_children():
            if isinstance(module, nn.Linear) and (name in taken or not _is_product(module)):
                names.append(f"{prefix}.{name}".lstrip("."))
    return names


@functools.cache
def _taken_weights(block: type[nn.Module]) -> set[str]:
    if not block.__module__.startswith("transformers.models."):
        return set()
    code = inspect.getsource(block.forward)
    taken, handed_on, called = (set(each.findall(code)) for each in (_TAKEN, _HANDED_ON, _CALLED))
    return handed_on | (taken - called)


def _is_product(layer: nn.Module) -> bool:
    """Return whether a layer of a model's own class returns a row of outputs for one of inputs."""
    if not (
        isinstance(layer, nn.Linear) and type(layer).__module__.startswith("transformers.models.")
    ):
        return True
    row = torch.empty((1, layer.in_features), dtype=layer.weight.dtype, device=layer.weight.device)
    try:
        with torch.no_grad():
            return tuple(layer(row).shape) == (1, layer.out_features)
    except (RuntimeError, AttributeError, IndexError):
        return False
