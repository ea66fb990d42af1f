"""Root-mean-square norms with frozen weights, quicker than transformers' own and with less
kept for the backward pass.

transformers' norm is eight operators, each with a gradient of its own, and keeps its input in fp32.
Here its gradient is written out, and it keeps the input in the type that it came in. Values are
transformers' to the bit, gradients up to rounding. Doubles stay doubles, which transformers rounds.
"""

import functools
from typing import Any

import torch
from torch import Tensor, nn

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
