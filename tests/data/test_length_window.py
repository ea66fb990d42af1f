"""The order of the texts of a window."""

import numpy as np
import pytest

from brimful.data.length_window import dealt_by_length

SEED = np.array([1, 2], np.uint64)


@pytest.mark.parametrize("first", [0, 3, 8])
def test_batches_between_multiples_of_their_size_hold_neighbours_by_length(first: int) -> None:
    """A window that begins within a batch fills that one up first."""
    lengths = np.random.default_rng(0).permutation(30)
    order = dealt_by_length(lengths, first, 8, SEED)
    assert sorted(order.tolist()) == list(range(30))
    ends = [end for end in range(1, 30) if (first + end) % 8 == 0]
    for batch in np.split(lengths[order], ends):
        assert np.ptp(batch) == len(batch) - 1


def test_the_order_of_batches_is_drawn() -> None:
    lengths, seeds = np.arange(64), [np.array([1, seed], np.uint64) for seed in range(5)]
    assert len({tuple(dealt_by_length(lengths, 0, 8, seed)) for seed in seeds}) == 5
