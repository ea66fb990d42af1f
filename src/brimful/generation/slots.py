"""Keys and values of many rows in slots that stay: rows enter and leave, and nothing else is
copied.

Shapes: R slots for rows, B rows in use (the first ones), H key/value heads, S positions in store, T
positions in use, D head size, P prompts, L positions of the longest prompt, V vocabulary.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from brimful.generation.forward import Forward
from brimful.planning.drawing import PROMPTS, STORE_STEP

ALIGNMENT = 16
"""Positions that attention looks at are a multiple of this: fewer shapes, and masks that kernels
take as they are.
"""
PREFILL_TOKENS = 4096
"""Most tokens of one pass over prompts, filled up to the longest. Logits are computed at every
length that occurs, so more prompts take more memory.
"""


@dataclass(frozen=True)
class Prefilled:
    """Prompts that were read together.

    Attributes:
        logits_PV: Logits after each prompt.
        lengths_P: Tokens of each.
        cache: What the model kept, one row per prompt.
    """

    logits_PV: Tensor
    lengths_P: list[int]
    cache: Any


class _Layer(CacheLayerMixin):  # type: ignore[misc]
    """One layer's store. Every row's new key and value go to its own position."""

    def __init__(self, place: "_Place") -> None:
        super().__init__()
        self._place = place
        self.keys: Tensor
        self.values: Tensor

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make an empty store for rows like these."""
        self.keys, self.values = (self._empty(like) for like in (key_states, value_states))
        self.is_initialized = True

    def _empty(self, like_BHTD: Tensor) -> Tensor:
        return like_BHTD.new_zeros(
            self._place.stored_rows,
            like_BHTD.shape[1],
            self._place.stored_positions,
            like_BHTD.shape[3],
        )

    def grow(self, rows: int) -> None:
        """Move the first rows into a store of the new size."""
        self.keys = self._moved(self.keys, rows)
        self.values = self._moved(self.values, rows)

    def _moved(self, old_RHSD: Tensor, rows: int) -> Tensor:
        new_RHSD = self._empty(old_RHSD)
        kept = min(old_RHSD.shape[2], new_RHSD.shape[2])
        new_RHSD[:rows, :, :kept] = old_RHSD[:rows, :, :kept]
        return new_RHSD

    def put(self, rows: slice, keys_PHLD: Tensor, values_PHLD: Tensor, source_B: Tensor) -> None:
        """Copy prompts' keys and values to rows; what stands behind a shorter prompt is written
        over before it is seen.
        """
        if not self.is_initialized:
            self.lazy_initialization(keys_PHLD, values_PHLD)
        for store, read in ((self.keys, keys_PHLD), (self.values, values_PHLD)):
            store[rows, :, : read.shape[2]] = read[source_B]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy a row onto another."""
        for store in (self.keys, self.values):
            store[target, :, :length] = store[source, :, :length]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take one more position per row (B, H, 1, D); gives back all (B, H, T, D)."""
        del args, kwargs
        place = self._place
        self.keys[place.row_B, :, place.position_B] = key_states[:, :, 0]
        self.values[place.row_B, :, place.position_B] = value_states[:, :, 0]
        rows = len(place.row_B)
        return self.keys[:rows, :, : place.reach], self.values[:rows, :, : place.reach]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Positions in use, from the first."""
        del query_length
        return self._place.reach, 0

    def get_seq_length(self) -> int:
        """The query stands at the last position in use, as far as the model's own causal mask is
        concerned; the real one hides the rest.
        """
        return self._place.reach - 1

    def get_max_length(self) -> int:
        """None."""
        return -1


@dataclass
class _Place:
    """Where the rows' next tokens go; shared by all layers."""

    row_B: Tensor
    position_B: Tensor
    reach: int = 0
    stored_rows: int = 0
    stored_positions: int = 0


def fill_gaps(
    lengths: list[int], leaving: Sequence[int], move: Callable[[int, int], None]
) -> list[int]:
    """Take rows out, so that the others stand together: the last ones move into the gaps.

    Args:
        lengths: Lengths of all rows; shortened in place.
        leaving: Rows that are taken out.
        move: Moves a row to another place, which takes its length, too.

    Returns:
        The old place of every row that is left.
    """
    order = list(range(len(lengths)))
    for gap in sorted(leaving, reverse=True):
        last = len(order) - 1
        if gap != last:
            move(last, gap)
            order[gap] = order[last]
        order.pop()
        lengths.pop()
    return order


