"""Intervals for losses and scores of examples, and the difference of two runs on the same windows.

Shapes: N windows in text order, or examples; K blocks of neighbouring windows; R resamples.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from brimful.base.arrays import Floats, Ints
from brimful.base.intervals import CONFIDENCE, Interval, wilson_interval

MAX_BLOCKS = 1000
"""Neighbouring windows share a document, so they are resampled together; this many blocks still
give smooth intervals.
"""
RESAMPLES = 1000
DRAWS_AT_ONCE = 2_000_000
"""Random block numbers held in memory at a time (16 MB)."""
FEW_OF_A_KIND = 10
"""Least passes and least failures for a bootstrap: with fewer of either, resamples hold too few
distinct values for a bootstrap interval of a share.
"""


@dataclass(frozen=True)
class PairedDifference:
    """First minus second, in the unit of the sums per weight; below 0 means that the first is
    smaller.

    Attributes:
        difference: Ratio of sums of the first minus that of the second.
        interval: None with fewer than two blocks.
        p_value: Two-sided p-value of "no difference" (see `sign_flip_p_value`); None with fewer
            than two blocks.
    """

    difference: float
    interval: Interval | None
    p_value: float | None


def mean_interval(
    sums: ArrayLike,
    weights: ArrayLike,
    *,
    resamples: int = RESAMPLES,
    max_blocks: int = MAX_BLOCKS,
    seed: int = 0,
) -> Interval | None:
    """Interval of `sum(sums) / sum(weights)`, such as loss = nats / tokens, by a percentile
    bootstrap over blocks.

    Windows are put into at most `max_blocks` blocks of neighbours of near equal number, and blocks
    are drawn with replacement (block bootstrap, Kuensch 1989, with fixed blocks): the spread says
    how much the value depends on which text was held out. It does not hold the spread over training
    seeds.

    Args:
        sums: N sums of the numerator.
        weights: N sums of the denominator, not negative.
        resamples: R.
        max_blocks: Largest K.
        seed: Same seed, same interval.

    Returns:
        None where there are fewer than two blocks or a value is not finite: nothing can be said
        then.
    """
    block_sums_K, block_weights_K = _blocks(
        np.asarray(sums, np.float64), np.asarray(weights, np.float64), max_blocks
    )
    return _ratio_interval(block_sums_K, block_weights_K, resamples, seed)


def paired_difference(
    first_sums: ArrayLike,
    second_sums: ArrayLike,
    weights: ArrayLike,
    *,
    resamples: int = RESAMPLES,
) -> PairedDifference:
    """Compare two runs on the same windows: the same blocks are drawn for both, so what is hard for
    both cancels.

    Args:
        first_sums: N numerators of the first run, such as nats per window.
        second_sums: N numerators of the second, same windows in the same order.
        weights: N denominators, the same for both (tokens; bytes where the tokenizers differ).
        resamples: R.

    Raises:
        ValueError: the three differ in length.
    """
    first_N, second_N, weights_N = (
        np.asarray(values, np.float64) for values in (first_sums, second_sums, weights)
    )
    if not len(first_N) == len(second_N) == len(weights_N):
        raise ValueError(
            f"the windows must be the same for both: got {len(first_N)}, {len(second_N)} and"
            f" {len(weights_N)} of them"
        )
    delta_N = first_N - second_N
    difference = float(delta_N.sum() / weights_N.sum())
    block_deltas_K, block_weights_K = _blocks(delta_N, weights_N)
    interval = _ratio_interval(block_deltas_K, block_weights_K, resamples)
    if interval is None:
        return PairedDifference(difference, None, None)
    p_value = sign_flip_p_value(block_deltas_K, resamples)
    return PairedDifference(difference, interval, p_value)


def sign_flip_p_value(deltas: ArrayLike, resamples: int) -> float:
    """Two-sided p-value of "no difference" between pairs: how often random signs make a sum as far
    from 0 (Fisher 1935, section 21).

    For passes and failures this is McNemar's exact test, up to the draws. A bootstrap's p-value is
    too small where few pairs differ: 0.04 for four problems of 164 that one model alone solves,
    where chance gives four the same sign once in eight times.

    Args:
        deltas: First minus second, one of a pair.
        resamples: R, the draws of signs.

    Returns:
        At least 1 / (R + 1).
    """
    deltas_N = np.asarray(deltas, np.float64)
    deltas_N = deltas_N[deltas_N != 0]
    if not len(deltas_N):
        return 1.0
    reached = abs(float(deltas_N.sum())) * (1 - 1e-9)  # sums in another order are equal sums
    as_far = sum(
        int((np.abs((2.0 * signs_RN - 1) @ deltas_N) >= reached).sum())
        for signs_RN in _choices(2, resamples, count=len(deltas_N))
    )
    return (as_far + 1) / (resamples + 1)


def example_interval(values: Sequence[float], *, is_share: bool) -> tuple[Interval | None, str]:
    """Return the interval of the mean over examples and its method: "bootstrap" (see
    `mean_interval`), or "Wilson" for a share with few passes or few failures.

    Args:
        values: One per example; several samples of one example already averaged.
        is_share: The values lie between 0 (failed) and 1 (passed).
    """
    passed = float(np.sum(values))
    if is_share and len(values) >= 2 and min(passed, len(values) - passed) < FEW_OF_A_KIND:
        return wilson_interval(passed, len(values)), "Wilson"
    return mean_interval(values, np.ones(len(values))), "bootstrap"


def bootstrap_interval(statistic: Callable[[Ints], float], count: int) -> Interval | None:
    """Percentile bootstrap of anything that can be computed from numbers of examples, such as a
    corpus score.

    Args:
        statistic: Given `count` example numbers, drawn with replacement.
        count: Examples.

    Returns:
        None with fewer than two examples.
    """
    if count < 2:
        return None
    values_R = np.array(
        [statistic(numbers_N) for chosen in _choices(count, RESAMPLES) for numbers_N in chosen]
    )
    return _percentiles(values_R)


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    return sum(known) / len(known)


def _ratio_interval(
    sums_K: Floats, weights_K: Floats, resamples: int, seed: int = 0
) -> Interval | None:
    """Percentile bootstrap of sum(sums) / sum(weights) over K blocks; None with fewer than two
    blocks or a value that is not finite.
    """
    if len(sums_K) < 2 or not np.isfinite(sums_K).all():
        return None
    ratios_R = np.concatenate(
        [
            sums_K[chosen_RK].sum(1) / weights_K[chosen_RK].sum(1)
            for chosen_RK in _choices(len(sums_K), resamples, seed)
        ]
    )
    return _percentiles(ratios_R)


def _blocks(
    sums_N: Floats, weights_N: Floats, max_blocks: int = MAX_BLOCKS
) -> tuple[Floats, Floats]:
    counted_N = weights_N > 0
    sums_N, weights_N = sums_N[counted_N], weights_N[counted_N]
    if not len(sums_N):
        return sums_N, weights_N
    num_blocks = min(len(sums_N), max_blocks)
    starts_K = np.arange(num_blocks) * len(sums_N) // num_blocks
    return np.add.reduceat(sums_N, starts_K), np.add.reduceat(weights_N, starts_K)


def _choices(kinds: int, resamples: int, seed: int = 0, count: int | None = None) -> Iterator[Ints]:
    """Draw numbers below `kinds` with replacement: pieces of [rows, count], R rows in all. The
    count is `kinds` unless given.
    """
    generator = np.random.default_rng(seed)
    count = count or kinds
    rows = max(1, DRAWS_AT_ONCE // count)
    for start in range(0, resamples, rows):
        yield generator.integers(kinds, size=(min(rows, resamples - start), count))


def _percentiles(values_R: Floats) -> Interval:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values_R, [tail, 1 - tail])
    return Interval(float(low), float(high))


def perplexity_of(loss: float) -> float:
    """exp(nats per token); infinite where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf
