"""Attention of packed rows: several examples lie end to end and each attends only to itself, so no
positions are spent on padding.

Their lengths come as `packed_lengths`, a keyword argument that transformers passes from the body's
forward to the attention function (checked with transformers 5.23, 2026-11-21). Examples are
computed by one call where CUDA's flash kernel takes their lengths, else one by one, because a mask
over the whole row would cost the square of its length.

Shapes: B rows, H heads, T positions of a row, L positions of an example, D head size, E examples of
a row.
"""

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
    masking_utils,
)
from transformers.masking_utils import sdpa_mask

from brimful.hardware.probe import moved
from brimful.model.attention import BLOCK_ROWS, LONGEST, block_causal_attention, for_every_head

NAME = "brimful_packed"


def register() -> None:
    """Register packed attention with transformers as a value of `attn_implementation`.

    The function is not compiled: the number of examples in a row and their lengths always change,
    and each change would be compiled again.
    """
    AttentionInterface.register(NAME, torch.compiler.disable(_attend))
    AttentionMaskInterface.register(NAME, _mask)


@contextmanager
def rows_not_searched() -> Iterator[None]:
    """Keep transformers from asking by position ids whether a row holds several sequences, for
    which the program would wait for the device once a pass (`find_packed_sequence_indices`, read in
    transformers 5.23, 2026-11-29): what lies in a row is known here.
    """
    find = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = find


def attends_within(model: PreTrainedModel) -> bool:
    """Return whether a model attends by this module, which keeps the examples of a packed row apart
    by their lengths.
    """
    return bool(model.config.get_text_config(decoder=True)._attn_implementation == NAME)


@contextmanager
def unpacked_attention(model: PreTrainedModel) -> Iterator[None]:
    """Give a model with this module's attention torch's own (sdpa) meanwhile: the quick generation
    blocks support no other.
    """
    config = model.config.get_text_config(decoder=True)
    kept = config._attn_implementation
    if attends_within(model):
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = kept


def _mask(
    *, q_length: int, kv_length: int, attention_mask: Tensor | None = None, **rest: Any
) -> Tensor | None:
    """Return None for whole rows, which need only the causal mask; for rows with padding or a cache
    the mask of torch's fused attention.
    """
    if attention_mask is None and q_length == kv_length:
        return None
    mask: Tensor | None = sdpa_mask(
        q_length=q_length,
        kv_length=kv_length,
        attention_mask=attention_mask,
        **(rest | {"allow_is_causal_skip": False}),
    )
    return mask


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
    """Attend within each example of a row, or within whole rows without `packed_lengths`.

    The signature is that of attention functions in transformers: (B, H, T, D) in, (B, T, H, D) out.
    """
    if others.get("s_aux") is not None or others.get("position_bias") is not None:
        raise ValueError(
            "packed attention supports neither attention sinks nor position biases; train this"
            " model with"
            " plan.packing=padded"
        )
    packed_lengths, packed_after = others.get("packed_lengths"), others.get("packed_after")
    kernel = _Kernel(
        # Lengths say all; OPT of transformers 5.17 adds a mask that hides nothing.
        mask=attention_mask if packed_lengths is None else None,
        window=others.get("sliding_window"),
        softcap=others.get("softcap"),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        dropout=dropout if module.training else 0.0,
    )
    query, key = query.to(value.dtype), key.to(value.dtype)
    if packed_lengths is None:
        return kernel.attend(query, key, value).contiguous(), None
    lengths_E = [length for length in packed_lengths.tolist() if length]
    if packed_after is not None:
        after_E = packed_after.tolist()[: len(lengths_E)]
        return kernel.attend_after(query, key, value, lengths_E, after_E), None
    return kernel.attend_within(query, key, value, lengths_E), None


