"""Kernels of other trainers, as modules of a transformers model: what they keep and what they make.
Values mean nothing.

Sources: unslothai/unsloth kernels/rms_layernorm.py, rope_embedding.py and fast_lora.py, copied by
foundation-model-stack/fms-acceleration; axolotl kernels/lora.py; linkedin/Liger-Kernel
ops/swiglu.py.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from brimful.integrations.other_tools.step import TrainerQuirks
from brimful.rehearsal.models import PackedLinear
from brimful.rehearsal.recorder import note_kernel


def with_fused_kernels(model: nn.Module, quirks: TrainerQuirks) -> None:
    """Replace forward passes of norms and attention modules in place, where the quirks say so."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        if quirks.fused_rms_norm and kind.endswith("RMSNorm"):
            module.forward = _fused_rms_norm(module, trains=quirks.fused_norms_train)
        if quirks.fused_rope and name.endswith("self_attn"):
            module.forward = _with_fused_rope(module)
        if quirks.fused_lora and _has_adapter(module):
            module.forward = _fused_lora(module)
    for module in model.modules():
        if not all(hasattr(module, each) for each in ("gate_proj", "up_proj", "down_proj")):
            continue
        if quirks.fused_lora_mlp and all(map(_has_adapter, _gated_layers(module))):
            module.forward = _fused_lora_mlp(module)
        elif quirks.fused_glu:
            module.forward = _fused_glu(module)


def _has_adapter(module: nn.Module) -> bool:
    return hasattr(module, "lora_A") and hasattr(module, "base_layer")


def _gated_layers(module: Any) -> tuple[Any, Any, Any]:
    return module.gate_proj, module.up_proj, module.down_proj


def _fused_rms_norm(module: nn.Module, *, trains: bool) -> Callable[[Tensor], Tensor]:
    def forward(hidden_states: Tensor) -> Tensor:
        out: Tensor = _RmsNorm.apply(hidden_states, module.weight, trains)  # type: ignore[no-untyped-call]
        return out

    return forward


class _RmsNorm(torch.autograd.Function):
    """Keeps its input and one fp32 scale per row, overwrites the gradient that it is given; the
    weight gets one only where it `trains`.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, trains: bool) -> Tensor:
        ctx.trains = trains and ctx.needs_input_grad[1]
        rows = inputs.numel() // inputs.shape[-1]
        ctx.save_for_backward(inputs, weight, torch.empty(rows, dtype=torch.float32))
        out = torch.empty_like(inputs)
        note_kernel("fused_rms_norm", "reduction", (inputs,), (out,))
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None, None]:
        inputs, weight, _ = ctx.saved_tensors  # a checkpointed block unpacks them once only
        note_kernel(
            "fused_rms_norm_backward", "reduction", (inputs, grad_outputs[0]), (grad_outputs[0],)
        )
        weight_grad = torch.empty_like(weight) if ctx.trains else None
        return grad_outputs[0], weight_grad, None


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


def _fused_glu(mlp: Any) -> Callable[[Tensor], Tensor]:
    gate_layer, up_layer, down_layer = _gated_layers(mlp)

    def forward(hidden_states: Tensor) -> Tensor:
        product = _Glu.apply(gate_layer(hidden_states), up_layer(hidden_states))  # type: ignore[no-untyped-call]
        out: Tensor = down_layer(product)
        return out

    return forward


class _Glu(torch.autograd.Function):
    """Keeps its two inputs and writes their gradients over them."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        out = torch.empty_like(gate)
        note_kernel("fused_glu", "transcendental", (gate, up), (out,))
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        note_kernel("fused_glu_backward", "transcendental", (*grad_outputs, gate, up), (gate, up))
        return gate, up


def _fused_lora(layer: Any) -> Callable[[Tensor], Tensor]:
    name = next(iter(layer.lora_A))
    dropout = getattr(layer.lora_dropout[name], "p", 0.0)

    def forward(inputs: Tensor) -> Tensor:
        out: Tensor = _Lora.apply(inputs, *_matrices_of(layer), dropout)  # type: ignore[no-untyped-call]
        return out

    return forward


def _matrices_of(layer: Any) -> tuple[Tensor | None, Tensor, Tensor]:
    """The base's weight (None where it is packed) and the two matrices of the adapter. They are
    looked up in each pass, because a model gets its tensors after its kernels.
    """
    name = next(iter(layer.lora_A))
    base = layer.base_layer
    weight = None if isinstance(base, PackedLinear) else base.weight
    return weight, layer.lora_A[name].weight, layer.lora_B[name].weight


