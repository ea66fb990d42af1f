"""Cross-entropy of a linear head that never holds all logits.

Shapes: B sequences, T tokens, N = B*T positions, C positions of one chunk, D hidden size, V
vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from brimful.data.batches import IGNORED


def linear_cross_entropy(
    hidden_BTD: Tensor,
    weight_VD: Tensor,
    targets_BT: Tensor,
    *,
    chunk_tokens: int,
    softcap: float | None = None,
    few_passes: bool = False,
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
        few_passes: Whether to do what CPUs need: pass over the logits as rarely as possible, leave
            ignored positions out of what is small instead, and scale gradients in place. Not with a
            softcap.

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
        few_passes and softcap is None,
    )
    return loss


def linear_token_losses(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    *,
    chunk_tokens: int,
    softcap: float | None = None,
    few_passes: bool = False,
) -> Tensor:
    """Return the cross-entropy of each position, for losses that weigh positions by what comes out:
    losses_N in nats, 0 where ignored: fp32, or doubles where the hidden states are.

    As `linear_cross_entropy`, but for one thing: a head that is trained has its logits computed
    again in the backward pass, because only then it is known how much each position counts.
    """
    if torch.is_autocast_enabled(hidden_ND.device.type):
        hidden_ND = hidden_ND.to(torch.get_autocast_dtype(hidden_ND.device.type))
    losses_N: Tensor = _LinearTokenLosses.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, targets_N, chunk_tokens, softcap, few_passes and softcap is None
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
            _chunk_losses(_logits(hidden_CD, weight_VD, softcap), targets_C)[0]
            for hidden_CD, targets_C in chunks
        ]
        return torch.cat(losses).view(targets_BT.shape)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that losses are computed in: float64 for float64, else float32."""
    return torch.promote_types(dtype, torch.float32)


def _widened(logits_CV: Tensor) -> Tensor:
    return logits_CV.to(_wide(logits_CV.dtype))


def _logits(hidden_CD: Tensor, weight_VD: Tensor, softcap: float | None) -> Tensor:
    logits_CV = _widened(hidden_CD @ weight_VD.T)
    if softcap is None:
        return logits_CV
    return logits_CV.div_(softcap).tanh_().mul_(softcap)


