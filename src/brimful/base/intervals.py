"""Confidence intervals, and the one of a share."""

import math
from dataclasses import dataclass
from statistics import NormalDist

CONFIDENCE = 0.95
"""Coverage of confidence intervals: the share of repeated measurements whose interval holds the
true value.
"""


@dataclass(frozen=True)
class Interval:
    """Bounds that hold the true value in `CONFIDENCE` of repetitions."""

    low: float
    high: float

    def scaled(self, factor: float) -> "Interval":
        """Return the interval in another unit."""
        return Interval(self.low * factor, self.high * factor)


def bounds_of(interval: Interval | None) -> list[float] | None:
    """Return [low, high] for a JSON record; None where there is no interval."""
    if interval is None:
        return None
    return [interval.low, interval.high]


def wilson_interval(passed: float, count: int) -> Interval:
    """Return the score interval of a share (Wilson 1927), which is sound near 0 and 1.

    Written here because scipy's `binomtest` takes whole counts only, and examples may count in
    part.

    Args:
        passed: How many of `count` passed; a fraction where examples count in part, whose spread is
            then at most as large.
        count: How many there are, at least 1.
    """
    z2 = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2
    share = passed / count
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / (4 * count)) / count) / (1 + z2 / count)
    return Interval(min(share, max(0.0, centre - half)), max(share, min(1.0, centre + half)))
