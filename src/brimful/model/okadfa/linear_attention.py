"""Causal attention from features, in time and memory linear in the length (Choromanski et al. 2021, section 2.2 and appendix B.1).

Everything in fp32: running sums over thousands of positions lose small terms in 16 bits.

Shapes: B rows, H heads, T positions, M features, D head size, N chunks, C positions of a chunk; E = D + 1, values with their normaliser.
"""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

CHUNK = 64


def causal_attention(
    queries_BHTM: Tensor,
    keys_BHTM: Tensor,
    values_BHTD: Tensor,
    *,
    segments_BT: Tensor | None = None,
    state_BHME: Tensor | None = None,
    chunk: int = CHUNK,
) -> tuple[Tensor, Tensor]:
    """sum_s<=t (f(q_t) . f(k_s)) v_s / sum_s<=t f(q_t) . f(k_s), chunk by chunk.

    Inside a chunk the products are formed as they are in softmax attention; what lies before it comes from a sum of M x E numbers. The backward
    pass keeps T x M features and that sum once per chunk: O(T M + T M D / C) numbers, where a sum per position would be O(T M D).

    Args:
        queries_BHTM: Features of queries, fp32.
        keys_BHTM: Features of keys, fp32; zero at padding.
        values_BHTD: fp32.
        segments_BT: Ascending numbers of the documents that lie end to end; each sees only itself. None: a row is one.
        state_BHME: What was read before; of one document, so without `segments_BT`.
        chunk: C. From D on, memory is O(T M).

    Returns:
        Attended values (B, H, T, D), and the sum over all positions read (B, H, M, E), of the last document where there are several.
    """
    length = queries_BHTM.shape[2]
    ones_BHT1 = torch.ones_like(values_BHTD[..., :1])
    values_BHTE = torch.cat([values_BHTD, ones_BHT1], dim=-1)
    queries, keys, values = (_in_chunks(each, chunk) for each in (queries_BHTM, keys_BHTM, values_BHTE))
    scores_BHNCC = (queries @ keys.transpose(-2, -1)).tril()
    if segments_BT is None:
        sums_BHNME = keys.transpose(-2, -1) @ values
        before_BHNME, state = _running(sums_BHNME, state_BHME)
        attended = scores_BHNCC @ values + queries @ before_BHNME
    else:
        segments_BNC = F.pad(segments_BT, (0, -length % chunk), mode="replicate").unflatten(1, (-1, min(chunk, length)))
        attended, state = _within_segments(queries, keys, values, scores_BHNCC, segments_BNC)
    return _normalised(attended.flatten(2, 3)[:, :, :length]), state


def next_position(queries_BH1M: Tensor, keys_BH1M: Tensor, values_BH1D: Tensor, state_BHME: Tensor) -> tuple[Tensor, Tensor]:
    """`causal_attention` of one more position: time and memory that do not depend on how many came before."""
    values_BH1E = torch.cat([values_BH1D, torch.ones_like(values_BH1D[..., :1])], dim=-1)
    state_BHME = state_BHME + keys_BH1M.transpose(-2, -1) * values_BH1E
    return _normalised(queries_BH1M @ state_BHME), state_BHME


def _normalised(attended_BHTE: Tensor) -> Tensor:
    """(B, H, T, D); zeros where nothing is seen, as at padding before a text."""
    normaliser_BHT1 = attended_BHTE[..., -1:]
    normalised_BHTD: Tensor = attended_BHTE[..., :-1] / normaliser_BHT1.masked_fill(normaliser_BHT1 == 0, 1.0)
    return normalised_BHTD


def _in_chunks(each_BHTX: Tensor, chunk: int) -> Tensor:
    """(B, H, N, C, X); zeros fill the last chunk up."""
    length = each_BHTX.shape[2]
    if length <= chunk:
        return each_BHTX.unsqueeze(2)
    chunks_BHNCX: Tensor = F.pad(each_BHTX, (0, 0, 0, -length % chunk)).unflatten(2, (-1, chunk))
    return chunks_BHNCX


def _running(sums_BHNME: Tensor, state_BHME: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums before each chunk, and after the last."""
    first = torch.zeros_like(sums_BHNME[:, :, 0]) if state_BHME is None else state_BHME
    upto = torch.cat([first.unsqueeze(2), sums_BHNME], dim=2).cumsum(2)
    return upto[:, :, :-1], upto[:, :, -1]


def _within_segments(queries: Tensor, keys: Tensor, values: Tensor, scores_BHNCC: Tensor, segments_BNC: Tensor) -> tuple[Tensor, Tensor]:
    """Attended values (B, H, N, C, E) and the last sum: what is carried into a chunk is of the document that its predecessor ended in."""
    last_BN = segments_BNC[..., -1]
    together_BNCC = segments_BNC[..., :, None] == segments_BNC[..., None, :]
    attended = (scores_BHNCC * together_BNCC[:, None]) @ values
    is_last_BNC = segments_BNC == last_BN[..., None]
    sums_BHNME = (keys * is_last_BNC[:, None, ..., None]).transpose(-2, -1) @ values
    goes_on_BN = last_BN[:, 1:] == last_BN[:, :-1]
    carried = [torch.zeros_like(sums_BHNME[:, :, 0]), sums_BHNME[:, :, 0]]
    for number in range(1, sums_BHNME.shape[2]):
        carried.append(sums_BHNME[:, :, number] + carried[-1] * goes_on_BN[:, number - 1, None, None, None])
    sees_BNC = torch.cat([torch.zeros_like(is_last_BNC[:, :1]), segments_BNC[:, 1:] == last_BN[:, :-1, None]], dim=1)
    before = torch.stack(carried[:-1], dim=2)
    return attended + (queries * sees_BNC[:, None, ..., None]) @ before, carried[-1]
