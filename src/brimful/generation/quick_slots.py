"""Keys and values of the rows of a model with `quick_blocks`, in bf16.

Rows that stand together share a bank, which is as long as its longest row needs: attention reads no
further, and reads it as it lies. The products of attention give the same bits however long the bank
is and however many rows it has, so a text does not depend on its neighbours.

Shapes: B rows in use, N rows of a bank in use, L layers, H key/value heads, G queries of each, S
positions of a bank, T positions of a prompt, D head size, P prompts, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin

from brimful.generation.forward import Forward
from brimful.generation.slots import Prefilled, fill_gaps
from brimful.planning.drawing import BANK_ROWS, BANK_STEP, PROMPTS, QUICK_PROMPT_TOKENS

SHRINKS_BY = 128
"""A bank that is longer than needed by so many positions is made shorter."""


class PackedPrompts(DynamicCache):  # type: ignore[misc]
    """Keys and values of prompts that follow each other in one row.

    Args:
        lengths: Tokens of each.
    """

    def __init__(self, lengths: list[int]) -> None:
        super().__init__()
        self.lengths = lengths


@dataclass
class _Look:
    """What a bank's rows do in one step: where their new positions are, and what is added to their
    scores, -inf where a row ends before.
    """

    rows: slice
    row_N: Tensor
    position_N: Tensor
    mask_N11S: Tensor


@dataclass
class _Banks:
    """All banks, keys and values of all layers in one tensor each: (L, 2, rows, H, S, D)."""

    stores: list[Tensor] = field(default_factory=list)
    looks: list[_Look] = field(default_factory=list)


class BankLayer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's part of the banks."""

    def __init__(self, banks: _Banks, number: int) -> None:
        super().__init__()
        self._banks, self._number = banks, number

    def attend(self, query_BQD: Tensor, key_BHD: Tensor, value_BHD: Tensor, scale: float) -> Tensor:
        """Take one more position per row, and look from there at all of the row: (B, Q x D), where
        Q are the heads of the queries.
        """
        parts = []
        for store, look in zip(self._banks.stores, self._banks.looks, strict=True):
            rows, heads = len(look.row_N), key_BHD.shape[1]
            keys_NHSD, values_NHSD = (each[:rows] for each in store[self._number])
            keys_NHSD[look.row_N, :, look.position_N] = key_BHD[look.rows]
            values_NHSD[look.row_N, :, look.position_N] = value_BHD[look.rows]
            query = query_BQD[look.rows].reshape(rows * heads, -1, query_BQD.shape[-1])
            scores = torch.bmm(keys_NHSD.flatten(0, 1), query.transpose(1, 2))
            scores_NHGS = scores.unflatten(0, (rows, heads)).transpose(2, 3)
            seen_NHGS = torch.empty(scores_NHGS.shape)
            torch.add(look.mask_N11S, scores_NHGS, alpha=scale, out=seen_NHGS)
            weights = seen_NHGS.softmax(-1).to(torch.bfloat16).flatten(0, 1)
            parts.append(torch.bmm(weights, values_NHSD.flatten(0, 1)).view(rows, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: banks are made where rows enter."""

    def update(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Refuse: only the attention of quick blocks can read banks."""
        raise RuntimeError("banks of keys are read by quick blocks only")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """No mask of the model's own is used."""
        return query_length, 0

    def get_seq_length(self) -> int:
        """Rows differ; positions are always given."""
        return 0

    def get_max_length(self) -> int:
        """None."""
        return -1


class QuickSlots:
    """The cache of a model whose blocks are quick ones.

    Args:
        forward: The model.
    """

    waits_for_share = 16
    """New rows are let in when one row in so many is free: each time costs a pass over their
    prompts.
    """
    keeps_prefills = True
    """Prompts that were read can enter rows again later, without being read again."""
    most_prompts, most_prompt_tokens = PROMPTS, QUICK_PROMPT_TOKENS
    """Most prompts and tokens of one pass over prompts; no padding fills it up. Larger passes leave
    the CPU's cache.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._banks = _Banks()
        self._lengths: list[int] = []
        self._awaited_rows = 0
        self._cache = Cache(layers=[])

    def prefill(self, windows: Sequence[Sequence[int]]) -> Prefilled:
        """Read prompts one behind the other, as one row; each sees itself only."""
        lengths = [len(window) for window in windows]
        cache = PackedPrompts(lengths)
        logits = self._forward(
            torch.tensor([[token for window in windows for token in window]]),
            cache,
            positions_BT=torch.cat([torch.arange(length) for length in lengths])[None],
            seen_BS=_UNSEEN,
            at_P=torch.tensor(lengths).cumsum(0) - 1,
        )
        return Prefilled(logits[0], lengths, cache)

    def await_rows(self, rows: int) -> None:
        """Make banks of so many rows when they are made next: these are about to enter."""
        self._awaited_rows = rows

    def enter(self, read: Prefilled, sources: Sequence[int]) -> None:
        """Add rows that go on from prompts: row i from prompt sources[i]; equal ones stand
        together.
        """
        layers = read.cache.layers
        while len(self._cache.layers) < len(layers):
            self._cache.layers.append(BankLayer(self._banks, len(self._cache.layers)))
        first = len(self._lengths)
        self._lengths += [read.lengths_P[source] for source in sources]
        for source, same in groupby(sources):
            start = sum(read.lengths_P[:source])
            where = slice(start, start + read.lengths_P[source])
            prompt_L2HTD = torch.stack(
                [torch.stack((one.keys[0, :, where], one.values[0, :, where])) for one in layers]
            )
            last = first + len(list(same))
            while first < last:
                bank, row = divmod(first, BANK_ROWS)
                end = min(BANK_ROWS, row + last - first)
                if bank == len(self._banks.stores):
                    heads, size = prompt_L2HTD.shape[2], prompt_L2HTD.shape[4]
                    empty = _empty(len(layers), 0, heads, self._needed(bank), size)
                    self._banks.stores.append(empty)
                self._fit(bank, end)
                store = self._banks.stores[bank]
                store[:, :, row:end, :, : prompt_L2HTD.shape[3]] = prompt_L2HTD[:, :, None]
                first += end - row

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Read one more token per row: logits_BV."""
        position_B = torch.tensor(self._lengths)
        self._banks.looks = []
        for bank in range(len(self._banks.stores)):
            self._fit(bank)
            rows = slice(bank * BANK_ROWS, min((bank + 1) * BANK_ROWS, len(self._lengths)))
            position_N = position_B[rows]
            seen_NS = torch.arange(self._banks.stores[bank].shape[4]) <= position_N[:, None]
            mask_NS = torch.zeros(seen_NS.shape).masked_fill_(~seen_NS, float("-inf"))
            look = _Look(rows, torch.arange(len(position_N)), position_N, mask_NS[:, None, None])
            self._banks.looks.append(look)
        logits_BV = self._forward(
            torch.tensor(tokens)[:, None],
            self._cache,
            positions_BT=position_B[:, None],
            seen_BS=_UNSEEN,
        )[:, -1]
        self._lengths = [length + 1 for length in self._lengths]
        return logits_BV

    def leave(self, leaving: Sequence[int]) -> list[int]:
        """Free rows. The last rows take their places: gives back the old place of every row that is
        left.
        """
        order = fill_gaps(self._lengths, leaving, self._move)
        del self._banks.stores[-(-len(self._lengths) // BANK_ROWS) :]
        return order

    def _move(self, source: int, target: int) -> None:
        length = self._lengths[source]
        self._lengths[target] = length
        (from_bank, from_row), (bank, row) = divmod(source, BANK_ROWS), divmod(target, BANK_ROWS)
        self._fit(bank)
        store, old = self._banks.stores[bank], self._banks.stores[from_bank]
        store[:, :, row, :, :length] = old[:, :, from_row, :, :length]

    def _needed(self, bank: int) -> int:
        """Return the positions that a bank's rows take with one more token."""
        longest = max(self._lengths[bank * BANK_ROWS : (bank + 1) * BANK_ROWS]) + 1
        return -(-longest // BANK_STEP) * BANK_STEP

    def _fit(self, bank: int, rows: int = 0) -> None:
        """Give a bank the positions that it needs, and so many rows at least."""
        old, needed = self._banks.stores[bank], self._needed(bank)
        layers, _, most, heads, stored, size = old.shape
        if rows <= most and needed <= stored < needed + SHRINKS_BY:
            return
        if rows > most:
            rows = max(rows, min(BANK_ROWS, self._awaited_rows - bank * BANK_ROWS))
        new, kept = _empty(layers, max(rows, most), heads, needed, size), min(stored, needed)
        new[:, :, :most, :, :kept] = old[..., :kept, :]
        self._banks.stores[bank] = new


def _empty(layers: int, rows: int, heads: int, positions: int, size: int) -> Tensor:
    """Return an empty bank."""
    return torch.zeros(layers, 2, rows, heads, positions, size, dtype=torch.bfloat16)


_UNSEEN = torch.ones(1, 1, dtype=torch.bool)
"""What is passed in place of a mask, so that the model makes none; quick blocks look at none."""
