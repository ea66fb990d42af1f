"""How other trainers turn hidden states into a loss.

Shapes: B sequences, T positions, D hidden size, V vocabulary, N tokens of all sequences.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.data.batches import MicroBatch
from brimful.rehearsal.losses import mask_arguments
from brimful.rehearsal.recorder import note_kernel
from brimful.training.method import LossSum, Network
from stand_ins.step import ForeignStep, LossChain


def chained_loss(spec: ForeignStep, chain: LossChain) -> LossSum:
    """Lifetimes are those of local variables in a transformers model's forward and its loss
    function: they end when it returns.
    """
    held: list[Any] = []  # the outputs, in loops that keep them

    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        with _kept_outputs(network, "c_attn" if spec.quirks.keeps_fused_qkv else None) as kept:
            outputs = network.model.base_model(
                input_ids=micro.inputs_BT,
                use_cache=spec.quirks.use_cache,
                **mask_arguments(spec, micro.inputs_BT),
            )
        hidden_BTD = outputs[0]
        if chain.cross_entropy == "fused_linear":
            return _fused_linear(hidden_BTD, network, chain)
        logits_BTV = _logits(network, hidden_BTD)
        if chain.upcast == "instead":
            logits_BTV = logits_BTV.float()
        loss = _cross_entropy(logits_BTV, chain)
        del hidden_BTD
        if spec.quirks.fp32_outputs:
            logits_BTV = logits_BTV.float()
        kept.clear()
        if spec.quirks.keeps_outputs:
            held[:] = [logits_BTV, outputs.past_key_values if spec.quirks.use_cache else None]
        return loss

    return loss_sum


def plain_cross_entropy(logits: Tensor, labels: Tensor, vocab_size: int, **_: Any) -> Tensor:
    """The loss of logits as they are, in place of the loss function of a transformers model."""
    return F.cross_entropy(logits.view(-1, vocab_size), labels.view(-1))


def compiled_loss(spec: ForeignStep) -> LossSum:
    """The loss inside a transformers model that is compiled with it. What its chain of casts and
    copies makes eagerly is for the compiler to decide.
    """
    held: list[Any] = []

    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        outputs = network.model(
            input_ids=micro.inputs_BT, labels=micro.targets_BT, use_cache=spec.quirks.use_cache
        )
        if spec.quirks.keeps_outputs:
            held[:] = [outputs.logits]
        loss: Tensor = outputs.loss
        return loss

    return loss_sum


@contextmanager
def _kept_outputs(network: Network, suffix: str | None) -> Iterator[list[Tensor]]:
    """Outputs of the modules of this name, for as long as the list lives."""
    kept: list[Tensor] = []
    modules = [
        module
        for name, module in network.model.named_modules()
        if suffix is not None and name.endswith(suffix)
    ]
    handles = [
        module.register_forward_hook(lambda _, __, output: kept.append(output))
        for module in modules
    ]
    yield kept
    for handle in handles:
        handle.remove()


def _logits(network: Network, hidden_BTD: Tensor) -> Tensor:
    logits_BTV: Tensor = network.model.get_output_embeddings()(hidden_BTD)
    scaling = getattr(network.model.config, "logits_scaling", None)
    if scaling is not None:
        logits_BTV = logits_BTV / scaling
    cap = network.logit_softcap
    return logits_BTV if cap is None else torch.tanh(logits_BTV / cap) * cap


def _cross_entropy(logits_BTV: Tensor, chain: LossChain) -> Tensor:
    if chain.upcast == "beside":
        logits_BTV = logits_BTV.float()
    labels = torch.zeros(logits_BTV.shape[:-1], dtype=torch.int64)
    if chain.shifted_copy:
        shifted, labels = logits_BTV[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
    else:
        shifted, labels = logits_BTV, F.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()
    logits_NV = shifted.view(-1, shifted.shape[-1])
    if chain.cross_entropy == "in_place":
        loss: Tensor = _InPlaceCrossEntropy.apply(logits_NV)  # type: ignore[no-untyped-call]
        return loss
    return F.cross_entropy(logits_NV, labels.view(-1))


class _InPlaceCrossEntropy(torch.autograd.Function):
    """Keeps the logits and writes their gradient over them."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor) -> Tensor:
        losses = torch.empty(logits_NV.shape[0], dtype=torch.float32)
        lse = torch.empty(logits_NV.shape[0], dtype=torch.float32)
        ctx.save_for_backward(logits_NV, lse)
        note_kernel("in_place_cross_entropy", "reduction", (logits_NV,), (losses, lse))
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        logits_NV: Tensor = ctx.saved_tensors[0]
        note_kernel("in_place_cross_entropy_backward", "reduction", (logits_NV,), (logits_NV,))
        return logits_NV


def _fused_linear(hidden_BTD: Tensor, network: Network, chain: LossChain) -> Tensor:
    if chain.shifted_copy:
        hidden_BTD = hidden_BTD[..., :-1, :].contiguous()
    loss: Tensor = _FusedLinearCrossEntropy.apply(hidden_BTD.flatten(0, 1), network.head_weight_VD)  # type: ignore[no-untyped-call]
    return loss


class _FusedLinearCrossEntropy(torch.autograd.Function):
    """Liger's (ops/fused_linear_cross_entropy.py, 0.3): chunks of logits in fp32, both gradients
    made in the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor) -> Tensor:
        dtype = (
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else hidden_ND.dtype
        )
        tokens, width = hidden_ND.shape
        chunks = -(-weight_VD.shape[0] // width)
        chunk_tokens = 1 << (-(-tokens // chunks) - 1).bit_length()
        grad_hidden_ND = torch.zeros_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        losses = torch.zeros(tokens, dtype=torch.float32)
        for start in range(0, tokens, chunk_tokens):
            chunk_ND = hidden_ND[start : start + chunk_tokens]
            logits = chunk_ND @ weight_VD.t()
            logits = logits.float()
            logits = logits.to(dtype)
            scaled = logits * 1.0
            grad_hidden_ND[start : start + chunk_tokens] = scaled @ weight_VD
            if grad_weight_VD is not None:
                torch.addmm(grad_weight_VD, logits.t(), chunk_ND, out=grad_weight_VD)
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        grad_hidden_ND, grad_weight_VD = ctx.saved_tensors
        return grad_hidden_ND, grad_weight_VD