@dataclass(frozen=True)
class _Kernel:
    """Causal attention by the fastest kernel that supports the model's settings; (B, H, T, D) in,
    (B, T, H, D) out.
    """

    mask: Tensor | None
    window: int | None
    softcap: float | None
    scale: float
    dropout: float

    def attend_within(
        self, query: Tensor, key: Tensor, value: Tensor, lengths_E: list[int]
    ) -> Tensor:
        """Attend within examples that lie end to end. The result is a tensor of its own, because
        the compiler checks the base of a view and would compile again.
        """
        if self._takes_blocks(value, max(lengths_E)):
            return self._by_blocks(query, key, value, lengths_E).clone(
                memory_format=torch.contiguous_format
            )
        if self.softcap is None and _has_flash_kernel(query, key, value, self.dropout):
            return self.by_lengths(query, key, value, lengths_E)
        examples = zip(
            *(heads.split(lengths_E, dim=2) for heads in (query, key, value)), strict=True
        )
        return torch.cat([self.attend(*heads) for heads in examples], dim=1)

    def attend_after(
        self, query: Tensor, key: Tensor, value: Tensor, lengths_E: list[int], after_E: list[int]
    ) -> Tensor:
        """Attend within examples, each of which may go on from an earlier one."""
        queries, keys, values = (heads.split(lengths_E, dim=2) for heads in (query, key, value))
        attended = []
        for number, after in enumerate(after_E):
            seen = [number] if after < 0 else [after, number]
            key, value = (torch.cat([each[n] for n in seen], 2) for each in (keys, values))
            attended.append(self.attend(queries[number], key, value))
        return torch.cat(attended, dim=1)

    def by_lengths(self, query: Tensor, key: Tensor, value: Tensor, lengths_E: list[int]) -> Tensor:
        """Attend within examples by one call of the flash kernel, which takes grouped heads.

        The operator is what `torch.nn.attention.varlen` calls, whose arguments for grouped heads
        differ between torch 2.11 and 2.13 (read there, 2026-11-28).
        """
        starts_E, longest = _starts(tuple(lengths_E), query.device), max(lengths_E)
        left = -1 if self._sees_all(longest) or self.window is None else self.window - 1
        attended_THD: Tensor = torch.ops.aten._flash_attention_forward(
            *(heads[0].transpose(0, 1) for heads in (query, key, value)),
            starts_E,
            starts_E,
            longest,
            longest,
            self.dropout,
            True,
            False,
            scale=self.scale,
            window_size_left=left,
            window_size_right=0,
        )[0]
        return attended_THD[None]

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend within whole rows, whose keys may begin before the queries."""
        length = key.shape[2]
        before = length - query.shape[2]
        if self._takes_blocks(value, length, before):
            return self._by_blocks(query, key, value, [length])
        mask = self.mask
        if mask is None and (before or self.softcap is not None or not self._sees_all(length)):
            window = None if self._sees_all(length) else self.window
            mask = _visible(length, window, query.device)[before:]
        if mask is not None and self.softcap is not None:
            return self._from_scores(query, *for_every_head(query, key, value), mask, self.softcap)
        is_grouped = mask is None and _has_flash_kernel(query, key, value, self.dropout)
        key, value = (key, value) if is_grouped else for_every_head(query, key, value)
        attended_BHTD = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            dropout_p=self.dropout,
            is_causal=mask is None,
            scale=self.scale,
            enable_gqa=is_grouped,
        )
        return attended_BHTD.transpose(1, 2)

    def _by_blocks(self, query: Tensor, key: Tensor, value: Tensor, lengths_E: list[int]) -> Tensor:
        key, value = for_every_head(query, key, value)
        return block_causal_attention(
            query, key, value, scale=self.scale, dropout=self.dropout, lengths_E=lengths_E
        ).transpose(1, 2)

    def _from_scores(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, softcap: float
    ) -> Tensor:
        scores = torch.tanh(query @ key.transpose(2, 3) * (self.scale / softcap)) * softcap
        weights = torch.softmax(
            scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=-1, dtype=torch.float32
        ).to(value.dtype)
        return (F.dropout(weights, self.dropout) @ value).transpose(1, 2)

    def _sees_all(self, length: int) -> bool:
        return self.window is None or length <= self.window

    def _takes_blocks(self, heads: Tensor, longest: int, before: int = 0) -> bool:
        """Return whether blocks are used, which are faster than torch's fused kernel on CPUs at
        these lengths (docs/log), in fp32 only where queries begin with the keys.
        """
        is_plain = self.mask is None and self.softcap is None and self._sees_all(longest)
        if not is_plain or heads.device.type != "cpu" or longest > LONGEST:
            return False
        if heads.dtype == torch.float32:
            return longest > BLOCK_ROWS and not before
        return heads.dtype == torch.bfloat16


@functools.lru_cache(maxsize=2)
def _starts(lengths_E: tuple[int, ...], device: torch.device) -> Tensor:
    """Return where examples begin and the last one ends: int32, (E + 1,). All layers of a pass have
    the same, and copying them without a wait takes pinned memory.
    """
    starts_E = torch.tensor([0, *itertools.accumulate(lengths_E)], dtype=torch.int32)
    return moved(starts_E, device)


def _visible(length: int, window: int | None, device: torch.device) -> Tensor:
    """Return whether query row q may see key k: (L, L)."""
    visible = torch.ones(length, length, dtype=torch.bool, device=device).tril_()
    if window is not None:
        visible.triu_(1 - window)
    return visible


def _has_flash_kernel(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> bool:
    """Return whether CUDA's flash kernel supports these inputs; it is the only kernel that takes
    grouped heads without repeating them (see `attention.EXPANDED`).
    """
    if query.device.type != "cuda":
        return False
    return bool(
        torch.backends.cuda.can_use_flash_attention(
            torch.backends.cuda.SDPAParams(query, key, value, None, dropout, True, True)
        )
    )
