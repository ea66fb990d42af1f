"""Causal attention from features, in time and memory linear in the length (Choromanski et al. 2021,
section 2.2 and appendix B.1), and the cache of it: one sum per layer, and the number of positions.

In fp32, or more where the features have more: running sums over thousands of positions lose small
terms in 16 bits.

Shapes: B rows, H heads, T positions, M features, D head size, N chunks, C positions of a chunk; E =
D + 1, values with their normaliser.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import Cache, DynamicCache, GenerationMixin, PreTrainedConfig

from brimful.base.types import JsonDict
from brimful.model.blocks import CACHE_NAME

CHUNK = 64
GROUP = 32
"""Number of chunks whose sums within documents are formed by one product; the work per chunk grows
with it.
"""


def causal_attention(
    queries_BHTM: Tensor,
    keys_BHTM: Tensor,
    values_BHTD: Tensor,
    *,
    segments_BT: Tensor | None = None,
    state_BHME: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """Return sum_s<=t (f(q_t) . f(k_s)) v_s / sum_s<=t f(q_t) . f(k_s), computed chunk by chunk.

    Inside a chunk the products are formed as in softmax attention; positions before it enter
    through a sum of M x E numbers. The backward pass keeps T x M features and that sum once per
    chunk: O(T M + T M D / C) numbers, where a sum per position would be O(T M D).

    Args:
        queries_BHTM: Features of queries, fp32 or more.
        keys_BHTM: Features of keys; zero at padding.
        values_BHTD: Values in the dtype of the features.
        segments_BT: Ascending numbers of the documents packed into a row, which attend only to
            themselves. None: a row is one document.
        state_BHME: Sum over the positions read before; of one document, so without `segments_BT`.
        chunk: C. From D on, memory is O(T M).

    Returns:
        Attended values (B, H, T, D), and the sum over all positions read (B, H, M, E), of the last
        document where there are several.

    Raises:
        ValueError: both `segments_BT` and `state_BHME`.
    """
    length = queries_BHTM.shape[2]
    ones_BHT1 = torch.ones_like(values_BHTD[..., :1])
    values_BHTE = torch.cat([values_BHTD, ones_BHT1], dim=-1)
    queries, keys, values = (
        _in_chunks(each, chunk) for each in (queries_BHTM, keys_BHTM, values_BHTE)
    )
    scores_BHNCC = (queries @ keys.transpose(-2, -1)).tril()
    if segments_BT is None:
        sums_BHNME = keys.transpose(-2, -1) @ values
        before_BHNME, state = _running(sums_BHNME, state_BHME)
        attended = scores_BHNCC @ values + queries @ before_BHNME
    else:
        if state_BHME is not None:
            raise ValueError(
                "packed documents are read whole: give segments_BT or state_BHME, not both"
            )
        attended, state = _within_segments(
            queries, keys, values, scores_BHNCC, _segments_in_chunks(segments_BT, chunk)
        )
    return _normalised(attended.flatten(2, 3)[:, :, :length]), state


def next_position(
    queries_BH1M: Tensor, keys_BH1M: Tensor, values_BH1D: Tensor, state_BHME: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `causal_attention` of one more position, in time and memory that do not depend on the
    number of earlier positions.
    """
    values_BH1E = torch.cat([values_BH1D, torch.ones_like(values_BH1D[..., :1])], dim=-1)
    state_BHME = torch.addcmul(state_BHME, keys_BH1M.mT, values_BH1E)
    return _normalised(queries_BH1M @ state_BHME), state_BHME


def _normalised(attended_BHTE: Tensor) -> Tensor:
    """Return (B, H, T, D); zeros at positions that see nothing, as padding before a text."""
    normaliser_BHT1 = attended_BHTE[..., -1:]
    normalised_BHTD: Tensor = attended_BHTE[..., :-1] / normaliser_BHT1.masked_fill(
        normaliser_BHT1 == 0, 1.0
    )
    return normalised_BHTD


def _in_chunks(each_BHTX: Tensor, chunk: int) -> Tensor:
    """Return (B, H, N, C, X); the last chunk is filled up with zeros."""
    length = each_BHTX.shape[2]
    if length <= chunk:
        return each_BHTX.unsqueeze(2)
    # F.pad copies even if nothing is missing. Compiled code does not, and has no guard on the
    # length.
    if torch.compiler.is_compiling() or length % chunk:
        each_BHTX = F.pad(each_BHTX, (0, 0, 0, -length % chunk))
    chunks_BHNCX: Tensor = each_BHTX.unflatten(2, (-1, chunk))
    return chunks_BHNCX


def _segments_in_chunks(segments_BT: Tensor, chunk: int) -> Tensor:
    """Return (B, N, C); the last chunk is filled up with the last document."""
    length = segments_BT.shape[1]
    if length <= chunk:
        return segments_BT.unsqueeze(1)
    segments_BNC: Tensor = torch.cat(
        [segments_BT, segments_BT[:, -1:].expand(-1, -length % chunk)], dim=1
    ).unflatten(1, (-1, chunk))
    return segments_BNC


