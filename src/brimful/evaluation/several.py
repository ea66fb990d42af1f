"""Several comparisons at once, and several seeds of one variant."""

import math
import statistics
from collections.abc import Sequence

from brimful.base.intervals import Interval

T_975 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
"""Student's t, two-sided 95 %, for 1 to 10 degrees of freedom (any table of the distribution, such
as Fisher and Yates 1938).
"""
Z_975 = 1.959964


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
    freedom = (
        spread**2
        / sum(share**2 / (len(side) - 1) for share, side in zip(shares, sides, strict=True))
        if spread
        else math.inf
    )
    means = [
        side if isinstance(side, float) else statistics.fmean(side) for side in (first, second)
    ]
    difference, half = means[0] - means[1], _t_975(freedom) * math.sqrt(spread)
    return Interval(difference - half, difference + half)


def _t_975(freedom: float) -> float:
    """For as many whole degrees of freedom; beyond the table by its expansion in 1 / freedom
    (within 0.003).
    """
    if freedom < len(T_975) + 1:
        return T_975[max(int(freedom), 1) - 1]
    first = (Z_975**3 + Z_975) / 4
    second = (5 * Z_975**5 + 16 * Z_975**3 + 3 * Z_975) / 96
    return Z_975 + first / freedom + second / freedom**2
