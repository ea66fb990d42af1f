"""Bins: each example once, within the capacity, no more bins than best-fit decreasing makes."""

from hypothesis import given
from hypothesis import strategies as st

from brimful.data.bins import even_bins, longest_first


def test_equal_lengths_keep_their_order() -> None:
    assert longest_first([3, 9, 3, 9]) == [1, 3, 0, 2]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=25), st.integers(40, 120))
def test_every_example_is_in_one_bin_within_the_capacity(lengths: list[int], capacity: int) -> None:
    bins = even_bins(lengths, capacity)

    assert sorted(number for filled in bins for number in filled) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in filled) <= capacity for filled in bins)
    # Two bins that together fit into one would be one (Johnson 1973).
    loads = sorted(sum(lengths[number] for number in filled) for filled in bins)
    assert len(bins) == 1 or sum(loads) > capacity * (len(bins) - 1) / 2


def test_loads_are_as_even_as_capacity_allows() -> None:
    loads = sorted(
        sum([8, 8, 2, 2][number] for number in filled) for filled in even_bins([8, 8, 2, 2], 16)
    )

    assert loads == [10, 10]