def _before(each: Tensor, dim: int) -> Tensor:
    """Return each tensor shifted by one place along `dim`, with zeros at the first."""
    before: Tensor = F.pad(each, [0, 0] * (each.ndim - 1 - dim) + [1, -1])
    return before


def _running(sums_BHNME: Tensor, state_BHME: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the sums before each chunk, and after the last."""
    first = torch.zeros_like(sums_BHNME[:, :, 0]) if state_BHME is None else state_BHME
    upto = torch.cat([first.unsqueeze(2), sums_BHNME], dim=2).cumsum(2)
    return upto[:, :, :-1], upto[:, :, -1]


def _within_segments(
    queries: Tensor, keys: Tensor, values: Tensor, scores_BHNCC: Tensor, segments_BNC: Tensor
) -> tuple[Tensor, Tensor]:
    """Return attended values (B, H, N, C, E) and the last sum. Only the sum of the document in
    which the previous chunk ended is carried into a chunk.
    """
    last_BN = segments_BNC[..., -1]
    together_BNCC = segments_BNC[..., :, None] == segments_BNC[..., None, :]
    attended = (scores_BHNCC * together_BNCC[:, None]) @ values
    is_last_BNC = segments_BNC == last_BN[..., None]
    sums_BHNME = (keys * is_last_BNC[:, None, ..., None]).transpose(-2, -1) @ values
    upto_BHNME = _running_within(sums_BHNME.flatten(3), last_BN).unflatten(3, sums_BHNME.shape[3:])
    sees_BNC = segments_BNC == _before(last_BN, 1)[..., None]
    attended = attended + (queries * sees_BNC[:, None, ..., None]) @ _before(upto_BHNME, 2)
    return attended, upto_BHNME[:, :, -1]


def _running_within(sums_BHNX: Tensor, last_BN: Tensor) -> Tensor:
    """Return for each chunk the sum over the chunks up to it of the document in which it ends: a
    masked matrix product over groups of chunks, then over the groups.
    """
    chunks = last_BN.shape[1]
    if chunks <= GROUP:
        together_BNN = last_BN[:, :, None] == last_BN[:, None, :]
        return together_BNN.tril()[:, None].to(sums_BHNX.dtype) @ sums_BHNX
    missing = -chunks % GROUP
    last_BGN = F.pad(last_BN, (0, missing), value=-1).unflatten(1, (-1, GROUP))
    together_BGNN = last_BGN[..., :, None] == last_BGN[..., None, :]
    inside_BHGNX = together_BGNN.tril()[:, None].to(sums_BHNX.dtype) @ F.pad(
        sums_BHNX, (0, 0, 0, missing)
    ).unflatten(2, (-1, GROUP))
    ends_BG = last_BGN[..., -1]
    upto_BHGX = _running_within(inside_BHGNX[..., -1, :], ends_BG)
    goes_on_BGN = last_BGN == _before(ends_BG, 1)[..., None]
    carried_BHGNX = goes_on_BGN[:, None, ..., None] * _before(upto_BHGX, 2)[..., None, :]
    upto_BHNX: Tensor = (inside_BHGNX + carried_BHGNX).flatten(2, 3)
    return upto_BHNX[:, :, :chunks]


class RecurrentCache(DynamicCache):  # type: ignore[misc]
    """transformers' cache of recurrent layers, extended by the number of positions read, which
    `generate` needs.

    Args:
        config: The model's.
    """

    is_compileable = False  # the count is a number of Python's

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__(config=config)
        self.positions = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the positions read, the same for every layer."""
        del layer_idx
        return self.positions

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the number of positions that a mask covers, and the first of them."""
        del layer_idx
        return self.positions + query_length, 0

    def reset(self) -> None:
        """Forget what was read so far."""
        super().reset()
        self.positions = 0


class RecurrentGenerationMixin(GenerationMixin):  # type: ignore[misc]
    """transformers' `generate` with a cache that knows how many positions it has read."""

    config: PreTrainedConfig

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: JsonDict, *rest: Any, **others: Any
    ) -> None:
        is_given = model_kwargs.get(CACHE_NAME) is not None
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *rest, **others)
        is_recurrent = "linear_attention" in self.config.layer_types
        if is_recurrent and not is_given and model_kwargs.get(CACHE_NAME) is not None:
            model_kwargs[CACHE_NAME] = RecurrentCache(self.config)


def sum_before(cache: Cache, layer: int) -> Tensor | None:
    """Return the sum over the positions that a layer has read, (B, H, M, E); None before the
    first.
    """
    state: Tensor | None = cache.layers[layer].recurrent_states[0]
    return state


def num_read(cache: Cache | None) -> int:
    """Return the number of positions that a cache has read.

    Raises:
        ValueError: it holds a sum but not the number of positions.
    """
    if cache is None:
        return 0
    if isinstance(cache, RecurrentCache) or not cache.layers or hasattr(cache.layers[0], "keys"):
        return int(cache.get_seq_length())
    if sum_before(cache, 0) is not None:
        raise ValueError(
            "this cache does not know how much it has read: give position_ids, or make it a"
            " RecurrentCache"
        )
    return 0
