"""Kernels of other trainers, as modules of a transformers model: what they keep and what they make.
Values mean nothing.

Sources: unslothai/unsloth kernels/rms_layernorm.py, rope_embedding.py and fast_lora.py, copied by
foundation-model-stack/fms-acceleration.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from brimful.rehearsal.recorder import note_kernel
from stand_ins.step import TrainerQuirks


def with_fused_kernels(model: nn.Module, quirks: TrainerQuirks) -> None:
    """Replace forward passes of norms and attention modules in place, where the quirks say so."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if quirks.fused_rms_norm and kind.endswith("RMSNorm"):
            module.forward = _fused_rms_norm(module)
        if quirks.fused_rope and name.endswith("self_attn"):
            module.forward = _with_fused_rope(module)
        if quirks.fused_lora and hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            module.forward = _fused_lora(module)


def _fused_rms_norm(module: nn.Module) -> Callable[[Tensor], Tensor]:
    def forward(hidden_states: Tensor) -> Tensor:
        out: Tensor = _RmsNorm.apply(hidden_states, module.weight)  # type: ignore[no-untyped-call]
        return out

    return forward


class _RmsNorm(torch.autograd.Function):
    """Keeps its input and one fp32 scale per row, overwrites the gradient that it is given; the
    weight gets none.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        rows = inputs.numel() // inputs.shape[-1]
        ctx.save_for_backward(inputs, weight, torch.empty(rows, dtype=torch.float32))
        out = torch.empty_like(inputs)
        note_kernel("fused_rms_norm", "reduction", (inputs,), (out,))
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        note_kernel(
            "fused_rms_norm_backward",
            "reduction",
            (ctx.saved_tensors[0], grad_outputs[0]),
            (grad_outputs[0],),
        )
        return grad_outputs[0], None


def _with_fused_rope(attention: nn.Module) -> Callable[..., Any]:
    plain = attention.forward
    modeling: Any = sys.modules[type(attention).__module__]

    def forward(*args: Any, **kwargs: Any) -> Any:
        separate = modeling.apply_rotary_pos_emb
        modeling.apply_rotary_pos_emb = _fused_rope
        try:
            return plain(*args, **kwargs)
        finally:
            modeling.apply_rotary_pos_emb = separate

    return forward


def _fused_rope(
    query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    rotated_query, rotated_key = (_Rope.apply(tensor, cos, sin) for tensor in (query, key))  # type: ignore[no-untyped-call]
    return rotated_query, rotated_key


class _Rope(torch.autograd.Function):
    """Rotates in place, backward too."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        note_kernel("fused_rope", "pointwise", (inputs,), (inputs,))
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        grad = grad_outputs[0].contiguous()
        note_kernel("fused_rope", "pointwise", (grad,), (grad,))
        return grad, None, None


def _fused_lora(layer: Any) -> Callable[[Tensor], Tensor]:
    name = next(iter(layer.lora_A))
    dropout = getattr(layer.lora_dropout[name], "p", 0.0)

    def forward(inputs: Tensor) -> Tensor:
        out: Tensor = _Lora.apply(
            inputs, layer.lora_A[name].weight, layer.lora_B[name].weight, dropout
        )  # type: ignore[no-untyped-call]
        return out

    return forward


class _Lora(torch.autograd.Function):
    """Adapter and packed base in one: the base's weight is unpacked for each product; keeps the
    input and, with dropout, a dropped copy.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, down_RI: Tensor, up_OR: Tensor, dropout: float) -> Tensor:
        ctx.shape = (up_OR.shape[0], down_RI.shape[1])
        with torch.autocast("cpu", enabled=False):
            out = inputs @ _unpacked(ctx.shape, inputs.dtype).t()
            dropped = torch.native_dropout(inputs, dropout, True)[0] if dropout > 0 else inputs
            out += (dropped @ down_RI.to(inputs.dtype).t()) @ up_OR.to(inputs.dtype).t()
        ctx.save_for_backward(inputs, dropped, down_RI, up_OR)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        inputs, dropped, down_RI, up_OR = ctx.saved_tensors
        grad = grad_outputs[0].reshape(-1, ctx.shape[0])
        low, high = down_RI.to(grad.dtype), up_OR.to(grad.dtype)
        rows = dropped.reshape(-1, ctx.shape[1])
        down_grad, up_grad = (rows.t() @ (grad @ high)).t(), ((low @ rows.t()) @ grad).t()
        grad_inputs = grad @ _unpacked(ctx.shape, grad.dtype)
        grad_inputs += (rows != 0) * ((grad @ high) @ low)
        return (
            grad_inputs.view(inputs.shape),
            down_grad.to(down_RI.dtype),
            up_grad.to(up_OR.dtype),
            None,
        )


def _unpacked(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """A weight out of 4 bits; both kinds of packing read about half a byte per weight."""
    weight = torch.empty(shape, dtype=dtype)
    note_kernel("dequantise", "dequantise", (), (weight,), extra_bytes=weight.numel() // 2)
    return weight
