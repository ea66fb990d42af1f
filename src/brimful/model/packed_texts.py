"""Encoders over packed texts: texts lie end to end in one row, each attends only to itself and to
both sides, so nothing is computed on padding and rows have few lengths.

Projections, norms and MLPs see the row. Attention sees texts of similar length side by side; the
positions that fill them up there cost little, because at these lengths scores are a small part of
the work.

Shapes: H heads, N positions of the row, D head size, G texts of a group, W positions of its longest
text, B texts of the row, C labels, T positions of a text, S = G H W rows of heads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from brimful.model.quick_layers import keep, kept_of

NAME = "brimful_texts"
LEAST_SHARE = 0.65
"""A text joins a group if it has at least this share of the positions of the group's longest. The
last piece of what fills a row may be shorter. 16 sentences of SST-2, 12 heads of 32, forward and
backward with dropout, ms at 0.1, 0.5, 0.65 and 0.85: 13.2, 7.0, 6.1 and 6.2.
"""


def register() -> None:
    """Register attention within packed texts with transformers, as `attn_implementation`."""
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)


@dataclass(frozen=True, eq=False)
class TextGroup:
    """Consecutive texts of a row, side by side for attention.

    Attributes:
        begin: First of their heads among the N x H of the row.
        end: The one after their last.
        texts: G.
        width: W.
        sources_S: int64, which head of the row each place takes; N x H for padding.
        places: int64, (end - begin,): where each of their heads lies among the S places.
        hidden_G11W: float32, -inf where a key is padding, else 0; None: there is no padding.
    """

    begin: int
    end: int
    texts: int
    width: int
    sources_S: Tensor
    places: Tensor
    hidden_G11W: Tensor | None


@lru_cache(maxsize=16)
def groups_of(lengths_B: tuple[int, ...], heads: int) -> tuple[TextGroup, ...]:
    """Return the groups of the texts of a row.

    Args:
        lengths_B: Their lengths in order; equal or falling ones make the fewest groups.
        heads: H.
    """
    groups: list[TextGroup] = []
    row = sum(lengths_B) * heads
    for lengths in _similar(lengths_B):
        groups.append(_group(groups[-1].end if groups else 0, lengths, heads, row))
    return tuple(groups)


def _similar(lengths_B: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    for number, length in enumerate(lengths_B, 1):
        is_last = number == len(lengths_B) and length < min(group, default=0)
        if group and not is_last and min(*group, length) < LEAST_SHARE * max(*group, length):
            yield group
            group = []
        group.append(length)
    yield group


def _group(begin: int, lengths: Sequence[int], heads: int, row: int) -> TextGroup:
    texts, width = len(lengths), max(lengths)
    is_text_GW = torch.arange(width) < torch.tensor(lengths)[:, None]
    texts_N, places_N = is_text_GW.nonzero().unbind(1)
    places = (texts_N[:, None] * heads + torch.arange(heads)) * width + places_N[:, None]
    places = places.flatten()
    sources_S = torch.full((texts * heads * width,), row)
    sources_S[places] = torch.arange(begin, begin + len(places))
    hidden_G11W = None
    if min(lengths) < width:
        hidden_GW = torch.zeros(texts, width).masked_fill_(~is_text_GW, -torch.inf)
        hidden_G11W = hidden_GW[:, None, None]
    return TextGroup(begin, begin + len(places), texts, width, sources_S, places, hidden_G11W)


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend within each text of a row, or within whole rows without `packed_lengths`.

    The signature is that of attention functions in transformers: (B, H, T, D) in, (B, T, H, D) out.
    """
    packed_lengths = others.get("packed_lengths")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    dropout = dropout if module.training else 0.0
    if packed_lengths is None:
        attended_BHTD = F.scaled_dot_product_attention(
            query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scale
        )
        return attended_BHTD.transpose(1, 2).contiguous(), None
    lengths_B = tuple(packed_lengths.tolist())
    queries_NHD, keys_NHD, values_NHD = (heads.transpose(1, 2)[0] for heads in (query, key, value))
    attended_NHD = attend_within(
        queries_NHD, keys_NHD, values_NHD, lengths_B, scale=scale, dropout=dropout
    )
    return attended_NHD[None], None