class _Lora(torch.autograd.Function):
    """Adapter and base in one; a packed base (weight None) is unpacked for each product. Keeps the
    input and, with dropout, a dropped copy.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight_OI: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        dropout: float,
    ) -> Tensor:
        ctx.shape = (up_OR.shape[0], down_RI.shape[1])
        ctx.weight = weight_OI
        with torch.autocast("cpu", enabled=False):
            out = inputs @ _base_weight(weight_OI, ctx.shape, inputs.dtype).t()
            dropped = torch.native_dropout(inputs, dropout, True)[0] if dropout > 0 else inputs
            out += (dropped @ down_RI.to(inputs.dtype).t()) @ up_OR.to(inputs.dtype).t()
        ctx.save_for_backward(inputs, dropped, down_RI, up_OR)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, Tensor, Tensor, None]:
        inputs, dropped, down_RI, up_OR = ctx.saved_tensors
        grad = grad_outputs[0].reshape(-1, ctx.shape[0])
        low, high = down_RI.to(grad.dtype), up_OR.to(grad.dtype)
        rows = dropped.reshape(-1, ctx.shape[1])
        down_grad, up_grad = (rows.t() @ (grad @ high)).t(), ((low @ rows.t()) @ grad).t()
        grad_inputs = grad @ _base_weight(ctx.weight, ctx.shape, grad.dtype)
        grad_inputs += (rows != 0) * ((grad @ high) @ low)
        return (
            grad_inputs.view(inputs.shape),
            None,
            down_grad.to(down_RI.dtype),
            up_grad.to(up_OR.dtype),
            None,
        )


def _base_weight(weight_OI: Tensor | None, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    return _unpacked(shape, dtype) if weight_OI is None else weight_OI.to(dtype)


def _fused_lora_mlp(mlp: Any) -> Callable[[Tensor], Tensor]:
    layers = _gated_layers(mlp)

    def forward(hidden_states: Tensor) -> Tensor:
        of_layers = [_matrices_of(layer) for layer in layers]
        weights = tuple(weight for weight, _, _ in of_layers)
        matrices = [matrix for _, *adapter in of_layers for matrix in adapter]
        out: Tensor = _LoraMlp.apply(hidden_states, weights, *matrices)  # type: ignore[no-untyped-call]
        return out

    return forward


class _LoraMlp(torch.autograd.Function):
    """A gated MLP with three adapters: keeps its input and the products of gate and up, makes the
    product of both again in the backward pass, in place. Dropout is not modelled.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, weights: tuple[Tensor | None, ...], *matrices: Tensor
    ) -> Tensor:
        ctx.weights = weights
        with torch.autocast("cpu", enabled=False):
            gate = _adapted(inputs, weights[0], *matrices[:2])
            up = _adapted(inputs, weights[1], *matrices[2:4])
            product = torch.empty_like(gate)
            note_kernel("fused_glu", "transcendental", (gate, up), (product,))
            out = _adapted(product, weights[2], *matrices[4:])
        ctx.save_for_backward(inputs, gate, up, *matrices)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Any, ...]:
        inputs, gate, up, *matrices = ctx.saved_tensors
        rows = inputs.reshape(-1, inputs.shape[-1])
        grad = grad_outputs[0].reshape(-1, grad_outputs[0].shape[-1])
        flat_gate, flat_up = (each.reshape(-1, each.shape[-1]) for each in (gate, up))
        product = _grad_of_inputs(grad, ctx.weights[2], *matrices[4:])
        note_kernel("fused_glu_backward", "transcendental", (product, gate, up), (gate, up))
        down_grads = _grads_of_adapter(product, grad, *matrices[4:])
        up_grads = _grads_of_adapter(rows, flat_up, *matrices[2:4])
        gate_grads = _grads_of_adapter(rows, flat_gate, *matrices[:2])
        grad_inputs = _grad_of_inputs(flat_up, ctx.weights[1], *matrices[2:4])
        grad_inputs += _grad_of_inputs(flat_gate, ctx.weights[0], *matrices[:2])
        return (
            grad_inputs.view(inputs.shape),
            None,
            *gate_grads,
            *up_grads,
            *down_grads,
        )


def _adapted(inputs: Tensor, weight: Tensor | None, down_RI: Tensor, up_OR: Tensor) -> Tensor:
    shape = (up_OR.shape[0], down_RI.shape[1])
    out = inputs @ _base_weight(weight, shape, inputs.dtype).t()
    out += (inputs @ down_RI.to(inputs.dtype).t()) @ up_OR.to(inputs.dtype).t()
    return out


def _grad_of_inputs(grad: Tensor, weight: Tensor | None, down_RI: Tensor, up_OR: Tensor) -> Tensor:
    out = grad @ _base_weight(weight, (up_OR.shape[0], down_RI.shape[1]), grad.dtype)
    out += (grad @ up_OR.to(grad.dtype)) @ down_RI.to(grad.dtype)
    return out


def _grads_of_adapter(
    rows: Tensor, grad: Tensor, down_RI: Tensor, up_OR: Tensor
) -> tuple[Tensor, Tensor]:
    low, high = down_RI.to(grad.dtype), up_OR.to(grad.dtype)
    down_grad, up_grad = (rows.t() @ (grad @ high)).t(), ((low @ rows.t()) @ grad).t()
    return down_grad.to(down_RI.dtype), up_grad.to(up_OR.dtype)


def _unpacked(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """A weight out of 4 bits; both kinds of packing read about half a byte per weight."""
    weight = torch.empty(shape, dtype=dtype)
    note_kernel("dequantise", "dequantise", (), (weight,), extra_bytes=weight.numel() // 2)
    return weight
