"""Cross-entropy of a linear head that never holds all logits.

Shapes: B sequences, T tokens, N = B*T positions, C positions of one chunk, D hidden size, V
vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from brimful.data.batches import IGNORED


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that losses are computed in: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def piece_losses(
    hidden_CD: Tensor,
    head_VD: Tensor,
    targets_C: Tensor,
    softcap: float | None,
    *,
    wants_grad: bool,
    converting: bool | None = None,
) -> tuple[Tensor, Any]:
    """Compute one chunk of a linear cross-entropy.

    Args:
        hidden_CD: Hidden states.
        head_VD: Head weights of the same dtype.
        targets_C: Token ids, or `IGNORED`.
        softcap: As in `linear_cross_entropy`.
        wants_grad: Whether the gradient is wanted. The same losses come out with and without it.
        converting: Whether element-wise kernels convert what they write, as CUDA's do; None: as on
            the device of the tensors. In bf16 20 bytes a logit are moved outside the product, 28
            where conversion is a pass of its own.

    Returns:
        losses_C in nats, 0 where ignored, and the gradient of the logits (C, V) in the dtype of the
        product, whose rows of ignored positions have no meaning; None where it is not wanted.
    """
    logits_CV, capped_CV = (hidden_CD @ head_VD.T).to(_wide(hidden_CD.dtype)), None
    if softcap is not None:
        capped_CV = logits_CV.div_(softcap).tanh_()
        logits_CV = capped_CV * softcap
    logs_CV = torch.log_softmax(logits_CV, dim=-1)
    del logits_CV
    chosen_C1 = targets_C.clamp(min=0)[:, None]
    chosen_logs_C1 = logs_CV.gather(1, chosen_C1)
    losses_C = (-chosen_logs_C1[:, 0]).masked_fill_(targets_C == IGNORED, 0.0)
    if not wants_grad:
        return losses_C, None
    if converting is None:
        converting = hidden_CD.is_cuda
    if converting and capped_CV is None:
        grad_CV = torch.exp(logs_CV, out=torch.empty_like(logs_CV, dtype=hidden_CD.dtype))
    else:
        grad_CV = logs_CV.exp_()
    grad_CV.scatter_(1, chosen_C1, chosen_logs_C1.expm1_().to(grad_CV.dtype))
    if capped_CV is not None:
        grad_CV.addcmul_(grad_CV, capped_CV.square_(), value=-1)
    return losses_C, grad_CV.to(hidden_CD.dtype)


PieceLosses = Callable[..., tuple[Tensor, Any]]
"""`piece_losses`, or what does the same."""


def piece_losses_to_compile(
    hidden_CD: Tensor,
    head_VD: Tensor,
    targets_C: Tensor,
    softcap: float | None,
    *,
    wants_grad: bool,
) -> tuple[Tensor, Any]:
    """Compute what `piece_losses` does without indexing, so that a compiler makes two kernels of it
    that move 6 bytes a logit in bf16.
    """
    logits_CV, slope_CV = (hidden_CD @ head_VD.T).to(_wide(hidden_CD.dtype)), None
    if softcap is not None:
        capped_CV = torch.tanh(logits_CV / softcap)
        logits_CV, slope_CV = capped_CV * softcap, 1 - capped_CV.square()
    logs_CV = torch.log_softmax(logits_CV, dim=-1)
    ids_V = torch.arange(logits_CV.shape[1], device=logits_CV.device)
    is_target_CV = (ids_V == targets_C[:, None]).to(logs_CV.dtype)
    losses_C = -(logs_CV * is_target_CV).sum(-1)
    if not wants_grad:
        return losses_C, None
    grad_CV = logs_CV.exp() - is_target_CV
    return losses_C, (grad_CV if slope_CV is None else grad_CV * slope_CV).to(hidden_CD.dtype)


def linear_cross_entropy(
    hidden_BTD: Tensor,
    weight_VD: Tensor,
    targets_BT: Tensor,
    *,
    chunk_tokens: int,
    softcap: float | None = None,
    piece: PieceLosses = piece_losses,
) -> Tensor:
    """Return the summed cross-entropy of `softmax(hidden @ weight.T)` against `targets`, in nats.

    Works chunk by chunk and forms the gradients of both inputs in the forward pass, so at most
    `chunk_tokens` x V logits exist at any time and nothing is recomputed (the idea of Liger
    Kernel's fused linear cross-entropy, Hsu et al. 2024, in plain torch; deviation: sums, never
    means, so that the caller divides by the optimizer step's target tokens).

    Args:
        hidden_BTD: Hidden states. Products run in this dtype, or in autocast's if that is on;
            softmax runs in fp32.
        weight_VD: Head weights, any float dtype. Their gradient has this dtype; it is summed in
            fp32.
        targets_BT: int64 token ids; `IGNORED` positions add nothing.
        chunk_tokens: Positions per chunk.
        softcap: Logits become `softcap * tanh(logits / softcap)` first (Gemma 2), None for none.
        piece: Computes one chunk.

    Returns:
        fp32 scalar.
    """
    if torch.is_autocast_enabled(hidden_BTD.device.type):
        hidden_BTD = hidden_BTD.to(torch.get_autocast_dtype(hidden_BTD.device.type))
    loss: Tensor = _LinearCrossEntropy.apply(  # type: ignore[no-untyped-call]
        hidden_BTD.flatten(0, -2),
        weight_VD,
        targets_BT.flatten(),
        chunk_tokens,
        softcap,
        piece,
    )
    return loss


def linear_token_losses(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    chunk_tokens: int,
    softcap: float | None = None,
    piece: PieceLosses = piece_losses,
) -> Tensor:
    """Return the cross-entropy of each position, for losses that weigh positions by what comes out:
    losses_N in nats, 0 where ignored: fp32, or doubles where the hidden states are.

    As `linear_cross_entropy`, but for one thing: a head that is trained has its logits computed
    again in the backward pass, because only then it is known how much each position counts.
    """
    if torch.is_autocast_enabled(hidden_ND.device.type):
        hidden_ND = hidden_ND.to(torch.get_autocast_dtype(hidden_ND.device.type))
    losses_N: Tensor = _LinearTokenLosses.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, targets_N, chunk_tokens, softcap, piece
    )
    return losses_N


def token_losses(
    hidden_BTD: Tensor,
    weight_VD: Tensor,
    targets_BT: Tensor,
    *,
    chunk_tokens: int,
    softcap: float | None = None,
) -> Tensor:
    """Return the cross-entropy of each position, without gradients: losses_BT in fp32 nats, 0 where
    ignored.
    """
    with torch.no_grad(), torch.autocast(hidden_BTD.device.type, enabled=False):
        weight_VD = weight_VD.to(hidden_BTD.dtype)
        chunks = zip(
            hidden_BTD.flatten(0, -2).split(chunk_tokens),
            targets_BT.flatten().split(chunk_tokens),
            strict=True,
        )
        losses = [
            piece_losses(hidden_CD, weight_VD, targets_C, softcap, wants_grad=False)[0]
            for hidden_CD, targets_C in chunks
        ]
        return torch.cat(losses).view(targets_BT.shape)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        chunk_tokens: int,
        softcap: float | None,
        piece: PieceLosses,
    ) -> Tensor:
        wants_grad, wants_weight_grad = any(ctx.needs_input_grad[:2]), ctx.needs_input_grad[1]
        loss = torch.zeros((), dtype=torch.float32, device=hidden_ND.device)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            head_VD = weight_VD.to(hidden_ND.dtype)
            grad_hidden_ND = torch.empty_like(hidden_ND) if wants_grad else None
            grad_weight_VD = (
                torch.zeros_like(weight_VD, dtype=torch.float32) if wants_weight_grad else None
            )
            for start in range(0, len(hidden_ND), chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                targets_C, hidden_CD = targets_N[chunk], hidden_ND[chunk]
                losses_C, grad_CV = piece(
                    hidden_CD, head_VD, targets_C, softcap, wants_grad=wants_grad
                )
                loss += losses_C.sum()
                if grad_hidden_ND is not None:
                    torch.mm(grad_CV, head_VD, out=grad_hidden_ND[chunk])
                if grad_weight_VD is not None:
                    grad_weight_VD += grad_CV.T @ _without_ignored(hidden_CD, targets_C)
                del grad_CV
            if grad_hidden_ND is not None:
                grad_hidden_ND = _without_ignored(grad_hidden_ND, targets_N)
            if grad_weight_VD is not None:
                grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD)
        return loss

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        """Scale the gradients in place, so that a second backward pass is an error."""
        of_hidden, of_weight = (
            None if each is None else each.mul_(grad_outputs[0].to(each.dtype))
            for each in ctx.saved_tensors
        )
        return of_hidden, of_weight, None, None, None, None


class _LinearTokenLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        chunk_tokens: int,
        softcap: float | None,
        piece: PieceLosses,
    ) -> Tensor:
        wants_grad, trains_head = ctx.needs_input_grad[:2]
        ctx.settings, ctx.trains_head = (chunk_tokens, softcap, piece), trains_head
        forms_grad = wants_grad and not trains_head
        grad_ND = torch.empty_like(hidden_ND) if forms_grad else None
        losses_N = torch.empty(
            len(hidden_ND), dtype=_wide(hidden_ND.dtype), device=hidden_ND.device
        )
        with torch.autocast(hidden_ND.device.type, enabled=False):
            head_VD = weight_VD.to(hidden_ND.dtype)
            for start in range(0, len(hidden_ND), chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                losses_N[chunk], grad_CV = piece(
                    hidden_ND[chunk], head_VD, targets_N[chunk], softcap, wants_grad=forms_grad
                )
                if grad_ND is not None:
                    torch.mm(grad_CV, head_VD, out=grad_ND[chunk])
                del grad_CV
        ctx.save_for_backward(*((hidden_ND, weight_VD, targets_N) if trains_head else (grad_ND,)))
        return losses_N

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None, None, None]:
        factors_N1 = grad_outputs[0][:, None]
        if not ctx.trains_head:
            (grad_ND,) = ctx.saved_tensors
            return grad_ND.mul_(factors_N1), None, None, None, None, None
        hidden_ND, weight_VD, targets_N = ctx.saved_tensors
        chunk_tokens, softcap, piece = ctx.settings
        grad_ND = torch.empty_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=_wide(weight_VD.dtype))
        with torch.autocast(hidden_ND.device.type, enabled=False):
            head_VD = weight_VD.to(hidden_ND.dtype)
            for start in range(0, len(hidden_ND), chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                hidden_CD = hidden_ND[chunk]
                _, grad_CV = piece(hidden_CD, head_VD, targets_N[chunk], softcap, wants_grad=True)
                grad_CV.mul_(factors_N1[chunk])
                torch.mm(grad_CV, head_VD, out=grad_ND[chunk])
                grad_weight_VD += grad_CV.T @ hidden_CD
                del grad_CV
        return grad_ND, grad_weight_VD.to(weight_VD.dtype), None, None, None, None


def _without_ignored(rows_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Return rows with zeros where the target is ignored."""
    return rows_ND.masked_fill((targets_N == IGNORED)[:, None], 0.0)