def attend_within(
    queries_NHD: Tensor,
    keys_NHD: Tensor,
    values_NHD: Tensor,
    lengths_B: tuple[int, ...],
    *,
    scale: float,
    dropout: float = 0.0,
) -> Tensor:
    """Return softmax(scale * Q K^T) V of each text of a row, in the values' dtype; scores and their
    softmax are fp32.

    Args:
        queries_NHD: Texts end to end.
        keys_NHD: Keys, as many heads as the queries have.
        values_NHD: Values, as many heads as the queries have.
        lengths_B: Lengths of the texts, adding up to N.
        scale: Factor on the scores.
        dropout: Probability of dropping an attention weight.

    Returns:
        Attended values (N, H, D).
    """
    groups = groups_of(lengths_B, queries_NHD.shape[1])
    with torch.autocast(queries_NHD.device.type, enabled=False):
        attended_NHD: Tensor = _AttentionWithin.apply(
            queries_NHD, keys_NHD, values_NHD, groups, scale, dropout
        )  # type: ignore[no-untyped-call]
    return attended_NHD


def _in_rows(heads_NHD: Tensor) -> Tensor:
    """Return heads in fp32 or more, one below the other, and a row of zeros that padding takes:
    (N H + 1, D).
    """
    precise = torch.promote_types(heads_NHD.dtype, torch.float32)
    num_rows, size = heads_NHD[..., 0].numel(), heads_NHD.shape[-1]
    rows = heads_NHD.new_empty(num_rows + 1, size, dtype=precise)
    rows[:-1].view(heads_NHD.shape).copy_(heads_NHD)
    rows[-1].zero_()
    return rows


def _side_by_side(rows: Tensor, group: TextGroup) -> Tensor:
    """Return the texts of a group: (G H, W, D)."""
    taken_SD = rows.index_select(0, group.sources_S)
    return taken_SD.view(-1, group.width, taken_SD.shape[1])


def _end_to_end(side_by_side: Tensor, group: TextGroup, rows: Tensor) -> None:
    """Write what lies side by side, (G H, W, D), where it belongs in the rows of the whole row."""
    torch.index_select(
        side_by_side.flatten(0, 1), 0, group.places, out=rows[group.begin : group.end]
    )


