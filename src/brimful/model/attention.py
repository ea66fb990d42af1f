"""Causal attention in blocks of query rows, for CPUs.

torch's fused CPU kernel reaches a seventh of the matrix rate at the sequence lengths that small
models train on. The same work as a few batched matrix products, each over the keys that a block of
queries may see, reaches most of it (docs/log, 2026-11-21).

Shapes: B batch, H heads, T positions, D head size, Q query rows of a block, K keys they may see.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

NAME = "brimful_blocks"
EXPANDED = "brimful_expanded"
"""torch's fused attention with key and value heads repeated, for CUDA devices without a flash
kernel. Without repeating, grouped heads would run in the kernel that stores all scores
(aten/native/transformers/cuda/sdp_utils.cpp: the memory-efficient kernel takes no grouped heads).
"""
BLOCK_ROWS, BLOCK_ROWS_16_BIT = 64, 128
"""Larger blocks compute more scores that nobody may see, in fewer products: quicker in bf16, not in
fp32 (docs/log, 2026-11-26).
"""
LONGEST = 1024
"""Positions up to which blocks are faster; the probabilities that they keep grow with the square of
the length.
"""


def register() -> None:
    """Register brimful's attention functions with transformers, by their `attn_implementation`."""
    from brimful.model import packed_attention  # noqa: PLC0415 - it builds on this module

    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)
    AttentionInterface.register(EXPANDED, _attend_expanded)
    AttentionMaskInterface.register(EXPANDED, sdpa_mask)
    packed_attention.register()


def block_causal_attention(
    queries_BHTD: Tensor,
    keys_BHTD: Tensor,
    values_BHTD: Tensor,
    *,
    scale: float,
    dropout: float = 0.0,
    lengths_E: Sequence[int] = (),
) -> Tensor:
    """Return softmax(scale * Q K^T + causal mask) V in the inputs' dtype; sums in softmax and
    products accumulate in fp32.

    Equal to scaled_dot_product_attention(is_causal=True) up to rounding. Keeps B H T (T + Q) / 2
    probabilities for the backward pass.

    Args:
        queries_BHTD: Those of every position, or of the last ones of a row of one example; no
            padding on the left. Padding on the right is never seen by real positions.
        keys_BHTD: Keys from position 0 on, as many heads as the queries have.
        values_BHTD: Values, as many heads as the queries have.
        scale: Factor on the scores.
        dropout: Probability of dropping an attention weight.
        lengths_E: Lengths, adding up to T, of the examples packed into every row, which attend only
            to themselves; empty: a row is one example.

    Returns:
        Attended values (B, H, T, D).
    """
    queries, keys, values = (
        tensor.to(values_BHTD.dtype).flatten(0, 1)
        for tensor in (queries_BHTD, keys_BHTD, values_BHTD)
    )
    with torch.autocast(queries.device.type, enabled=False):
        attended_GTD: Tensor = _BlockAttention.apply(
            queries, keys, values, scale, dropout, lengths_E
        )  # type: ignore[no-untyped-call]
    return attended_GTD.view(queries_BHTD.shape)


def _query_blocks(
    lengths_E: Sequence[int], rows: int, before: int
) -> Iterator[tuple[int, int, int]]:
    """Yield for each block the position where its example begins, where the block begins and where
    it ends; the first positions of an example, as many as `before`, are in none.
    """
    for end, length in zip(accumulate(lengths_E), lengths_E, strict=True):
        for start in range(end - length + before, end, rows):
            yield end - length, start, min(start + rows, end)


