"""Kernel attention for CPUs, one chunk of positions after another, with nothing as long as the text
times the number of features kept for the backward pass.

`causal_attention` by single operators keeps the features of all queries and keys, and passes over
them a dozen times. Here a chunk's features are computed from queries and keys, used while they lie
in the processor's cache, and dropped; the backward pass computes them again (the order of
recomputation is that of Dao et al. 2022, section 3.1, for softmax attention). Values and gradients
are those of `features` and `linear_attention` up to rounding. A GPU would wait for the program
between small operators, so plans for GPUs take those.

Shapes: P heads of keys of all rows, S heads of queries that share one, T positions, C positions of
a chunk, D head size, M features, E = D + 1, values with their normaliser.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brimful.model.okadfa.linear_attention import CHUNK


def attend_in_chunks(
    queries_BHTD: Tensor,
    keys_BGTD: Tensor,
    values_BGTD: Tensor,
    projection_GMD: Tensor,
    *,
    segments_BT: Tensor | None = None,
    is_text_BT: Tensor | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Return kernel attention (B, H, T, D) of queries and keys that have their share of the scale.

    All in one type, fp32 or more.

    Args:
        queries_BHTD: The H / G heads that share a head of keys lie beside each other.
        keys_BGTD: Of G heads, each with its own random directions.
        values_BGTD: As keys.
        projection_GMD: From `draw_projection`; no gradient reaches it.
        segments_BT: Ascending numbers of the documents packed into a row, which attend only to
            themselves. None: a row is one document.
        is_text_BT: False at padding, which nothing attends to.
        chunk: C.
    """
    rows, groups = keys_BGTD.shape[:2]
    attended_PSTD: Tensor = _Chunked.apply(
        queries_BHTD.unflatten(1, (groups, -1)).flatten(0, 1),
        keys_BGTD.flatten(0, 1),
        values_BGTD.flatten(0, 1),
        projection_GMD if rows == 1 else projection_GMD.repeat(rows, 1, 1),
        _for_heads(segments_BT, groups),
        _for_heads(is_text_BT, groups),
        chunk,
    )  # type: ignore[no-untyped-call]
    attended_BHTD: Tensor = attended_PSTD.unflatten(0, (rows, groups)).flatten(1, 2)
    return attended_BHTD


def _for_heads(each_BT: Tensor | None, groups: int) -> Tensor | None:
    return None if each_BT is None else each_BT.repeat_interleave(groups, dim=0)


@dataclass
class _Chunk:
    """A chunk of positions: what it reads, and what may see what where documents are packed.

    Attributes:
        here: Its positions.
        queries: Features, those of queries that share keys one after another: (P, S x C, M).
        keys: Features (P, C, M).
        values: (P, C, E).
        together: Whether two of its positions lie in one document (P, C, C).
        sees: Whether a position lies in the document in which the chunk before ended (P, C, 1).
        is_last: Whether a position lies in the document in which the chunk ends (P, C, 1).
        goes_on: Whether one document reaches from the chunk before to this one's end (P, 1, 1).
    """

    here: slice
    queries: Tensor
    keys: Tensor
    values: Tensor
    together: Tensor | None = None
    sees: Tensor | None = None
    is_last: Tensor | None = None
    goes_on: Tensor | None = None

    def scores(self, left: Tensor, right: Tensor) -> Tensor:
        """Return left . right, 0 where a query may not see a key: (P, S x C, C)."""
        length = right.shape[1]
        scores = torch.bmm(left, right.mT)
        by_query = scores.unflatten(1, (-1, length))
        by_query.tril_()
        if self.together is not None:
            by_query.mul_(self.together[:, None])
        return scores

    def seen(self, each: Tensor) -> Tensor:
        """Return (P, S x C, X), 0 at positions that do not see earlier chunks."""
        if self.sees is None:
            return each
        by_query: Tensor = each.unflatten(1, (-1, self.sees.shape[1])) * self.sees[:, None]
        return by_query.flatten(1, 2)

    def lasting(self, each: Tensor) -> Tensor:
        """Return (P, C, X), 0 at positions that later chunks do not see."""
        return each if self.is_last is None else each * self.is_last

    def carried(self, sum_PEM: Tensor) -> Tensor:
        """Keep of a sum, in place, what reaches from one end of the chunk to the other."""
        return sum_PEM if self.goes_on is None else sum_PEM.mul_(self.goes_on)


