"""Experts quantised to 4 bits. transformers 5 stores the experts of a block as 3-D tensors, not as
linear layers, and leaves them in 16 bits when it loads a model in 4 bits. Here they are packed as
bitsandbytes packs linear layers (NF4 with double quantisation, Dettmers et al. 2023, section 3).

A weight is dequantised for its matrix product, and again for the gradient of that product. Neither
result is kept.

Suffixes: T tokens, K experts of a token, S pairs of a token and one of its experts, sorted by
expert, E experts, D and F widths.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from brimful.model.quiet import quiet_bitsandbytes

NAME = "brimful_packed"
"""transformers' name of this way to compute experts."""
GROUPED_CAPABILITY = (8, 0)
"""Lowest CUDA compute capability of torch's grouped products."""

Unpack = Callable[[nn.Module, str], Tensor]
"""Gives a weight of a layer of experts, by its name, as it was before it was packed."""


def expert_layers(model: nn.Module) -> Iterator[tuple[Any, str]]:
    """Yield each layer of experts that may have another implementation (transformers'
    `use_experts_implementation`) with the name of each of its weights (3-D: experts first).
    """
    for module in model.modules():
        for name in _weights_of(module):
            yield module, name


def _weights_of(module: nn.Module) -> tuple[str, ...]:
    if not (hasattr(module, "has_gate") and hasattr(module, "is_transposed")):
        return ()
    return ("gate_up_proj" if module.has_gate else "up_proj", "down_proj")


def compute_packed(model: PreTrainedModel, unpack: Unpack) -> None:
    """Let a model, whose experts are packed, compute with them."""
    ALL_EXPERTS_FUNCTIONS.register(NAME, _experts)
    for layer, _ in expert_layers(model):
        layer.unpack = unpack
        layer.config._experts_implementation = NAME


@contextmanager
def packed_when_loaded(*, packs: bool = True, in_mxfp4: bool = False) -> Iterator[None]:
    """Let transformers pack experts, too, where it loads a model in 4 bits: each tensor when it is
    read, so that one at a time lies on the device as it was.

    Args:
        packs: False leaves them as they are.
        in_mxfp4: Their files hold them in MXFP4 (gpt-oss), and are unpacked first.
    """
    with quiet_bitsandbytes():
        from transformers.core_model_loading import WeightConverter  # noqa: PLC0415
        from transformers.integrations.bitsandbytes import (  # noqa: PLC0415 - takes a second
            Bnb4bitQuantize,
        )
        from transformers.integrations.mxfp4 import Mxfp4Dequantize  # noqa: PLC0415
        from transformers.quantizers import auto, quantizer_bnb_4bit  # noqa: PLC0415
        from transformers.quantizers.quantizers_utils import get_module_from_name  # noqa: PLC0415

    class Pack(Bnb4bitQuantize):  # type: ignore[misc] # transformers' base has no types
        def convert(self, input_dict: dict[str, Any], **about: Any) -> dict[str, Any]:
            made: dict[str, Any] = {}
            for path, values in input_dict.items():
                module, name = get_module_from_name(about["model"], path)
                if name in _weights_of(module):
                    made[path] = pack(values[0] if isinstance(values, list) else values)
                else:
                    made |= super().convert({path: values}, **about)
            return made

    class Quantizer(quantizer_bnb_4bit.Bnb4BitHfQuantizer):  # type: ignore[misc]
        def param_needs_quantization(self, model: nn.Module, param_name: str, **about: Any) -> bool:
            module, name = get_module_from_name(model, param_name)
            is_linear = super().param_needs_quantization(model, param_name, **about)
            return bool(is_linear) or (packs and name in _weights_of(module))

        def get_weight_conversions(self) -> list[WeightConverter]:
            found: list[WeightConverter] = super().get_weight_conversions()
            for name in ("gate_up_proj", "down_proj") if in_mxfp4 else ():
                parts = [f"{name}_blocks", f"{name}_scales"]
                found.append(WeightConverter(parts, name, [Mxfp4Dequantize(self)]))
            return found

        def get_quantize_ops(self) -> Pack:
            return Pack(self)

    with mock.patch.dict(auto.AUTO_QUANTIZER_MAPPING, {"bitsandbytes_4bit": Quantizer}):
        yield


