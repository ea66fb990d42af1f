"""Activation offloading: what the blocks of a model keep for the backward pass lies in the host's
memory until then.

With activation checkpointing a block keeps its input only, so that is all that moves, once to the
host and once back. Values do not change.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

CHECKPOINT = "_gradient_checkpointing_func"
"""Where transformers keeps the function by which a layer is checkpointed."""


class Elsewhere(Protocol):
    """A place outside the device's memory."""

    def away(self, tensor: Tensor) -> Any:
        """Put a tensor there; return what `back` needs."""

    def back(self, kept: Any) -> Tensor:
        """Return the tensor on the device that it came from."""


class _Copy(NamedTuple):
    host: Tensor
    device: torch.device


class HostMemory:
    """The host's memory, page-locked where the tensor comes from a GPU, so that copies need not
    wait for the program.
    """

    def away(self, tensor: Tensor) -> _Copy:
        """Copy a tensor to the host."""
        host = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        host.copy_(tensor, non_blocking=tensor.is_cuda)
        return _Copy(host, tensor.device)

    def back(self, kept: _Copy) -> Tensor:
        """Copy it back."""
        if kept.device.type == "cpu":
            return kept.host
        return kept.host.to(kept.device, non_blocking=True)


def offload_activations(model: nn.Module, elsewhere: Elsewhere) -> int:
    """Let what checkpointed layers keep lie elsewhere until the backward pass; return their number.

    Args:
        model: A model with activation checkpointing switched on.
        elsewhere: Usually HostMemory().
    """
    layers = [module for module in model.modules() if hasattr(module, CHECKPOINT)]
    for layer in layers:
        setattr(layer, CHECKPOINT, _offloaded(getattr(layer, CHECKPOINT), elsewhere))
    return len(layers)


def _offloaded(checkpoint: Callable[..., Any], elsewhere: Elsewhere) -> Callable[..., Any]:
    """Return a checkpointing function whose saved inputs lie elsewhere. Tensors inside the layer
    are not saved by it, and its second forward pass runs outside of this context.
    """

    def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(elsewhere.away, elsewhere.back):
            return checkpoint(function, *args, **kwargs)

    return run
