"""Several comparisons at once, and several seeds of one variant."""

import math
import statistics
from collections.abc import Sequence

from brimful.base.intervals import Interval


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number, in the same order (Holm 1979): the chance that any of
    those below 0.05 is there by luck is below 0.05.
    """
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def seeds_interval(values: Sequence[float]) -> Interval | None:
    """95 % interval of the mean over training seeds, by Student's t; None with one seed."""
    if len(values) < 2:
        return None
    half = _t_975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return Interval(mean - half, mean + half)


def seeds_difference(
    first: Sequence[float] | float, second: Sequence[float] | float
) -> Interval | None:
    """95 % interval of the first mean minus the second over training seeds (Welch 1947); None where
    either has one seed.

    A number in place of values is of a model that no seed changes, such as an untuned one.
    """
    sides = [side for side in (first, second) if not isinstance(side, float)]
    if any(len(side) < 2 for side in sides):
        return None
    shares = [statistics.variance(side) / len(side) for side in sides]
    spread = sum(shares)
    difference = _mean(first) - _mean(second)
    if not spread:
        return Interval(difference, difference)
    freedom = spread**2 / sum(
        share**2 / (len(side) - 1) for share, side in zip(shares, sides, strict=True)
    )
    half = _t_975(freedom) * math.sqrt(spread)
    return Interval(difference - half, difference + half)


def _mean(side: Sequence[float] | float) -> float:
    if isinstance(side, float):
        return side
    return statistics.fmean(side)


def _t_975(freedom: float) -> float:
    """Student's t, two-sided 95 %."""
    from scipy.special import stdtrit  # noqa: PLC0415 - half a second that only seeds need

    return float(stdtrit(freedom, 0.975))
