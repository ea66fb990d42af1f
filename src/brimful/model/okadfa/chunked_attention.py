"""Kernel attention for CPUs, some heads and one chunk of positions after another, with nothing as
long as the text times the number of features kept for the backward pass.

`causal_attention` by single operators keeps the features of all queries and keys, and passes over
them a dozen times. Here a chunk's features are computed from queries and keys, used while they lie
in the processor's cache, and dropped; the backward pass computes them again (the order of
recomputation is that of Dao et al. 2022, section 3.1, for softmax attention). Queries and keys are
scaled here, too, so that they are kept as the layer projected them. Values and gradients are those
of `features` and `linear_attention` up to rounding. A GPU would wait for the program between small
operators, so plans for GPUs take those.

Shapes: B rows, G heads of keys, S heads of queries that share one, P heads of keys of a part (some
heads of all rows), T positions, C positions of a chunk, D head size, M features, E = D + 1, values
with their normaliser.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brimful.model.okadfa.linear_attention import CHUNK

SHORTEST = 1e-6
"""Shorter vectors are divided by this, not by their norm."""


@dataclass
class ScaledVectors:
    """Vectors scaled to a norm.

    Attributes:
        vectors: (..., T, D).
        lengths: Norms before (..., T, 1).
        factors: What they were multiplied by (..., T, 1).
        norm: That of each head, in a shape that broadcasts.
    """

    vectors: Tensor
    lengths: Tensor
    factors: Tensor
    norm: Tensor

    def half_squares(self) -> Tensor:
        """Return (..., T, 1)."""
        return (self.lengths * self.factors).square_().div_(2)

    def gradients(
        self, grad: Tensor, out: Tensor, half_square_grad: Tensor | None = None
    ) -> Tensor:
        """Write the gradient of what was scaled, and return that of the norm for each position
        (..., T, 1).

        Args:
            grad: That of the vectors; overwritten.
            out: Tensor that is written to.
            half_square_grad: Minus that of half of their squares (..., T, 1).
        """
        along = torch.linalg.vecdot(grad, self.vectors).unsqueeze(-1)
        is_short = self.lengths < SHORTEST
        # The gradient along a vector that has the norm is lost: scaling takes it away.
        lost = (along / self.norm.square()).masked_fill_(is_short, 0.0)
        if half_square_grad is not None:
            lost += half_square_grad * is_short
            along.addcmul_(half_square_grad, self.half_squares(), value=-2)
        grad.addcmul_(self.vectors, lost, value=-1)
        torch.mul(grad.view(out.shape), self.factors.view(*out.shape[:-1], 1), out=out)
        of_norm: Tensor = along.div_(self.norm)
        return of_norm


def scale_to_norm(each: Tensor, norm: Tensor) -> ScaledVectors:
    """Scale vectors as `normalize(each, eps=SHORTEST) * norm` does.

    Args:
        each: (B, G, ..., T, D), of any layout, in any type. Rows and heads are joined.
        norm: Norm of each head of each row, in fp32 or more: (B x G, ..., 1, 1).
    """
    wide = each.to(norm.dtype)
    lengths = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).flatten(0, 1)
    factors = norm / lengths.clamp_min(SHORTEST)
    vectors = factors.new_empty(*factors.shape[:-1], each.shape[-1])
    torch.mul(wide, factors.view(*each.shape[:-1], 1), out=vectors.view(each.shape))
    return ScaledVectors(vectors, lengths, factors, norm)


PART_BYTES = 512 * 1024
"""Most that the features of a chunk's queries take in the heads of a part, for one row: those of
keys, the sum and results lie beside them in a cache of 2 MB. Smaller parts are more operators.
"""


def attend_in_chunks(
    queries_BHTD: Tensor,
    keys_BGTD: Tensor,
    values_BGTD: Tensor,
    projection_GMD: Tensor,
    share_G: Tensor,
    *,
    segments_BT: Tensor | None = None,
    is_text_BT: Tensor | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Return kernel attention (B, H, T, D) of queries and keys that are scaled to a given norm, in
    the type of the norms or the heads, whichever is wider.

    Args:
        queries_BHTD: Queries of any norm. The H / G heads that share a head of keys lie beside each
            other.
        keys_BGTD: Keys of G heads, each with its own random directions.
        values_BGTD: Values of the same heads as the keys.
        projection_GMD: Random directions from `draw_projection`; no gradient reaches them.
        share_G: Norm that queries and keys of a head get, in fp32 or more.
        segments_BT: Ascending numbers of the documents packed into a row, which attend only to
            themselves. None: a row is one document.
        is_text_BT: False at padding, which nothing attends to.
        chunk: C.
    """
    wide = torch.promote_types(keys_BGTD.dtype, share_G.dtype)
    attended_BGSTD: Tensor = _Chunked.apply(
        queries_BHTD.unflatten(1, (keys_BGTD.shape[1], -1)),
        keys_BGTD,
        values_BGTD,
        projection_GMD.to(wide),
        share_G.to(wide),
        segments_BT,
        is_text_BT,
        chunk,
    )  # type: ignore[no-untyped-call]
    attended_BHTD: Tensor = attended_BGSTD.flatten(1, 2)
    return attended_BHTD


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
        by_query = scores.view(-1, length, length)
        by_query.tril_()
        if self.together is not None:
            by_query.unflatten(0, (len(right), -1)).mul_(self.together[:, None])
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
    """What one part reads: queries and keys scaled, values with a column of ones."""

    queries_PSTD: ScaledVectors
    keys_PTD: ScaledVectors
    values_PTE: Tensor
    projection_PMD: Tensor
    directions_PDM: Tensor
    segments_PT: Tensor | None
    is_text_PT: Tensor | None
    chunk: int

    def chunks(self) -> Iterator[_Chunk]:
        """Compute the features of one chunk after another."""
        queries, keys = self.queries_PSTD.vectors, self.keys_PTD.vectors
        log_features = math.log(self.directions_PDM.shape[-1])
        shift_PT1 = self.keys_PTD.half_squares().add_(log_features / 2)
        parts = (
            each.split(self.chunk, dim=-2) for each in (queries, keys, shift_PT1, self.values_PTE)
        )
        for number, (queries_PSCD, keys_PCD, shift_PC1, values_PCE) in enumerate(
            zip(*parts, strict=True)
        ):
            start = number * self.chunk
            chunk = _Chunk(
                slice(start, start + self.chunk),
                self._queries(queries_PSCD.flatten(1, 2)),
                torch.bmm(keys_PCD, self.directions_PDM).sub_(shift_PC1).exp_(),
                values_PCE,
            )
            if self.is_text_PT is not None:
                chunk.keys.mul_(self.is_text_PT[:, chunk.here].unsqueeze(-1))
            if self.segments_PT is not None:
                self._separate(chunk, self.segments_PT)
            yield chunk

    def _queries(self, queries_PCD: Tensor) -> Tensor:
        """Return `query_features` without |x|^2 / 2 and log(M) / 2: both cancel."""
        logs = torch.bmm(queries_PCD, self.directions_PDM)
        return logs.sub_(logs.amax(-1, keepdim=True)).exp_()

    @staticmethod
    def _separate(chunk: _Chunk, segments_PT: Tensor) -> None:
        segments_PC = segments_PT[:, chunk.here]
        before_P1 = segments_PT[:, max(chunk.here.start - 1, 0)].unsqueeze(1)
        last_P1 = segments_PC[:, -1:]
        chunk.together = segments_PC[:, :, None] == segments_PC[:, None, :]
        chunk.sees = (segments_PC == before_P1).unsqueeze(-1)
        chunk.is_last = (segments_PC == last_P1).unsqueeze(-1)
        chunk.goes_on = (last_P1 == before_P1).unsqueeze(-1)

    def zero_sum(self) -> Tensor:
        """Return zeros for the sum of values times features of keys (P, E, M)."""
        heads, _, extended = self.values_PTE.shape
        return self.values_PTE.new_zeros(heads, extended, self.directions_PDM.shape[-1])