class Slots:
    """The cache of a model whose layers all keep a key and a value per position.

    Args:
        forward: The model.
        most_rows: So many rows at the same time; no more are stored.
        context: Positions that a row can have.
        most_tokens: Positions of all rows in store, unless what is in use takes more.
        is_steady: Whether attention always looks at a multiple of `ALIGNMENT` positions through a
            mask. A row's numbers are then the same, bit for bit, however long the other rows are.
    """

    waits_for_share = 16
    """New rows are let in when one row in so many is free: each time costs a pass over their
    prompts.
    """
    keeps_prefills = True
    """What was read once can be entered again later."""
    most_prompt_tokens = PREFILL_TOKENS

    def __init__(
        self,
        forward: Forward,
        most_rows: int,
        context: int,
        most_tokens: int = sys.maxsize,
        *,
        is_steady: bool = False,
    ) -> None:
        self._forward, self._is_steady = forward, is_steady
        self._context = -(-context // ALIGNMENT) * ALIGNMENT if is_steady else context
        self._most_rows, self._most_tokens = most_rows, most_tokens
        self.most_prompts = 1 if is_steady else PROMPTS
        self._awaited_rows = 0
        nothing = torch.zeros(0, dtype=torch.long, device=forward.device)
        self._place = _Place(nothing, nothing)
        self._lengths: list[int] = []
        self._length_R = nothing
        self._row_R = nothing
        self._slot_S = nothing
        self._cache = Cache(layers=[])

    @staticmethod
    def suit(forward: Forward, context: int) -> bool:
        """Whether every layer of the model keeps a key and a value per position: full attention, or
        a window that holds the context.
        """
        layers = DynamicCache(config=forward.model.config).layers
        wide = [
            layer
            for layer in layers
            if type(layer) is DynamicSlidingWindowLayer
            and layer.sliding_window >= context
            and forward.takes_whole_masks
        ]
        plain = [layer for layer in layers if type(layer) is DynamicLayer]
        return forward.has_positions and len(plain) + len(wide) == len(layers)

    def prefill(self, windows: Sequence[Sequence[int]]) -> Prefilled:
        """Read prompts in one pass; shorter ones are filled up behind their end, where nothing of
        theirs looks.
        """
        device, lengths = self._forward.device, [len(window) for window in windows]
        longest = max(lengths)
        ids_PL = torch.tensor(
            [[*window, *[0] * (longest - len(window))] for window in windows], device=device
        )
        ends = sorted(set(lengths))
        cache = DynamicCache()
        positions_PL = torch.arange(longest, device=device).expand(len(windows), -1)
        logits = self._forward(
            ids_PL,
            cache,
            positions_BT=positions_PL,
            at_P=torch.tensor([end - 1 for end in ends], device=device),
        )
        return Prefilled(
            logits[range(len(windows)), [ends.index(length) for length in lengths]], lengths, cache
        )

    def await_rows(self, rows: int) -> None:
        """Store so many rows when the store next grows: they are about to enter."""
        self._awaited_rows = min(rows, self._most_rows)

    def enter(self, read: Prefilled, sources: Sequence[int]) -> None:
        """Add rows that go on from prompts: row i from prompt sources[i]."""
        rows = slice(len(self._lengths), len(self._lengths) + len(sources))
        lengths = [read.lengths_P[source] for source in sources]
        self._make_room(rows.stop, max(read.lengths_P) + 1)
        source_B = torch.tensor(sources, device=self._forward.device)
        while len(self._cache.layers) < len(read.cache.layers):
            self._cache.layers.append(_Layer(self._place))
        for layer, one in zip(self._cache.layers, read.cache.layers, strict=True):
            layer.put(rows, one.keys, one.values, source_B)
        self._length_R[rows] = torch.tensor(lengths, device=self._forward.device)
        self._lengths += lengths

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Read one more token per row: logits_BV."""
        rows, longest = len(self._lengths), max(self._lengths) + 1
        self._make_room(rows, longest)
        place = self._place
        place.row_B, place.position_B = self._row_R[:rows], self._length_R[:rows]
        position_B1 = place.position_B[:, None]
        place.reach, seen_BT = longest, None
        if self._is_steady or min(self._lengths) + 1 < longest:
            aligned = -(-longest // ALIGNMENT) * ALIGNMENT
            place.reach = min(aligned, place.stored_positions)
            seen_BT = self._slot_S[: place.reach] <= position_B1
        ids_B1 = torch.tensor(tokens, device=self._forward.device)[:, None]
        logits_BV = self._forward(ids_B1, self._cache, positions_BT=position_B1, seen_BS=seen_BT)[
            :, -1
        ]
        place.position_B += 1
        self._lengths = [length + 1 for length in self._lengths]
        return logits_BV

    def leave(self, leaving: Sequence[int]) -> list[int]:
        """Free rows. The last rows take their places: gives back the old place of every row that is
        left.
        """
        return fill_gaps(self._lengths, leaving, self._move)

    def _move(self, source: int, target: int) -> None:
        length = self._lengths[source]
        for layer in self._cache.layers:
            layer.move(source, target, length)
        self._length_R[target] = length
        self._lengths[target] = length

    def _make_room(self, rows: int, positions: int) -> None:
        place = self._place
        if rows <= place.stored_rows and positions <= place.stored_positions:
            return
        positions = max([positions, *(length + 1 for length in self._lengths)])
        place.stored_rows, place.stored_positions = self._sizes(rows, positions)
        used, device = len(self._lengths), self._forward.device
        for layer in self._cache.layers:
            layer.grow(used)
        lengths_R = torch.zeros(place.stored_rows, dtype=torch.long, device=device)
        lengths_R[:used] = self._length_R[:used]
        self._length_R, self._row_R = lengths_R, torch.arange(place.stored_rows, device=device)
        self._slot_S = torch.arange(place.stored_positions, device=device)

    def _sizes(self, rows: int, positions: int) -> tuple[int, int]:
        """Return how many rows and positions to store where so many are in use: room to grow where
        all may take it, else what is in use, whatever longer texts took before.
        """
        place = self._place
        more_rows, more_positions = place.stored_rows, place.stored_positions
        if rows > more_rows:
            more_rows = max(rows, min(2 * more_rows, self._most_rows), self._awaited_rows)
        if positions > more_positions:
            more_positions = self._aligned(max(positions, more_positions * 3 // 2))
        if more_rows * more_positions <= self._most_tokens:
            return more_rows, more_positions
        return rows, self._aligned(positions)

    def _aligned(self, positions: int) -> int:
        """Return the next multiple of `STORE_STEP`, or the context where that is less."""
        return max(positions, min(-(-positions // STORE_STEP) * STORE_STEP, self._context))