class _AttentionWithin(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries_NHD: Tensor,
        keys_NHD: Tensor,
        values_NHD: Tensor,
        groups: Sequence[TextGroup],
        scale: float,
        dropout: float,
    ) -> Tensor:
        rows = [_in_rows(each) for each in (queries_NHD, keys_NHD, values_NHD)]
        rows[0].mul_(scale)
        attended = rows[0].new_empty(len(rows[0]) - 1, rows[0].shape[1])
        saved: list[Tensor | None] = []
        for group in groups:
            queries, keys, values = (_side_by_side(each, group) for each in rows)
            scores = torch.bmm(queries, keys.mT)
            if group.hidden_G11W is not None:
                scores.unflatten(0, (group.texts, -1)).add_(group.hidden_G11W)
            weights = torch.softmax(scores, dim=-1)
            is_kept, used = None, weights
            if dropout:
                is_kept, ctx.factor = kept_of(weights.shape, dropout, weights.device)
                used = keep(weights, is_kept, ctx.factor)
            _end_to_end(torch.bmm(used, values), group, attended)
            saved += [queries, keys, values, weights, is_kept]
        ctx.save_for_backward(*saved)
        ctx.scale, ctx.groups, ctx.dtype = scale, groups, queries_NHD.dtype
        return attended.view(values_NHD.shape).to(values_NHD.dtype)

    @staticmethod
    def backward(
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        shape, rows = grad_outputs[0].shape, _in_rows(grad_outputs[0])
        made = [torch.empty_like(rows[:-1]) for _ in range(3)]
        saved = ctx.saved_tensors  # once: what blocks compute again can be had once
        for number, group in enumerate(ctx.groups):
            queries, keys, values, weights, is_kept = saved[5 * number : 5 * number + 5]
            grad = _side_by_side(rows, group)
            used, grad_weights = weights, torch.bmm(grad, values.mT)
            if is_kept is not None:
                used = keep(weights, is_kept, ctx.factor)
                grad_weights = keep(grad_weights, is_kept, ctx.factor)
            grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
            gradients = (
                torch.bmm(grad_scores, keys),
                torch.bmm(grad_scores.mT, queries),
                torch.bmm(used.mT, grad),
            )
            for gradient, into in zip(gradients, made, strict=True):
                _end_to_end(gradient, group, into)
        made[0].mul_(ctx.scale)
        queries, keys, values = (each.view(shape).to(ctx.dtype) for each in made)
        return queries, keys, values, None, None, None


def logits_of_packed(
    model: PreTrainedModel, inputs_1N: Tensor, lengths: Tensor, texts: int
) -> Tensor:
    """Return the logits (B, C) of texts that lie end to end in a row.

    Args:
        model: A classifier of a type in `description.PACKABLE_ENCODERS`, with the attention of this
            module.
        inputs_1N: Token ids.
        lengths: int64 on the CPU, of the texts and of what fills the row.
        texts: B; what comes after them fills the row.
    """
    encoder = _ENCODERS[model.config.model_type]
    lengths_B = lengths.tolist()
    begins = [0, *accumulate(lengths_B)][:texts]
    positions_N = torch.cat([torch.arange(length) for length in lengths_B])
    states_ND = model.base_model(
        input_ids=inputs_1N,
        position_ids=(positions_N + encoder.first_position(model))[None].to(inputs_1N.device),
        packed_lengths=lengths,
    ).last_hidden_state[0]
    first_BD = states_ND[torch.tensor(begins, device=states_ND.device)]
    if getattr(model.config, "classifier_pooling", "cls") == "mean":
        whole = states_ND[: begins[-1] + lengths_B[texts - 1]].split(lengths_B[:texts])
        first_BD = torch.stack([states_TD.mean(0) for states_TD in whole])
    logits_BC: Tensor = encoder.head(model, first_BD)
    return logits_BC


@dataclass(frozen=True)
class _Encoder:
    """What classifiers of a type do around their blocks.

    Attributes:
        head: Model and pooled states (B, D) -> logits (B, C).
        first_position: Model -> number of a text's first position.
    """

    head: Callable[[Any, Tensor], Tensor]
    first_position: Callable[[Any], int] = lambda model: 0


def _by_pooler(model: Any, first_BD: Tensor) -> Tensor:
    pooled_BD = model.base_model.pooler(first_BD[:, None])
    logits_BC: Tensor = model.classifier(model.dropout(pooled_BD))
    return logits_BC


def _by_head(model: Any, first_BD: Tensor) -> Tensor:
    logits_BC: Tensor = model.classifier(first_BD[:, None])
    return logits_BC


def _by_layers(model: Any, pooled_BD: Tensor) -> Tensor:
    logits_BC: Tensor = model.classifier(model.drop(model.head(pooled_BD)))
    return logits_BC


def _after_padding(model: Any) -> int:
    """RoBERTa's positions begin after the padding token's."""
    return int(model.base_model.embeddings.padding_idx) + 1


_ENCODERS: Mapping[str, _Encoder] = {
    "bert": _Encoder(_by_pooler),
    "electra": _Encoder(_by_head),
    "modernbert": _Encoder(_by_layers),
    "roberta": _Encoder(_by_head, _after_padding),
    "xlm-roberta": _Encoder(_by_head, _after_padding),
}
"""Encoders by `model_type`, those of `description.PACKABLE_ENCODERS`."""
