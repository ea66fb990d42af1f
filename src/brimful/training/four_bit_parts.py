"""Frozen 4-bit layers of which every rank holds a part.

bitsandbytes keeps a packed weight as a parameter of its own class, with the scales among the
attributes; torch's FSDP2 would divide the one and leave the other whole, or fail. As plain
parameters of bytes both are divided, padded and gathered like any weight, so that a rank computes
with the bytes that one device has. What is left whole are the scales of the scales, in fp32: one
for 16,384 weights.
"""

import torch
from torch import nn

SCALES = "scales"
"""Name of the parameter that holds a layer's 8-bit scales."""


def as_plain_parameters(model: nn.Module, device: torch.device) -> None:
    """Make packed weights and their scales plain parameters of bytes, in place. Layers compute with
    what these hold when they are called; a model without 4-bit layers stays as it is.

    Args:
        model: A model with bitsandbytes' layers, on the host.
        device: Where they will compute.
    """
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        state = getattr(weight, "quant_state", None)
        if weight is None or state is None:
            continue
        scales, state.absmax = state.absmax, state.absmax.new_empty(0)
        state.to(device)
        layer.quant_state = state
        layer.weight = nn.Parameter(weight.data, requires_grad=False)
        layer.register_parameter(SCALES, nn.Parameter(scales, requires_grad=False))
        layer.register_forward_pre_hook(_with_own_scales)


def _with_own_scales(layer: nn.Module, _: object) -> None:
    """Let bitsandbytes read the gathered scales before a call. It takes a plain weight as its own,
    with the layer's state.
    """
    layer.quant_state.absmax = layer.get_parameter(SCALES)  # type: ignore[union-attr]
