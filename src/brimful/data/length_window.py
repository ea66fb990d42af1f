"""Texts of similar length in the same optimizer step, in an order that a seed draws."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Ints


@dataclass(frozen=True)
class LengthWindow:
    """Batches of texts of similar length: so many batches' texts are sorted by length and dealt out
    to these batches, whose order is drawn. A window never reaches beyond its epoch, so each text
    still comes once in an epoch.

    Attributes:
        batch: Texts of an optimizer step.
        steps: Batches of a window.
    """

    batch: int
    steps: int

    @property
    def texts(self) -> int:
        """Texts of a window."""
        return self.batch * self.steps

    def ordered(self, lengths: Ints, first_sample: int, seed: NDArray[np.uint64]) -> Ints:
        """Return the order of a window's texts.

        Args:
            lengths: The lengths of its texts.
            first_sample: Number of the first one: batches begin at multiples of `batch`.
            seed: Two numbers, of the order of the batches.
        """
        count = len(lengths)
        begins = [0, *range(self.batch - first_sample % self.batch, count, self.batch)]
        pieces = [np.arange(*ends) for ends in pairwise([*begins, count])]
        raw = np.random.Philox(key=seed).random_raw(len(pieces))
        order, done = np.empty(count, np.int64), 0
        by_length = np.argsort(lengths, kind="stable")
        for piece in np.argsort(raw, kind="stable"):
            places = pieces[piece]
            order[places] = by_length[done : done + len(places)]
            done += len(places)
        return order
