"""How a declared step turns hidden states into a loss: brimful's own way and those of other trainers.

Shapes: B sequences, T positions, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from brimful.planning.step import StepSpec
from brimful.training.losses import linear_cross_entropy
from brimful.training.method import Network

LossSum = Callable[[Network, Tensor, Tensor], Tensor]


def loss_of(spec: StepSpec) -> LossSum:
    """(network, inputs_BT, targets_BT) -> summed loss, fp32 scalar, allocating what the declared loss allocates."""
    if spec.task != "causal_lm":
        return _model_loss(spec)
    return {"chunked": lambda _: _chunked, "model": _model_loss, "shifted_copy": _shifted_copy, "in_place": _in_place, "fused_linear": _fused_linear}[
        spec.loss
    ](spec)


def _chunked(network: Network, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
    hidden_BTD = network.hidden_states(inputs_BT)
    return linear_cross_entropy(hidden_BTD, network.head_weight_VD, targets_BT, chunk_tokens=network.loss_chunk, softcap=network.logit_softcap)


def _extra(spec: StepSpec, inputs_BT: Tensor) -> dict[str, Any]:
    if not spec.padded:
        return {}
    mask_BT = torch.ones_like(inputs_BT)
    mask_BT[:, -1] = 0  # transformers drops a mask that hides nothing
    return {"attention_mask": mask_BT}


def _model_loss(spec: StepSpec) -> LossSum:
    def loss_sum(network: Network, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        kwargs = _extra(spec, inputs_BT) | ({"use_cache": False} if spec.task == "causal_lm" else {})
        loss: Tensor = network.model(input_ids=inputs_BT, labels=targets_BT, **kwargs).loss
        return loss

    return loss_sum


def _shifted_copy(spec: StepSpec) -> LossSum:
    def loss_sum(network: Network, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        kept = network.model(input_ids=inputs_BT, use_cache=False, **_extra(spec, inputs_BT)).logits
        logits_BTV = kept.float()
        shifted = logits_BTV[..., :-1, :].contiguous()
        labels = targets_BT[..., 1:].contiguous()
        return F.cross_entropy(shifted.view(-1, shifted.shape[-1]), labels.view(-1))

    return loss_sum


def _in_place(spec: StepSpec) -> LossSum:
    def loss_sum(network: Network, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        kept = network.model(input_ids=inputs_BT, use_cache=False, **_extra(spec, inputs_BT)).logits
        shifted = kept.float()[..., :-1, :].contiguous()
        loss: Tensor = _InPlaceCrossEntropy.apply(shifted.view(-1, shifted.shape[-1]))  # type: ignore[no-untyped-call]
        return loss

    return loss_sum


class _InPlaceCrossEntropy(torch.autograd.Function):
    """Keeps the logits and writes their gradient over them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        lse = torch.empty(logits.shape[0], dtype=torch.float32)
        ctx.save_for_backward(logits, lse)
        return lse.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        logits: Tensor = ctx.saved_tensors[0]
        return logits


def _fused_linear(spec: StepSpec) -> LossSum:
    def loss_sum(network: Network, inputs_BT: Tensor, targets_BT: Tensor) -> Tensor:
        hidden_BTD = network.hidden_states(inputs_BT)
        rows, width = hidden_BTD.shape[0] * hidden_BTD.shape[1], hidden_BTD.shape[2]
        chunks = -(-network.head_weight_VD.shape[0] // width)
        chunk = 1 << (-(-rows // chunks) - 1).bit_length()
        return linear_cross_entropy(hidden_BTD, network.head_weight_VD, targets_BT, chunk_tokens=chunk, softcap=network.logit_softcap)

    return loss_sum