def _hidden_future(start: int, end: int, like: Tensor) -> Tensor:
    """Return 0 where query row start+q may see key k, -inf where k lies in its future: (Q, K)."""
    return torch.full(
        (end - start, end), float("-inf"), dtype=like.dtype, device=like.device
    ).triu_(start + 1)


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries_GTD: Tensor,
        keys_GTD: Tensor,
        values_GTD: Tensor,
        scale: float,
        dropout: float,
        lengths_E: Sequence[int],
    ) -> Tensor:
        attended_GTD = torch.empty_like(queries_GTD)
        rows = BLOCK_ROWS_16_BIT if queries_GTD.itemsize == 2 else BLOCK_ROWS
        length = keys_GTD.shape[1]
        before = length - queries_GTD.shape[1]
        blocks = list(_query_blocks(lengths_E or (length,), rows, before))
        weights, kept = [], []
        for first, start, end in blocks:
            own = slice(start - before, end - before)
            future_QK = _hidden_future(start - first, end - first, queries_GTD)
            scores_GQK = torch.baddbmm(
                future_QK,
                queries_GTD[:, own],
                keys_GTD[:, first:end].transpose(1, 2),
                alpha=scale,
            )
            weights_GQK = torch.softmax(scores_GQK, dim=-1)
            weights.append(weights_GQK)
            if dropout:
                kept.append(torch.empty_like(weights_GQK).bernoulli_(1 - dropout).div_(1 - dropout))
                weights_GQK = weights_GQK * kept[-1]
            attended_GTD[:, own] = torch.bmm(weights_GQK, values_GTD[:, first:end])
        ctx.save_for_backward(queries_GTD, keys_GTD, values_GTD, *weights, *kept)
        ctx.scale, ctx.blocks, ctx.before = scale, blocks, before
        return attended_GTD

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        grad_GTD = grad_outputs[0]
        queries_GTD, keys_GTD, values_GTD, *rest = ctx.saved_tensors
        weights, kept = rest[: len(ctx.blocks)], rest[len(ctx.blocks) :]
        grad_queries, grad_keys, grad_values = (
            torch.empty_like(each) for each in (queries_GTD, keys_GTD, values_GTD)
        )
        begun = None  # the example of the block before, of which the last block sees all keys
        for number, (first, start, end) in reversed(list(enumerate(ctx.blocks))):
            own = slice(start - ctx.before, end - ctx.before)
            weights_GQK, grad_GQD = weights[number], grad_GTD[:, own]
            add = Tensor.copy_ if first != begun else Tensor.add_
            begun = first
            used_GQK = weights_GQK * kept[number] if kept else weights_GQK
            add(grad_values[:, first:end], torch.bmm(used_GQK.transpose(1, 2), grad_GQD))
            grad_weights_GQK = torch.bmm(grad_GQD, values_GTD[:, first:end].transpose(1, 2))
            if kept:
                grad_weights_GQK *= kept[number]
            grad_scores_GQK = torch._softmax_backward_data(
                grad_weights_GQK, weights_GQK, -1, weights_GQK.dtype
            ).mul_(ctx.scale)
            grad_queries[:, own] = torch.bmm(grad_scores_GQK, keys_GTD[:, first:end])
            grad_keys_GKD = torch.bmm(grad_scores_GQK.transpose(1, 2), queries_GTD[:, own])
            add(grad_keys[:, first:end], grad_keys_GKD)
        return grad_queries, grad_keys, grad_values, None, None, None


def for_every_head(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return keys and values with grouped heads repeated for each query head; (B, H, T, D)."""
    groups = query.shape[1] // key.shape[1]
    if groups == 1:
        return key, value
    return key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: (B, H, T, D) in, (B, T, H, D) out."""
    if attention_mask is not None or query.shape[2] != key.shape[2]:
        raise ValueError(
            "block attention trains on whole sequences: no mask, no cache; generate with sdpa"
        )
    key, value = for_every_head(query, key, value)
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    attended = block_causal_attention(
        query, key, value, scale=scaling, dropout=dropout if module.training else 0.0
    )
    return attended.transpose(1, 2).contiguous(), None


def _attend_expanded(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention signature: (B, H, T, D) in, (B, T, H, D) out."""
    key, value = for_every_head(query, key, value)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    causal = bool(is_causal) and attention_mask is None and query.shape[2] > 1
    attended = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=attention_mask,
        dropout_p=dropout if module.training else 0.0,
        is_causal=causal,
        scale=scaling,
    )
    return attended.transpose(1, 2).contiguous(), None