@dataclass
class _Text:
    """Queries and keys with their share of the scale, values with a column of ones."""

    queries_PSTD: Tensor
    keys_PTD: Tensor
    values_PTE: Tensor
    directions_PDM: Tensor
    segments_PT: Tensor | None
    is_text_PT: Tensor | None
    chunk: int

    def chunks(self) -> Iterator[_Chunk]:
        """Compute the features of one chunk after another."""
        for start in range(0, self.keys_PTD.shape[1], self.chunk):
            here = slice(start, start + self.chunk)
            chunk = _Chunk(
                here, self._queries(here), self._keys(here), self.values_PTE[:, here].contiguous()
            )
            if self.segments_PT is not None:
                segments_PC = self.segments_PT[:, here]
                before_P1 = self.segments_PT[:, max(start - 1, 0)].unsqueeze(1)
                last_P1 = segments_PC[:, -1:]
                chunk.together = segments_PC[:, :, None] == segments_PC[:, None, :]
                chunk.sees = (segments_PC == before_P1).unsqueeze(-1)
                chunk.is_last = (segments_PC == last_P1).unsqueeze(-1)
                chunk.goes_on = (last_P1 == before_P1).unsqueeze(-1)
            yield chunk

    def _queries(self, here: slice) -> Tensor:
        """Return `query_features` without |x|^2 / 2 and log(M) / 2: both cancel."""
        logs = torch.bmm(self.queries_PSTD[:, :, here].flatten(1, 2), self.directions_PDM)
        return logs.sub_(logs.amax(-1, keepdim=True)).exp_()

    def _keys(self, here: slice) -> Tensor:
        """Return `key_features`, 0 at padding."""
        keys_PCD = self.keys_PTD[:, here]
        shift_PC1 = keys_PCD.square().sum(-1, keepdim=True).div_(2)
        shift_PC1.add_(0.5 * math.log(self.directions_PDM.shape[-1]))
        features = torch.bmm(keys_PCD, self.directions_PDM).sub_(shift_PC1).exp_()
        if self.is_text_PT is not None:
            features.mul_(self.is_text_PT[:, here].unsqueeze(-1))
        return features


class _Chunked(torch.autograd.Function):
    """Kernel attention (P, S, T, D) with a backward pass of its own, which gives the gradients of
    queries, keys and values.
    """

    @staticmethod
    def forward(
        ctx: Any,
        queries_PSTD: Tensor,
        keys_PTD: Tensor,
        values_PTD: Tensor,
        projection_PMD: Tensor,
        segments_PT: Tensor | None,
        is_text_PT: Tensor | None,
        chunk: int,
    ) -> Tensor:
        shared_by = queries_PSTD.shape[1]
        values_PTE = torch.cat([values_PTD, torch.ones_like(values_PTD[..., :1])], dim=-1)
        directions_PDM = projection_PMD.mT.contiguous()
        text = _Text(
            queries_PSTD, keys_PTD, values_PTE, directions_PDM, segments_PT, is_text_PT, chunk
        )
        attended_PSTD = torch.empty_like(queries_PSTD, memory_format=torch.contiguous_format)
        normaliser_PST1 = attended_PSTD.new_empty(*attended_PSTD.shape[:-1], 1)
        sum_PEM = _zero_sum(text)
        for each in text.chunks():
            sums = torch.bmm(each.scores(each.queries, each.keys), each.values)
            if each.here.start:
                sums.baddbmm_(each.seen(each.queries), sum_PEM.mT)
            each.carried(sum_PEM).baddbmm_(each.values.mT, each.lasting(each.keys))
            by_query = sums.unflatten(1, (shared_by, -1))
            normaliser = by_query[..., -1:]
            normaliser.masked_fill_(normaliser == 0, 1.0)  # sees nothing: padding before a text
            normaliser_PST1[:, :, each.here] = normaliser
            torch.div(by_query[..., :-1], normaliser, out=attended_PSTD[:, :, each.here])
        ctx.save_for_backward(
            queries_PSTD,
            keys_PTD,
            values_PTE,
            directions_PDM,
            segments_PT,
            is_text_PT,
            attended_PSTD,
            normaliser_PST1,
        )
        ctx.chunk = chunk
        return attended_PSTD

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, directions, segments, is_text, attended, normaliser = (
            ctx.saved_tensors
        )
        text = _Text(queries, keys, values, directions, segments, is_text, ctx.chunk)
        grad_PSTE = _grad_of_sums(grad_outputs[0], attended, normaliser)
        chunks = list(text.chunks())
        grad_queries = _grad_of_queries(text, chunks, grad_PSTE)
        grad_keys, grad_values = _grads_of_keys_and_values(text, chunks, grad_PSTE)
        return grad_queries, grad_keys, grad_values, None, None, None, None