@dataclass
class _Heads:
    """What all heads of a layer read, in any type; directions and norms in fp32 or more."""

    queries_BGSTD: Tensor
    keys_BGTD: Tensor
    values_BGTD: Tensor
    projection_GMD: Tensor
    share_G: Tensor
    segments_BT: Tensor | None
    is_text_BT: Tensor | None
    chunk: int

    def parts(self) -> Iterator[slice]:
        """Divide the heads into parts of equal size. Their number does not depend on the number of
        rows: planning takes memory as linear in it.
        """
        _, groups, shared_by, length, _ = self.queries_BGSTD.shape
        features = self.projection_GMD[0, :, 0]
        per_head = features.shape[0] * features.itemsize * min(self.chunk, length) * shared_by
        parts = math.ceil(groups / max(PART_BYTES // per_head, 1))
        heads_at_once = math.ceil(groups / parts)
        for start in range(0, groups, heads_at_once):
            yield slice(start, start + heads_at_once)

    def read(self, part: slice) -> _Text:
        """Scale queries and keys of a part, and lay out its values."""
        values = self.values_BGTD[:, part]
        rows, groups, length, size = values.shape
        norm_P11 = self.share_G[part].repeat(rows)[:, None, None]
        values_PTE = norm_P11.new_empty(rows * groups, length, size + 1)
        values_PTE.unflatten(0, (rows, groups))[..., :size] = values
        values_PTE[..., size:] = 1.0
        projection_PMD = self.projection_GMD[part].repeat(rows, 1, 1)
        segments_PT, is_text_PT = (
            None if each is None else each.repeat_interleave(groups, dim=0)
            for each in (self.segments_BT, self.is_text_BT)
        )
        return _Text(
            scale_to_norm(self.queries_BGSTD[:, part], norm_P11[:, None]),
            scale_to_norm(self.keys_BGTD[:, part], norm_P11),
            values_PTE,
            projection_PMD,
            projection_PMD.mT.contiguous(),
            segments_PT,
            is_text_PT,
            self.chunk,
        )


class _Chunked(torch.autograd.Function):
    """Kernel attention (B, G, S, T, D) with a backward pass of its own, which gives the gradients
    of queries, keys, values and norms.
    """

    @staticmethod
    def forward(ctx: Any, queries_BGSTD: Tensor, *others: Any) -> Tensor:
        layer = _Heads(queries_BGSTD, *others)
        rows, groups, shared_by, length, size = queries_BGSTD.shape
        # A projection follows, which reads the heads of a position beside each other.
        attended = layer.share_G.new_empty(rows, length, groups, shared_by, size)
        attended_BGSTD = attended.permute(0, 2, 3, 1, 4)
        inverse_BGST1 = layer.share_G.new_empty(rows, groups, shared_by, length, 1)
        scores: list[Tensor] = []
        for part in layer.parts():
            sums_PSTE, of_part = _sums(layer.read(part))
            scores += of_part
            attended, inverse = attended_BGSTD[:, part], inverse_BGST1[:, part]
            sums = sums_PSTE.view(*attended.shape[:-1], size + 1)
            normaliser = sums[..., size:]
            normaliser.masked_fill_(normaliser == 0, 1.0)  # sees nothing: padding before a text
            torch.mul(sums[..., :size], torch.reciprocal(normaliser, out=inverse), out=attended)
        ctx.save_for_backward(queries_BGSTD, *others[:-1], attended_BGSTD, inverse_BGST1, *scores)
        ctx.chunk = others[-1]
        return attended_BGSTD

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        heads = _Heads(*(*saved[:7], ctx.chunk))
        with torch.autocast(grad_outputs[0].device.type, enabled=False):
            of_queries, of_keys, of_values, of_share = _gradients(
                heads, (grad_outputs[0], *saved[7:9]), saved[9:]
            )
        return of_queries, of_keys, of_values, None, of_share, None, None, None


def _gradients(
    heads: _Heads, attended: tuple[Tensor, Tensor, Tensor], scores: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return the gradients of queries, keys, values and norms.

    Args:
        attended: The gradient of the attended values, these (B, G, S, T, D), and what they were
            multiplied by at last (B, G, S, T, 1).
        scores: Scores of each chunk of each part.
    """
    read = heads.queries_BGSTD, heads.keys_BGTD, heads.values_BGTD
    grad_queries, grad_keys, grad_values = (torch.empty_like(each) for each in read)
    grad_share_G = torch.zeros_like(heads.share_G)
    remaining = iter(scores)
    for part in heads.parts():
        text = heads.read(part)
        grad_PSTE = _grad_of_sums(*(each[:, part] for each in attended))
        chunks = list(text.chunks())
        of_part = [next(remaining) for _ in chunks]
        grads = [each.flatten(1, 2) for each in grad_PSTE.split(heads.chunk, dim=2)]
        grad_PSTD, grad_scores = _grad_of_queries(text, chunks, grads)
        of_keys, of_values, of_half_squares = _grads_of_keys_and_values(
            text, chunks, grads, of_part, grad_scores
        )
        for_queries, for_keys, for_values = (
            each[:, part] for each in (grad_queries, grad_keys, grad_values)
        )
        for_values.copy_(of_values.view(for_values.shape))
        of_norms_P = text.queries_PSTD.gradients(grad_PSTD, for_queries).sum((1, 2, 3))
        of_norms_P += text.keys_PTD.gradients(of_keys, for_keys, of_half_squares).sum((1, 2))
        grad_share_G[part] += of_norms_P.view(for_keys.shape[:2]).sum(0)
    return grad_queries, grad_keys, grad_values, grad_share_G


def _sums(text: _Text) -> tuple[Tensor, list[Tensor]]:
    """Return what is divided by the normaliser, and the normaliser: (P, S, T, E); and the scores of
    each chunk, as many numbers as C / D times the queries.
    """
    shared_by, length = text.queries_PSTD.vectors.shape[1:3]
    sum_PEM = text.zero_sum()
    sums, scores = [], []
    for each in text.chunks():
        scores.append(each.scores(each.queries, each.keys))
        of_chunk = torch.bmm(scores[-1], each.values)
        if each.here.start:
            of_chunk.baddbmm_(each.seen(each.queries), sum_PEM.mT)
        if each.here.stop < length:
            each.carried(sum_PEM).baddbmm_(each.values.mT, each.lasting(each.keys))
        sums.append(of_chunk.unflatten(1, (shared_by, -1)))
    return torch.cat(sums, dim=2), scores


def _grad_of_sums(grad_BGSTD: Tensor, attended_BGSTD: Tensor, inverse_BGST1: Tensor) -> Tensor:
    """Return the gradient of what is divided by the normaliser, and of the normaliser, of a part:
    (P, S, T, E).
    """
    size = grad_BGSTD.shape[-1]
    grad_BGSTE = inverse_BGST1.new_empty(*grad_BGSTD.shape[:-1], size + 1)
    torch.mul(grad_BGSTD, inverse_BGST1, out=grad_BGSTE[..., :size])
    grad_BGSTE[..., size] = torch.linalg.vecdot(grad_BGSTE[..., :size], attended_BGSTD).neg_()
    return grad_BGSTE.flatten(0, 1)


def _grad_of_queries(
    text: _Text, chunks: list[_Chunk], grads: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Go through the text forwards, as the sum before a chunk is needed. Return the gradient of
    scaled queries (P, S, T, D), and those of the scores of each chunk.

    Args:
        grads: Gradient of the sums of each chunk (P, S x C, E).
    """
    shared_by = text.queries_PSTD.vectors.shape[1]
    sum_PEM = text.zero_sum()
    grad_queries, grad_scores = [], []
    for each, grad in zip(chunks, grads, strict=True):
        grad_scores.append(each.scores(grad, each.values))
        grad_features = torch.bmm(grad_scores[-1], each.keys)
        if each.here.start:
            grad_features.baddbmm_(each.seen(grad), sum_PEM)
        if each is not chunks[-1]:
            each.carried(sum_PEM).baddbmm_(each.values.mT, each.lasting(each.keys))
        of_chunk = torch.bmm(grad_features.mul_(each.queries), text.projection_PMD)
        grad_queries.append(of_chunk.unflatten(1, (shared_by, -1)))
    return torch.cat(grad_queries, dim=2), grad_scores


def _grads_of_keys_and_values(
    text: _Text,
    chunks: list[_Chunk],
    grads: Sequence[Tensor],
    scores: list[Tensor],
    grad_scores: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Go through the text backwards, with the gradient of the sum after a chunk. Features are
    dropped once they are used.

    Returns:
        Gradients of scaled keys as if their squares took no part (P, T, D), of values (P, T, D),
        and minus that of half of the keys' squares (P, T, 1).
    """
    length, size = text.keys_PTD.vectors.shape[1:]
    grad_sum_PEM = text.zero_sum()
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for grad in reversed(grads):
        each = chunks.pop()
        grad_features = torch.bmm(grad_scores.pop().mT, each.queries)
        grad_values = torch.bmm(scores.pop().mT, grad[..., :size])
        if each.here.stop < length:
            grad_features.baddbmm_(each.lasting(each.values), grad_sum_PEM)
            grad_values.baddbmm_(each.lasting(each.keys), grad_sum_PEM[:, :size].mT)
        if each.here.start:
            each.carried(grad_sum_PEM).baddbmm_(each.seen(grad).mT, each.queries)
        grad_logs = grad_features.mul_(each.keys)
        grad_keys = torch.bmm(grad_logs, text.projection_PMD)
        found.append((grad_keys, grad_values, grad_logs.sum(-1, keepdim=True)))
    of_keys, of_values, of_half_squares = (
        torch.cat(each[::-1], dim=1) for each in zip(*found, strict=True)
    )
    return of_keys, of_values, of_half_squares
