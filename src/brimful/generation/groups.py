"""Rows on whatever cache a model makes: those that start together with equally long texts share
one, and stay together.

Recurrent states and short windows have no slots that a row could be written to, and not every such
model takes padding. A group needs neither: it is read in one pass of its own, and its cache is only
ever asked to keep some of its rows. Where all that a model keeps are states, whose size does not
depend on the length, groups join.

Shapes: B rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionLayer

from brimful.generation.forward import Forward
from brimful.generation.slots import PREFILL_TOKENS, Prefilled
from brimful.planning.drawing import PROMPTS


@dataclass
class _Group:
    """Rows of one cache; their texts are equally long, unless it holds states only."""

    cache: Any
    lengths: list[int]

    @property
    def rows(self) -> int:
        return len(self.lengths)


class Groups:
    """The cache of any model of transformers; as many passes per token as there are groups.

    Args:
        forward: The model.
        is_steady: Whether every prompt is read alone, so that its numbers are the same, bit for
            bit, whatever else is read.
    """

    waits_for_share = 4
    """New rows are let in when one row in so many is free: fewer and larger groups."""
    keeps_prefills = False
    most_prompt_tokens = PREFILL_TOKENS

    def __init__(self, forward: Forward, *, is_steady: bool = False) -> None:
        self._forward = forward
        self.most_prompts = 1 if is_steady else PROMPTS
        self._groups: list[_Group] = []
        layers = DynamicCache(config=forward.model.config).layers
        self._join = bool(layers) and all(type(layer) is LinearAttentionLayer for layer in layers)

    def prefill(self, windows: Sequence[Sequence[int]]) -> Prefilled:
        """Read prompts, those of equal length in one pass."""
        lengths = [len(window) for window in windows]
        caches: dict[int, Any] = {}
        logits: list[Tensor | None] = [None] * len(windows)
        for length in dict.fromkeys(lengths):
            places = [place for place, other in enumerate(lengths) if other == length]
            caches[length] = DynamicCache(config=self._forward.model.config)
            read_BV = self._last_logits(
                [windows[place] for place in places], caches[length], [0] * len(places)
            )
            for place, logits_V in zip(places, read_BV, strict=True):
                logits[place] = logits_V
        return Prefilled(
            torch.stack([logits_V for logits_V in logits if logits_V is not None]), lengths, caches
        )

    def await_rows(self, rows: int) -> None:
        """Nothing is stored before rows enter."""

    def enter(self, read: Prefilled, sources: Sequence[int]) -> None:
        """Add rows that go on from prompts: row i from prompt sources[i]. `sources` ascend, prompts
        of one length stand together. Once per prefill.
        """
        for length, cache in read.cache.items():
            places = [place for place, other in enumerate(read.lengths_P) if other == length]
            chosen = [places.index(source) for source in sources if source in places]
            if chosen:
                cache.reorder_cache(torch.tensor(chosen, device=self._forward.device))
                self._groups.append(_Group(cache, [length] * len(chosen)))
        if self._join and len(self._groups) > 1:
            self._groups = [_joined(self._groups)]

    def step(self, tokens: Sequence[int]) -> Tensor:
        """Read one more token per row: logits_BV."""
        logits, start = [], 0
        for group in self._groups:
            logits.append(
                self._last_logits(
                    [[token] for token in tokens[start : start + group.rows]],
                    group.cache,
                    group.lengths,
                )
            )
            start += group.rows
            group.lengths = [length + 1 for length in group.lengths]
        return torch.cat(logits)

    def leave(self, leaving: Sequence[int]) -> list[int]:
        """Free rows: gives back the old place of every row that is left."""
        gone, start, order = set(leaving), 0, []
        for group in self._groups:
            staying = [row for row in range(group.rows) if start + row not in gone]
            order += [start + row for row in staying]
            start += group.rows
            if len(staying) < group.rows:
                group.lengths = [group.lengths[row] for row in staying]
                if staying:
                    group.cache.reorder_cache(torch.tensor(staying, device=self._forward.device))
        self._groups = [group for group in self._groups if group.rows]
        return order

    def _last_logits(
        self, ids: Sequence[Sequence[int]], cache: Any, lengths: Sequence[int]
    ) -> Tensor:
        """Run the model over the next tokens of a group, as many for every row, and return the
        logits at the last one: (B, V).

        Args:
            lengths: Tokens of each row that are already in the cache.
        """
        ids_BT = torch.tensor(ids, device=self._forward.device)
        positions_BT = (
            torch.arange(ids_BT.shape[1], device=ids_BT.device)
            + torch.tensor(lengths, device=ids_BT.device)[:, None]
        )
        return self._forward(ids_BT, cache, positions_BT=positions_BT)[:, -1]


def _joined(groups: Sequence[_Group]) -> _Group:
    """One group of all rows, in the first one's cache."""
    cache = groups[0].cache
    for number, layer in enumerate(cache.layers):
        others = [group.cache.layers[number] for group in groups[1:]]
        for kind in ("conv_states", "recurrent_states"):
            states = getattr(layer, kind)
            for name, state in states.items():
                if state is not None:
                    states[name] = torch.cat(
                        [state, *(getattr(other, kind)[name] for other in others)]
                    )
    return _Group(cache, [length for group in groups for length in group.lengths])