def _zero_sum(text: _Text) -> Tensor:
    """Return zeros for the sum of values times features of keys (P, E, M)."""
    heads, _, extended = text.values_PTE.shape
    return text.values_PTE.new_zeros(heads, extended, text.directions_PDM.shape[-1])


def _grad_of_sums(grad_PSTD: Tensor, attended_PSTD: Tensor, normaliser_PST1: Tensor) -> Tensor:
    """Return the gradient of what is divided by the normaliser, and of the normaliser."""
    size = grad_PSTD.shape[-1]
    grad_PSTE = grad_PSTD.new_empty(*grad_PSTD.shape[:-1], size + 1)
    torch.div(grad_PSTD, normaliser_PST1, out=grad_PSTE[..., :size])
    grad_PSTE[..., size] = torch.linalg.vecdot(grad_PSTE[..., :size], attended_PSTD).neg_()
    return grad_PSTE


def _grad_of_queries(text: _Text, chunks: list[_Chunk], grad_PSTE: Tensor) -> Tensor:
    """Go through the text forwards, as the sum before a chunk is needed."""
    projection_PMD = text.directions_PDM.mT
    grad_PSTD = torch.empty_like(text.queries_PSTD, memory_format=torch.contiguous_format)
    sum_PEM = _zero_sum(text)
    for each in chunks:
        grad = grad_PSTE[:, :, each.here].flatten(1, 2)
        grad_features = torch.bmm(each.scores(grad, each.values), each.keys)
        if each.here.start:
            grad_features.baddbmm_(each.seen(grad), sum_PEM)
        each.carried(sum_PEM).baddbmm_(each.values.mT, each.lasting(each.keys))
        grad_queries = torch.bmm(grad_features.mul_(each.queries), projection_PMD)
        grad_PSTD[:, :, each.here] = grad_queries.unflatten(1, (grad_PSTD.shape[1], -1))
    return grad_PSTD


def _grads_of_keys_and_values(
    text: _Text, chunks: list[_Chunk], grad_PSTE: Tensor
) -> tuple[Tensor, Tensor]:
    """Go through the text backwards, with the gradient of the sum after a chunk. Features are
    dropped once they are used.
    """
    projection_PMD, size = text.directions_PDM.mT, text.keys_PTD.shape[-1]
    grad_keys_PTD, grad_values_PTD = (
        torch.empty_like(text.keys_PTD, memory_format=torch.contiguous_format) for _ in range(2)
    )
    grad_sum_PEM = _zero_sum(text)
    while chunks:
        each = chunks.pop()
        grad = grad_PSTE[:, :, each.here].flatten(1, 2)
        grad_features = torch.bmm(each.scores(grad, each.values).mT, each.queries)
        grad_features.baddbmm_(each.lasting(each.values), grad_sum_PEM)
        grad_values = torch.bmm(each.scores(each.queries, each.keys).mT, grad[..., :size])
        grad_values.baddbmm_(each.lasting(each.keys), grad_sum_PEM[:, :size].mT)
        grad_values_PTD[:, each.here] = grad_values
        if each.here.start:
            each.carried(grad_sum_PEM).baddbmm_(each.seen(grad).mT, each.queries)
        grad_logs = grad_features.mul_(each.keys)
        grad_keys = torch.bmm(grad_logs, projection_PMD)
        grad_shift = grad_logs.sum(-1, keepdim=True)
        grad_keys_PTD[:, each.here] = grad_keys.addcmul_(
            text.keys_PTD[:, each.here], grad_shift, value=-1
        )
    return grad_keys_PTD, grad_values_PTD
