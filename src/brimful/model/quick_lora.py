"""LoRA layers quicker than peft's own and with less kept for the backward pass.

peft converts a layer's input to the adapter's type, autocast converts it back, and scaling and
adding the adapter's output are passes of their own over it. Here all products of a layer are one
function: the adapter's output is added inside its product, and so is its part of the input's
gradient.

Shapes: N positions, I inputs, O outputs, R rank.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.model.quick_norm import normalise_quickly


class _AdaptedLinear(torch.autograd.Function):
    """inputs @ weight.T + bias + scale * (inputs @ down.T) @ up.T, all in one type."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs_NI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        scale: float,
    ) -> Tensor:
        output_NO = F.linear(inputs_NI, weight_OI, bias_O)
        low_NR = F.linear(inputs_NI, down_RI)
        output_NO.addmm_(low_NR, up_OR.T, alpha=scale)
        ctx.save_for_backward(inputs_NI, weight_OI, down_RI, up_OR, low_NR)
        ctx.scale = scale
        return output_NO

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, None, None, Tensor, Tensor, None]:
        grad_NO = grad_outputs[0]
        inputs_NI, weight_OI, down_RI, up_OR, low_NR = ctx.saved_tensors
        grad_up_OR = (grad_NO.T @ low_NR).mul_(ctx.scale)
        grad_low_NR = (grad_NO @ up_OR).mul_(ctx.scale)
        grad_down_RI = grad_low_NR.T @ inputs_NI
        grad_inputs_NI = None
        if ctx.needs_input_grad[0]:
            grad_inputs_NI = (grad_NO @ weight_OI).addmm_(grad_low_NR, down_RI)
        return grad_inputs_NI, None, None, grad_down_RI, grad_up_OR, None


def adapt_quickly(model: nn.Module) -> None:
    """Exchange the way in which the LoRA layers and the norms of a model compute. They stay layers
    of peft and transformers, with the same weights.

    What `_AdaptedLinear` does not cover is still computed by peft: dropout, DoRA, layers in 4 bits,
    several adapters at once, and a base in another type than the products. A model without any
    layer that is covered stays as it is.
    """
    # Half a second that models without adapters do not need.
    from peft.tuners.lora.layer import Linear  # noqa: PLC0415

    layers = [module for module in model.modules() if type(module) is Linear]
    plain = [layer for layer in layers if _is_covered(layer)]
    for layer in plain:
        layer.__class__ = _quick_layer()
    if plain:
        normalise_quickly(model)


@functools.cache
def _quick_layer() -> type[nn.Module]:
    from peft.tuners.lora.layer import Linear  # noqa: PLC0415 - see adapt_quickly

    class QuickLora(Linear):  # type: ignore[misc] # peft has no types
        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            if args or kwargs or not _is_plain(self, x):
                usual: Tensor = super().forward(x, *args, **kwargs)
                return usual
            base, (name,) = self.base_layer, self.active_adapters
            products = base.weight.dtype
            output_NO: Tensor = _AdaptedLinear.apply(
                x.flatten(0, -2).to(products),
                base.weight,
                base.bias,
                self.lora_A[name].weight.to(products),
                self.lora_B[name].weight.to(products),
                self.scaling[name],
            )  # type: ignore[no-untyped-call]
            return output_NO.view(*x.shape[:-1], output_NO.shape[-1])

    return QuickLora


def _is_covered(layer: Any) -> bool:
    """Return whether a LoRA layer of peft is of the kind that `_AdaptedLinear` computes."""
    has_dropout = any(
        isinstance(dropout, nn.Dropout) and dropout.p > 0 for dropout in layer.lora_dropout.values()
    )
    return type(layer.base_layer) is nn.Linear and not layer.lora_variant and not has_dropout


def _is_plain(layer: Any, inputs: Tensor) -> bool:
    """Return whether such a layer computes with one adapter, all in the type of the products, and
    not in a graph that torch.compile captures: the compiler joins peft's passes itself.
    """
    if layer.disable_adapters or layer.merged or torch.compiler.is_compiling():
        return False
    names = layer.active_adapters
    if len(names) != 1 or names[0] not in layer.lora_A:
        return False
    weight, down = layer.base_layer.weight, layer.lora_A[names[0]].weight
    if torch.is_autocast_enabled(inputs.device.type):
        return bool(weight.dtype == torch.get_autocast_dtype(inputs.device.type))
    return bool(weight.dtype == down.dtype == inputs.dtype)
