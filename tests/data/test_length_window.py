"""The order of the texts of a window."""

import numpy as np
import pytest

from brimful.data.length_window import LengthWindow

SEED = np.array([1, 2], np.uint64)


@pytest.mark.parametrize("first", [0, 3, 8])
def test_batches_between_multiples_of_their_size_hold_neighbours_by_length(first: int) -> None:
    """A window that begins within a batch fills that one up first."""
    lengths = np.random.default_rng(0).permutation(30)
    order = LengthWindow(batch=8, steps=4).ordered(lengths, first, SEED)
    assert sorted(order.tolist()) == list(range(30))
    ends = [end for end in range(1, 30) if (first + end) % 8 == 0]
    for batch in np.split(lengths[order], ends):
        assert np.ptp(batch) == len(batch) - 1


def test_the_order_of_batches_is_drawn() -> None:
    lengths, window = np.arange(64), LengthWindow(batch=8, steps=8)
    orders = {
        tuple(window.ordered(lengths, 0, np.array([1, seed], np.uint64))) for seed in range(5)
    }
    assert len(orders) == 5
    assert window.texts == 64