def _chunk_losses(logits_CV: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses (0 where ignored) and the log-sum-exp of each position."""
    lse_C = torch.logsumexp(logits_CV, dim=-1)
    picked_C = logits_CV.gather(1, targets_C.clamp(min=0)[:, None])[:, 0]
    return (lse_C - picked_C).masked_fill_(targets_C == IGNORED, 0.0), lse_C


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        targets_N: Tensor,
        chunk_tokens: int,
        softcap: float | None,
        few_passes: bool,
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
                if few_passes:
                    losses_C, grad_CV = _in_few_passes(hidden_CD, head_VD, targets_C)
                    hidden_CD = _without_ignored(hidden_CD, targets_C)
                else:
                    logits_CV = _logits(hidden_CD, head_VD, softcap)
                    losses_C, lse_C = _chunk_losses(logits_CV, targets_C)
                loss += losses_C.sum()
                if grad_hidden_ND is not None:
                    if not few_passes:
                        grad_CV = _grad_logits(logits_CV, lse_C, targets_C, softcap).to(
                            hidden_ND.dtype
                        )
                    torch.mm(grad_CV, head_VD, out=grad_hidden_ND[chunk])
                    if grad_weight_VD is not None:
                        grad_weight_VD += grad_CV.T @ hidden_CD
            if few_passes and grad_hidden_ND is not None:
                grad_hidden_ND = _without_ignored(grad_hidden_ND, targets_N)
            if grad_weight_VD is not None:
                grad_weight_VD = grad_weight_VD.to(weight_VD.dtype)
        ctx.save_for_backward(grad_hidden_ND, grad_weight_VD)
        ctx.few_passes = few_passes
        return loss

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        of_hidden, of_weight = (
            None if each is None else _scaled(each, grad_outputs[0], in_place=ctx.few_passes)
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
        few_passes: bool,
    ) -> Tensor:
        wants_grad, trains_head = ctx.needs_input_grad[:2]
        ctx.settings, ctx.trains_head = (chunk_tokens, softcap, few_passes), trains_head
        forms_grad = wants_grad and not trains_head
        grad_ND = torch.empty_like(hidden_ND) if forms_grad else None
        losses_N = torch.empty(
            len(hidden_ND), dtype=_wide(hidden_ND.dtype), device=hidden_ND.device
        )
        with torch.autocast(hidden_ND.device.type, enabled=False):
            head_VD = weight_VD.to(hidden_ND.dtype)
            for start in range(0, len(hidden_ND), chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                losses_N[chunk], grad_CV = _losses_and_grad(
                    (hidden_ND[chunk], head_VD, targets_N[chunk]), softcap, few_passes, forms_grad
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
        chunk_tokens, softcap, few_passes = ctx.settings
        grad_ND = torch.empty_like(hidden_ND)
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=_wide(weight_VD.dtype))
        with torch.autocast(hidden_ND.device.type, enabled=False):
            head_VD = weight_VD.to(hidden_ND.dtype)
            for start in range(0, len(hidden_ND), chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                hidden_CD = hidden_ND[chunk]
                _, grad_CV = _losses_and_grad(
                    (hidden_CD, head_VD, targets_N[chunk]), softcap, few_passes, True
                )
                grad_CV.mul_(factors_N1[chunk])
                torch.mm(grad_CV, head_VD, out=grad_ND[chunk])
                grad_weight_VD += grad_CV.T @ hidden_CD
                del grad_CV
        return grad_ND, grad_weight_VD.to(weight_VD.dtype), None, None, None, None


def _losses_and_grad(
    of_chunk: tuple[Tensor, Tensor, Tensor],
    softcap: float | None,
    few_passes: bool,
    wants_grad: bool,
) -> tuple[Tensor, Any]:
    """Return the loss of each position of a chunk (C,), and where it is wanted the gradient of the
    logits (C, V) in the dtype of the products. The same losses come out with and without it.

    Args:
        of_chunk: hidden_CD, head_VD and targets_C, each of which is a token or ignored.
    """
    hidden_CD, head_VD, targets_C = of_chunk
    if few_passes:
        losses_C, grad_CV = _in_few_passes(hidden_CD, head_VD, targets_C)
        return losses_C, grad_CV if wants_grad else None
    logits_CV = _logits(hidden_CD, head_VD, softcap)
    losses_C, lse_C = _chunk_losses(logits_CV, targets_C)
    if not wants_grad:
        return losses_C, None
    return losses_C, _grad_logits(logits_CV, lse_C, targets_C, softcap).to(hidden_CD.dtype)


def _scaled(gradient: Tensor, factor: Tensor, *, in_place: bool) -> Tensor:
    """Return the product; in place, a second backward pass over the same graph is an error."""
    factor = factor.to(gradient.dtype)
    return gradient.mul_(factor) if in_place else gradient * factor


def _in_few_passes(hidden_CD: Tensor, head_VD: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each position (C,), 0 where ignored, and the gradient of the logits (C, V)
    in the dtype of the products. Gradient rows of ignored positions have no meaning.
    """
    logs_CV = torch.log_softmax(_widened(hidden_CD @ head_VD.T), dim=-1)
    chosen_C1 = targets_C.clamp(min=0)[:, None]
    losses_C = logs_CV.gather(1, chosen_C1)[:, 0].neg_()
    losses_C.masked_fill_(targets_C == IGNORED, 0.0)
    grad_CV = logs_CV.exp_()
    grad_CV.scatter_add_(1, chosen_C1, torch.full_like(losses_C, -1.0)[:, None])
    return losses_C, grad_CV.to(hidden_CD.dtype)


def _without_ignored(rows_ND: Tensor, targets_N: Tensor) -> Tensor:
    """Return rows with zeros where the target is ignored."""
    return rows_ND.masked_fill((targets_N == IGNORED)[:, None], 0.0)


def _grad_logits(
    logits_CV: Tensor, lse_C: Tensor, targets_C: Tensor, softcap: float | None
) -> Tensor:
    """Return d loss / d (logits before capping), written over `logits_CV`."""
    slope_CV = None if softcap is None else 1 - (logits_CV / softcap).square()
    grad_CV = logits_CV.sub_(lse_C[:, None]).exp_()
    grad_CV.scatter_add_(1, targets_C.clamp(min=0)[:, None], torch.full_like(lse_C, -1.0)[:, None])
    grad_CV.masked_fill_((targets_C == IGNORED)[:, None], 0.0)
    return grad_CV if slope_CV is None else grad_CV.mul_(slope_CV)
