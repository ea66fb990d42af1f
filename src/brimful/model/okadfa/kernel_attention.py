"""Kernel attention inside a model of transformers: from queries and keys to attended values, with
packed documents, padding and a cache. Its features are positive orthogonal random ones, an unbiased
estimate of the softmax kernel (FAVOR+; Choromanski et al. 2021, "Rethinking Attention with
Performers", sections 2.3 and 2.4).

Shapes: B rows, T positions, H heads of queries, G heads of keys and values, M features, D head size
(hidden size where a tensor has no heads), E packed documents.
"""

import math

import torch
from torch import Tensor
from transformers import Cache

from brimful.model.attention import NAME as BLOCKS
from brimful.model.okadfa.linear_attention import (
    causal_attention,
    next_position,
    num_read,
    sum_before,
)

_STREAM = 1_000_003
"""Keeps the seeds of layers and of redraws apart."""


def draw_projection(
    heads: int, features: int, head_size: int, *, seed: int, layer: int, draw: int = 0
) -> Tensor:
    """Return random directions w_1 .. w_M for each head: (H, M, D), fp32 on the CPU, a pure
    function of the arguments.

    Each direction is distributed as N(0, I), and those of a block of D are orthogonal: rows of the
    orthogonal factor of a Gaussian matrix, each times the norm of another Gaussian vector (section
    2.4, and its appendix for the norms). The last block is cut if D does not divide M.

    Args:
        layer: Number of the layer; each has directions of its own.
        draw: Number of the redraw.
    """
    generator = torch.Generator().manual_seed(
        (seed * _STREAM + layer) * _STREAM + draw & (2**63 - 1)
    )
    blocks = -(-features // head_size)
    gaussian = _normal((heads, blocks, head_size, head_size), generator)
    orthogonal, upper = torch.linalg.qr(gaussian)
    # Without these signs the factor is not uniform over all rotations (Mezzadri 2007).
    signs = upper.diagonal(dim1=-2, dim2=-1).sign()
    directions_HMD = (
        (orthogonal * signs[..., None, :])
        .transpose(-2, -1)
        .reshape(heads, -1, head_size)[:, :features]
    )
    norms_HM = _normal((heads, features, head_size), generator).norm(dim=-1)
    projection_HMD: Tensor = (directions_HMD * norms_HM[..., None]).contiguous()
    return projection_HMD


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw in fp32 on the CPU, also while a model is built with other defaults."""
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def log_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Return w_i . x - |x|^2 / 2 - log(M) / 2, the logarithms of the features f with
    E[f(x) . f(y)] = exp(x . y): (B, H, T, M).

    Args:
        scaled_BHTD: Queries or keys in fp32 or more, each with its share of the scale, so that
            x . y is the attention score.
        projection_HMD: Random directions from `draw_projection`, in the same dtype.
    """
    exponents_BHTM = _products(scaled_BHTD, projection_HMD)
    shift_BHT1 = scaled_BHTD.square().sum(-1, keepdim=True) / 2
    return exponents_BHTM - (shift_BHT1 + 0.5 * math.log(projection_HMD.shape[-2]))


def _products(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Return w_i . x: (B, H, T, M). For few positions all rows go into one product per head,
    because torch would copy the directions for every row.
    """
    rows, _, length, size = scaled_BHTD.shape
    if rows == 1 or length >= size:
        return scaled_BHTD @ projection_HMD.mT
    products_HNM = scaled_BHTD.transpose(0, 1).flatten(1, 2) @ projection_HMD.mT
    products_BHTM: Tensor = products_HNM.unflatten(1, (rows, length)).transpose(0, 1)
    return products_BHTM


def query_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Return the features of queries, scaled so that the largest of each position is 1; the
    normaliser of attention cancels that factor.
    """
    logs_BHTM = log_features(scaled_BHTD, projection_HMD)
    return (logs_BHTM - logs_BHTM.amax(-1, keepdim=True).detach()).exp()


def key_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Return the features of keys, not scaled by their maximum: that would depend on later
    positions.

    Normalised keys need no scaling: w . x - |x|^2 / 2 is at most |w|^2 / 2 at any temperature, and
    |w|^2 is about the head size, so that exp stays within fp32 up to head sizes of 128. For the
    same reason no constant is added to features or normaliser, as the authors' code does: the
    largest feature of a query is multiplied by one of a key that is never 0.
    """
    return log_features(scaled_BHTD, projection_HMD).exp()


MOST_TEMPERATURE = 64.0
"""Upper limit of the learned temperature (CLIP's is 100, Radford et al. 2021, section 2.5):
features of keys stay far from overflow and underflow of fp32.
"""


def keeps_no_features(implementation: str | None, past: Cache | None) -> bool:
    """Return whether a layer attends by `attend_in_chunks`, which is quicker on CPUs. Compiled
    code, and texts that are read with a cache, keep features.

    Args:
        implementation: The model's, by its name in transformers.
        past: Cache.
    """
    return implementation == BLOCKS and past is None and not torch.compiler.is_compiling()


def attend_by_kernel(
    queries_BHTD: Tensor,
    keys_BGTD: Tensor,
    values_BGTD: Tensor,
    projection_GMD: Tensor,
    *,
    layer: int,
    segments_BT: Tensor | None,
    is_text_BT: Tensor | None,
    past: Cache | None,
) -> Tensor:
    """Return kernel attention (B, H, T, D) of queries and keys that have their share of the scale,
    in fp32 or more.

    Args:
        queries_BHTD: The H / G heads that share a head of keys lie beside each other.
        keys_BGTD: Keys of G heads, each with its own random directions.
        values_BGTD: Values of the same heads as the keys.
        projection_GMD: Random directions of each head of keys, in any type.
        layer: Its number in the cache.
        segments_BT: Ascending numbers of packed documents.
        is_text_BT: False at padding.
        past: Cache; its sums are read and updated.
    """
    projection_GMD = projection_GMD.to(keys_BGTD.dtype)
    groups, length = keys_BGTD.shape[1:3]
    # The queries of a group lie beside each other, as if they were more positions.
    beside = queries_BHTD.unflatten(1, (groups, -1)).flatten(2, 3)
    return attend_by_features(
        query_features(beside, projection_GMD).unflatten(2, (-1, length)).flatten(1, 2),
        key_features(keys_BGTD, projection_GMD),
        values_BGTD,
        layer=layer,
        segments_BT=segments_BT,
        is_text_BT=is_text_BT,
        past=past,
    )


def attend_by_features(
    queries_BHTM: Tensor,
    keys_BGTM: Tensor,
    values_BGTD: Tensor,
    *,
    layer: int,
    segments_BT: Tensor | None,
    is_text_BT: Tensor | None,
    past: Cache | None,
) -> Tensor:
    """Return kernel attention (B, H, T, D) from features of queries and keys, in their dtype.

    Args:
        keys_BGTM: Features of the keys of G heads, each for H / G heads of the queries that lie
            beside each other.
        layer: Its number in the cache.
        segments_BT: Ascending numbers of packed documents.
        is_text_BT: False at padding.
        past: Cache; its sums (B, G, M, D + 1) are read and updated.
    """
    if is_text_BT is not None:
        keys_BGTM = keys_BGTM * is_text_BT[:, None, :, None]
    state = None if past is None else sum_before(past, layer)
    groups = keys_BGTM.shape[1]
    shared_by = queries_BHTM.shape[1] // groups
    if state is not None and queries_BHTM.shape[2] == 1:
        together = queries_BHTM.squeeze(2).unflatten(1, (groups, shared_by))
        attended, state = next_position(together, keys_BGTM, values_BGTD, state)
        attended = attended.flatten(1, 2).unsqueeze(2)
    else:
        attended, state = causal_attention(
            queries_BHTM,
            for_every_query(keys_BGTM, shared_by),
            for_every_query(values_BGTD, shared_by),
            segments_BT=segments_BT,
            state_BHME=None if state is None else for_every_query(state, shared_by),
        )
        if shared_by > 1:
            state = state[:, ::shared_by]
    if past is not None:
        past.update_recurrent_state(state, layer)
    return attended


def for_every_query(heads_BGXX: Tensor, shared_by: int) -> Tensor:
    """Repeat each head for the heads of queries that share it."""
    return heads_BGXX if shared_by == 1 else heads_BGXX.repeat_interleave(shared_by, dim=1)


def count_positions(embedded_BTD: Tensor, mask: Tensor | None, past: Cache | None) -> Tensor:
    """Return the positions, (B, T) or (1, T), counted from 0 at the first token that is no padding
    if a mask covers the whole text.
    """
    length = embedded_BTD.shape[1]
    if mask is not None and mask.ndim == 2 and (mask.shape[1] > length or num_read(past) == 0):
        return ((mask != 0).cumsum(-1) - 1).clamp(min=0)[:, -length:]
    start = num_read(past)
    return torch.arange(start, start + length, device=embedded_BTD.device)[None]


def number_segments(embedded_BTD: Tensor, packed_lengths: Tensor | None) -> Tensor | None:
    """Return the number of each position's document (B, T); None without packed documents."""
    if packed_lengths is None:
        return None
    rows, length = embedded_BTD.shape[:2]
    numbers_E = torch.arange(len(packed_lengths), device=packed_lengths.device)
    return (
        numbers_E.repeat_interleave(packed_lengths, output_size=length)
        .to(embedded_BTD.device)
        .expand(rows, length)
    )


def find_text(embedded_BTD: Tensor, mask: Tensor | None) -> Tensor | None:
    """Return whether each position is no padding (B, T); None without a mask."""
    if mask is None:
        return None
    return mask[:, -embedded_BTD.shape[1] :] != 0


def refuse_packed_with_cache(past: Cache | None, packed_lengths: Tensor | None) -> None:
    """Raise ValueError for packed documents and a cache."""
    if past is not None and packed_lengths is not None:
        raise ValueError(
            "packed documents are read whole, without a cache: leave out the cache and use_cache"
        )


def temperature_of(log_temperature: Tensor) -> Tensor:
    """Return the factor on cosines, at most `MOST_TEMPERATURE`, in fp32 or more."""
    return at_least_fp32(log_temperature).clamp(max=math.log(MOST_TEMPERATURE)).exp()


def at_least_fp32(each: Tensor) -> Tensor:
    """Return a tensor in fp32, or in fp64 where it is."""
    return each.to(torch.promote_types(each.dtype, torch.float32))
