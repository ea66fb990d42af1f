"""Texts of similar length in the same optimizer step, in an order that a seed draws."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Ints


def dealt_by_length(lengths: Ints, first_sample: int, batch: int, seed: NDArray[np.uint64]) -> Ints:
    """Return an order of texts in which each batch holds texts of similar length: they are sorted
    by length and dealt out to the batches, whose order is drawn.

    Args:
        lengths: The lengths of the texts.
        first_sample: Number of the first one: batches begin at multiples of `batch`.
        batch: Texts of an optimizer step.
        seed: Two numbers, of the order of the batches.
    """
    count = len(lengths)
    begins = [0, *range(batch - first_sample % batch, count, batch)]
    pieces = [np.arange(*ends) for ends in pairwise([*begins, count])]
    raw = np.random.Philox(key=seed).random_raw(len(pieces))
    order, done = np.empty(count, np.int64), 0
    by_length = np.argsort(lengths, kind="stable")
    for piece in np.argsort(raw, kind="stable"):
        places = pieces[piece]
        order[places] = by_length[done : done + len(places)]
        done += len(places)
    return order