def pack(weight: Tensor) -> nn.Parameter:
    """Return a weight in NF4, on its device."""
    with quiet_bitsandbytes():
        from bitsandbytes.nn import Params4bit  # noqa: PLC0415 - only where it is used

    packed: nn.Parameter = Params4bit(weight.contiguous(), requires_grad=False, quant_type="nf4")
    return packed.to(weight.device)  # type: ignore[return-value] # it packs when it is moved


def unpack(layer: nn.Module, name: str) -> Tensor:
    """Return the weight that `pack` packed; an `Unpack`."""
    from bitsandbytes.functional import dequantize_4bit  # noqa: PLC0415 - only where it is used

    packed: Any = getattr(layer, name)
    unpacked: Tensor = dequantize_4bit(packed.data, packed.quant_state)
    return unpacked


def _experts(layer: Any, hidden_TD: Tensor, chosen_TK: Tensor, shares_TK: Tensor) -> Tensor:
    """Return the weighted sum of a token's experts, for each token: an experts implementation as
    transformers defines it (integrations/moe.py, 5.23).
    """
    experts_S, order_S = chosen_TK.reshape(-1).sort()
    ends_E = torch.searchsorted(
        experts_S, torch.arange(layer.num_experts, device=experts_S.device), right=True
    ).int()
    first, last = _weights_of(layer)
    rows_SD = hidden_TD[order_S // chosen_TK.shape[-1]]
    inner_SF = _product(layer, first, rows_SD, experts_S, ends_E)
    inner_SF = layer._apply_gate(inner_SF) if layer.has_gate else layer.act_fn(inner_SF)
    rows_SD = _product(layer, last, inner_SF, experts_S, ends_E)
    if layer.has_post_expert_norm:
        rows_SD = layer.post_expert_norm(rows_SD)
    rows_SD = rows_SD * shares_TK.reshape(-1)[order_S].unsqueeze(-1)
    back_S = torch.empty_like(order_S)
    back_S[order_S] = torch.arange(len(order_S), device=order_S.device)
    summed_TD: Tensor = rows_SD[back_S].view(*chosen_TK.shape, -1).sum(1)
    return summed_TD.to(hidden_TD.dtype)


def _product(layer: Any, name: str, rows_SD: Tensor, experts_S: Tensor, ends_E: Tensor) -> Tensor:
    out_SF: Tensor = _GroupedProduct.apply(rows_SD, ends_E, layer, name)  # type: ignore[no-untyped-call]
    if layer.has_bias:
        out_SF = out_SF + getattr(layer, f"{name}_bias")[experts_S]
    return out_SF


class _GroupedProduct(torch.autograd.Function):
    """The product of each row with its expert's matrix."""

    @staticmethod
    def forward(ctx: Any, rows_SD: Tensor, ends_E: Tensor, layer: Any, name: str) -> Tensor:
        ctx.layer, ctx.name, ctx.dtype = layer, name, rows_SD.dtype
        ctx.save_for_backward(ends_E)
        weight_EDF = _unpacked(layer, name)
        return grouped(rows_SD.to(weight_EDF.dtype), weight_EDF, ends_E)

    @staticmethod
    def backward(ctx: Any, *grads_SF: Tensor) -> tuple[Tensor, None, None, None]:
        (ends_E,) = ctx.saved_tensors
        weight_EFD = _unpacked(ctx.layer, ctx.name).transpose(-2, -1)
        return grouped(grads_SF[0], weight_EFD, ends_E).to(ctx.dtype), None, None, None


def _unpacked(layer: Any, name: str) -> Tensor:
    weight: Tensor = layer.unpack(layer, name)
    return weight if layer.is_transposed else weight.transpose(-2, -1)


def grouped(rows_SD: Tensor, weight_EDF: Tensor, ends_E: Tensor) -> Tensor:
    """Multiply rows with the matrix of their group, which ends before row `ends_E`.

    Returns:
        S x F
    """
    if has_grouped_products(rows_SD.device, rows_SD.dtype):
        return torch.nn.functional.grouped_mm(rows_SD, weight_EDF, offs=ends_E)
    out_SF = rows_SD.new_empty(len(rows_SD), weight_EDF.shape[-1])
    start = 0
    for end, weight_DF in zip(ends_E.tolist(), weight_EDF, strict=True):
        torch.mm(rows_SD[start:end], weight_DF, out=out_SF[start:end])
        start = end
    return out_SF


def has_grouped_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether torch multiplies groups of rows in one call there."""
    if device.type != "cuda":
        return True
    capable = torch.cuda.get_device_capability(device) >= GROUPED_CAPABILITY
    return capable and dtype == torch.bfloat16
