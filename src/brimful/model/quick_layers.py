"""Layers quicker than those of torch, transformers and peft, which keep less for the backward pass.

- Root-mean-square norms with frozen weights: transformers' norm is eight operators, each with a
  gradient of its own, and keeps its input in fp32. Here its gradient is written out, and it keeps
  the input in the type that it came in. Values are transformers' to the bit, gradients up to
  rounding. Doubles stay doubles, which transformers rounds.
- LoRA: peft converts a layer's input to the adapter's type, autocast converts it back, and scaling
  and adding the adapter's output are passes of their own over it. Here all products of a layer are
  one function: the adapter's output is added inside its product, and so is its part of the input's
  gradient.
- Dropout for CPUs at a third of the time of torch's own, which draws a number for every element.
  Here 16 random bits decide, so a probability is kept to within 1 / 131,072, and what is kept is
  divided by exactly the share that is kept on average.

Shapes: N positions, I inputs, O outputs, R rank.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

NORMS = frozenset(
    {
        "GraniteRMSNorm",
        "LlamaRMSNorm",
        "MistralRMSNorm",
        "MixtralRMSNorm",
        "Phi3RMSNorm",
        "Qwen2RMSNorm",
        "Qwen3RMSNorm",
        "SmolLM3RMSNorm",
    }
)
"""Classes of transformers that all compute what `_Normalised` does (checked with transformers 5.23;
those of Gemma and OLMo differ).
"""


class _Normalised(torch.autograd.Function):
    """inputs / sqrt(mean(inputs^2) + epsilon) * weight, in fp32 (of doubles in doubles) but for the
    last product.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = inputs.to(torch.promote_types(inputs.dtype, torch.float32))
        inverse = wide.square().mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(inputs, weight, inverse)
        return (wide * inverse).to(inputs.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        inputs, weight, inverse = ctx.saved_tensors
        normed = inputs.to(inverse.dtype) * inverse
        grad = (grad_outputs[0] * weight).to(inverse.dtype)
        shared = torch.linalg.vecdot(grad, normed).unsqueeze_(-1).div_(-inputs.shape[-1])
        return grad.addcmul_(normed, shared).mul_(inverse).to(inputs.dtype), None, None


def normalise_quickly(model: nn.Module) -> None:
    """Exchange the way in which the norms of a model compute while their weights are frozen."""
    for module in model.modules():
        kind: Any = type(module)
        if kind.__name__ in NORMS:
            module.__class__ = _quick_norm(kind)


def normalise_as_usual(model: nn.Module) -> None:
    """Make the norms of a model those of transformers again."""
    for module in model.modules():
        usual: Any = getattr(type(module), "usual_norm", None)
        if usual is not None:
            module.__class__ = usual


@functools.cache
def _quick_norm(norm: Any) -> Any:
    class QuickNorm(norm):  # type: ignore[misc] # one for each class of transformers
        usual_norm = norm

        def forward(self, hidden_states: Tensor) -> Tensor:
            is_covered = (
                not self.weight.requires_grad
                and self.weight.dtype == hidden_states.dtype
                and not torch.compiler.is_compiling()  # which joins the operators itself
            )
            if not is_covered:
                usual: Tensor = super().forward(hidden_states)
                return usual
            normalised: Tensor = _Normalised.apply(
                hidden_states, self.weight, self.variance_epsilon
            )  # type: ignore[no-untyped-call]
            return normalised

    return QuickNorm


_LEVELS = 2**16


def kept_of(shape: torch.Size, dropout: float, device: torch.device) -> tuple[Tensor, float]:
    """Draw what dropout keeps, from torch's generator of the device.

    Args:
        shape: Shape of the tensor whose elements are dropped.
        dropout: Probability of dropping an element, at least 0 and below 1.
        device: Device of that tensor.

    Returns:
        bool, True with probability 1 - dropout; and the factor on what is kept.
    """
    dropped = min(round(dropout * _LEVELS), _LEVELS - 1)
    words = torch.empty(-(-shape.numel() // 4), dtype=torch.int64, device=device)
    words.random_(-(2**63), None)
    drawn = words.view(torch.int16)[: shape.numel()].view(shape)
    return drawn >= dropped - _LEVELS // 2, _LEVELS / (_LEVELS - dropped)


def keep(values: Tensor, kept: Tensor, factor: float) -> Tensor:
    """Return the values times `factor` where they are kept, else 0."""
    # The backward pass of dropout is the same function as its forward pass, given the mask.
    return torch.ops.aten.native_dropout_backward(values, kept, factor)  # type: ignore[no-any-return]


class QuickDropout(nn.Dropout):
    """torch's Dropout with another way to draw."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or not self.p:
            return input
        dropped: Tensor = _Dropped.apply(input, self.p)  # type: ignore[no-untyped-call]
        return dropped


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, dropout: float) -> Tensor:
        kept, ctx.factor = kept_of(values.shape, dropout, values.device)
        ctx.save_for_backward(kept)
        return keep(values, kept, ctx.factor)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return keep(grad_outputs[0], ctx.saved_tensors[0], ctx.factor), None


def drop_quickly(model: nn.Module) -> None:
    """Exchange the way in which the dropout layers of a model draw."""
    for module in model.modules():
        if type(module) is nn.Dropout:
            module.__class__ = QuickDropout


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
