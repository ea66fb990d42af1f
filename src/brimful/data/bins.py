"""Examples of many lengths in few rows, and few examples that stand for all."""

from collections.abc import Sequence

import numpy as np

from brimful.base.arrays import Ints


def spread_evenly(count: int, most: int | None) -> Ints:
    """Return numbers of `count` examples, at most so many, spread evenly; None: all."""
    return np.linspace(0, count - 1, min(count, most or count)).astype(np.int64)


def offsets_of(lengths: Sequence[int] | Ints) -> Ints:
    """Return where each example begins that lies end to end with others, and where the last
    ends.
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def longest_first(lengths: Sequence[int]) -> list[int]:
    """Return the numbers of the examples, the longest first; equal ones in their order."""
    return sorted(range(len(lengths)), key=lambda number: -lengths[number])


def even_bins(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the numbers of the examples of each bin, in order: as many bins as best-fit decreasing
    needs, and loads as even as capacity allows. An example above the capacity has a bin of its own.
    """
    bins: list[list[int]] = []
    loads: list[int] = []
    for number in longest_first(lengths):
        fitting = [place for place, load in enumerate(loads) if load + lengths[number] <= capacity]
        if not fitting:
            fitting = [len(bins)]
            bins.append([])
            loads.append(0)
        fullest = max(fitting, key=loads.__getitem__)
        bins[fullest].append(number)
        loads[fullest] += lengths[number]
    even = _evenly(lengths, len(bins))
    if all(sum(lengths[number] for number in filled) <= capacity for filled in even):
        bins = even
    return sorted(map(sorted, bins))


def _evenly(lengths: Sequence[int], num_bins: int) -> list[list[int]]:
    """Longest first, each into the emptiest bin (Graham 1969)."""
    bins: list[list[int]] = [[] for _ in range(num_bins)]
    loads = [0] * num_bins
    for number in longest_first(lengths):
        emptiest = min(range(num_bins), key=loads.__getitem__)
        bins[emptiest].append(number)
        loads[emptiest] += lengths[number]
    return bins
