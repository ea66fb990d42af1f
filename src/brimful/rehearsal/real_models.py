"""The model of a declared step with values: real tensors on the CPU, small random weights."""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from brimful.model.packed_experts import compute_packed, expert_layers, pack, unpack
from brimful.model.quiet import quiet_bitsandbytes
from brimful.planning.step import StepSpec
from brimful.rehearsal.models import (
    DTYPES,
    meta_model,
    replace_linear_layers,
    upcast,
    with_adapters,
)
from brimful.rehearsal.training import materialised

DRAWN = 1 << 16
"""Random numbers that are drawn; larger weights repeat them, which takes a tenth of the time."""


def real_model(spec: StepSpec, config: PretrainedConfig) -> nn.Module:
    """Return the model that `meta_model` describes, with small weights and zero buffers, so that a
    step stays finite.

    4-bit layers are bitsandbytes' own, adapters peft's own for them.
    """
    model = materialised(
        meta_model(replace(spec, quantize="none", adapter=None, upcast=False), config)
    )
    _set_values(model)
    if spec.quantize == "nf4":
        _quantise(model, spec)
    if spec.adapter is not None:
        model = with_adapters(model, spec.adapter, spec)
        _set_values(model)
    if spec.upcast:
        upcast(model)
    return model


def _set_values(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.empty(DRAWN).normal_(0.0, 0.02, generator=generator)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                _fill(parameter, drawn)
        for buffer in model.buffers():
            buffer.zero_()


def _fill(parameter: Tensor, drawn: Tensor) -> None:
    flat, full = parameter.view(-1), parameter.numel() // DRAWN * DRAWN
    flat[:full].view(-1, DRAWN).copy_(drawn.expand(full // DRAWN, DRAWN))
    flat[full:].copy_(drawn[: len(flat) - full])


def _quantise(model: nn.Module, spec: StepSpec) -> None:
    with quiet_bitsandbytes():
        from bitsandbytes.nn import Linear4bit, Params4bit  # noqa: PLC0415 - only where it is used

    def packed(plain: nn.Linear) -> nn.Module:
        with torch.device("meta"):
            layer = Linear4bit(
                plain.in_features,
                plain.out_features,
                plain.bias is not None,
                DTYPES[spec.products],
                quant_type="nf4",
            )
        layer.weight = Params4bit(
            plain.weight.data, requires_grad=False, quant_type="nf4", module=layer
        )
        layer.bias = plain.bias
        on_cpu: nn.Module = layer.to("cpu")
        return on_cpu

    replace_linear_layers(model, packed)
    if spec.packs_experts:
        for experts, weight in expert_layers(model):
            setattr(experts, weight, pack(getattr(experts, weight).data))
        compute_packed(cast(PreTrainedModel, model), unpack)
    model.is_loaded_in_4bit = True  # type: ignore[assignment]
