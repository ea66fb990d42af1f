"""Labelled texts end to end in one row: no position is spent on padding, but a few at the row's
end.

Suffixes: B texts, N positions of the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from brimful.base.arrays import Array, Floats32
from brimful.data.batches import MicroBatch
from brimful.data.bins import even_bins

ROW_MULTIPLE = 16
"""Rows are filled up to a multiple of so many positions. Kernels of matrix products are made for
each length of row; few lengths need few of them.
"""


@dataclass(frozen=True)
class PackedPasses:
    """How texts are laid end to end into passes through the model, one row each.

    Attributes:
        pad_id: Token that fills the row's end.
        limit: Tokens of a text at most.
    """

    pad_id: int
    limit: int

    def laid_out(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        """Return the numbers of the texts of each pass, longest first: as few passes as can be, of
        even length where the budget allows.

        Args:
            lengths: Tokens of each text.
            budget: Positions of a pass at most; one longer text makes a pass of its own.
        """
        capacity = max(budget - budget % ROW_MULTIPLE, 1)
        return [
            sorted(numbers, key=lambda number: (-lengths[number], number))
            for numbers in even_bins(lengths, capacity)
        ]

    def positions(self, lengths: Sequence[int], budget: int) -> list[int]:
        """Return the positions of every pass of these texts, the row's end included."""
        return [
            _filled(sum(lengths[number] for number in numbers), budget)
            for numbers in self.laid_out(lengths, budget)
        ]

    def micro_batch(
        self,
        ids: Sequence[NDArray[np.uint32]],
        targets: Array,
        weights: Floats32,
        budget: int,
    ) -> MicroBatch:
        """Return a pass of these texts, longest first. What fills the row's end counts as further
        texts without a target, no longer than the last one, so that attention computes them
        beside it.
        """
        lengths = [len(each) for each in ids]
        fill = _filled(sum(lengths), budget) - sum(lengths)
        row_N = np.concatenate([*ids, np.full(fill, self.pad_id, np.uint32)]).astype(np.int64)
        whole, rest = divmod(fill, lengths[-1])
        return MicroBatch(
            torch.from_numpy(row_N)[None],
            torch.from_numpy(targets),
            lengths_E=torch.tensor([*lengths, *[lengths[-1]] * whole, *[rest] * bool(rest)]),
            weights=torch.from_numpy(weights),
        )


def _filled(tokens: int, budget: int) -> int:
    """Return the positions of a row that holds so many tokens."""
    return min(-(-tokens // ROW_MULTIPLE) * ROW_MULTIPLE, max(tokens, budget))
