"""Kernel attention inside a model of transformers: from queries and keys to attended values, with
packed documents, padding and a cache.

Shapes: B rows, T positions, H heads of queries, G heads of keys and values, M features, D head size
(hidden size where a tensor has no heads), E packed documents.
"""

import math

import torch
from torch import Tensor
from transformers import Cache

from brimful.model.attention import NAME as BLOCKS
from brimful.model.okadfa.features import key_features, query_features
from brimful.model.okadfa.linear_attention import causal_attention, next_position
from brimful.model.okadfa.recurrent_cache import num_read, sum_before

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
