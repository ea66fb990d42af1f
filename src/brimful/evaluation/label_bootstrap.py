"""Intervals of classifiers' metrics: all metrics of all classifiers that are compared, from the
same resamples of examples.

Shapes: E examples, C labels, R resamples (rows of weights).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brimful.base.arrays import Floats, Floats32
from brimful.base.intervals import Interval, bounds_of, wilson_interval
from brimful.evaluation.label_metrics import Statistic, Values
from brimful.evaluation.stats import FEW_OF_A_KIND

RESAMPLES = 1000
DRAWS_AT_ONCE = 2_000_000
"""Example numbers held in memory at a time (16 MB)."""
MAX_DRAWS, FEWEST_RESAMPLES = 100_000_000, 200
"""Above 100,000 examples there are fewer resamples: intervals are narrow there. Areas under curves
count the examples of every label.
"""
DEFINED_SHARE = 0.95
"""An interval needs a value in this share of resamples."""
BY_LABEL = ("precision", "recall", "f1", "base_rate")
HITS_AND_TRIALS = {
    "accuracy": ("right", "examples"),
    "precision": ("hits", "given"),
    "recall": ("hits", "true"),
    "base_rate": ("true", "examples"),
}
"""Sums of `decision_statistic` that a share is the ratio of."""


@dataclass(frozen=True)
class MetricEstimate:
    """A metric; None where it is undefined (see `label_metrics`), its interval None where nothing
    can be said.
    """

    value: float | None
    interval: Interval | None = None

    def to_json(self) -> dict[str, float | None]:
        """value, low, high."""
        low, high = bounds_of(self.interval) or (None, None)
        return {"value": self.value, "low": low, "high": high}


@dataclass(frozen=True)
class BootstrapResult:
    """Values over all examples and over resamples of them.

    Attributes:
        values: Metrics by name, [] or [C].
        draws: Resampled metrics by name, [R] or [R, C]; areas may have fewer rows. Row r of every
            name comes from the same examples.
    """

    values: Mapping[str, Floats]
    draws: Values

    def score(self, name: str, *, label: int | None = None, prefix: str = "") -> MetricEstimate:
        """A metric with its 95 % interval: percentile bootstrap; Wilson's for shares and F1 where
        hits or misses are few.

        Args:
            name: Such as `accuracy` or `f1`.
            label: Which label, for metrics by label.
            prefix: Prefix of the classifier in the names.
        """
        value, draws_R = self._of(prefix + name, label)
        if not np.isfinite(value):
            return MetricEstimate(None)
        counts = self._counts(name, label, prefix)
        if counts is None:
            interval = interval_of_draws(draws_R)
        elif name == "f1":
            interval = f1_interval(*counts, draws_R)
        else:
            interval = share_interval(*counts, draws_R)
        if interval is not None:
            # Resamples can only add to the calibration error, so its value may lie below them.
            interval = Interval(min(value, interval.low), max(value, interval.high))
        return MetricEstimate(value, interval)

    def _of(self, name: str, label: int | None) -> tuple[float, Floats]:
        """A metric's value and draws [R]; of a metric by label those of the label."""
        value, draws = self.values[name], self.draws[name]
        if value.ndim == 0:
            return float(value), draws
        return float(value[label]), draws[:, label]

    def scores(
        self, names: Sequence[str], *, positive: int | None, prefix: str = ""
    ) -> dict[str, MetricEstimate]:
        """Metrics, those by label of the positive one; left out where there is none."""
        return {
            name: self.score(name, label=positive, prefix=prefix)
            for name in _defined(names, positive)
        }

    def differences(
        self, names: Sequence[str], *, positive: int | None, other: str
    ) -> dict[str, MetricEstimate]:
        """Metrics minus those of the classifier with the prefix `other`, pair by pair of
        resamples.
        """
        differences = {}
        for name in _defined(names, positive):
            value, draws_R = self._of(name, positive)
            other_value, other_draws_R = self._of(other + name, positive)
            difference = MetricEstimate(None)
            if np.isfinite(value - other_value):
                interval = interval_of_draws(draws_R - other_draws_R, keeps_zero_width=True)
                difference = MetricEstimate(value - other_value, interval)
            differences[name] = difference
        return differences

    def _counts(self, name: str, label: int | None, prefix: str) -> tuple[float, float] | None:
        """Hits and trials of a share; hits and misses of F1; None for what is neither."""

        def total(part: str) -> float:
            return self._of(prefix + part, label)[0]

        if name == "f1":
            return total("hits"), total("given") + total("true") - 2 * total("hits")
        if name not in HITS_AND_TRIALS:
            return None
        hits, trials = HITS_AND_TRIALS[name]
        return total(hits), total(trials)


def _defined(names: Sequence[str], positive: int | None) -> list[str]:
    """Metrics without those by label where no label is positive."""
    return [name for name in names if positive is not None or name not in BY_LABEL]


def measure(
    count: int,
    statistics: Sequence[Statistic],
    areas: Sequence[Statistic],
    *,
    num_rankings: int,
    seed: int = 0,
) -> BootstrapResult:
    """Values and bootstrap draws: examples drawn with replacement, `num_resamples(count)` times.

    Args:
        count: E.
        statistics: What sums of weights give; names differ between all of them.
        areas: What rankings give, which takes longer: drawn fewer times where there are many
            labels.
        num_rankings: Labels that are ranked, over all `areas`.
        seed: Same seed, same draws.
    """
    values = {
        name: value[0]
        for statistic in [*statistics, *areas]
        for name, value in statistic(np.ones((1, count))).items()
    }
    drawn: dict[str, list[Floats]] = {
        name: [np.zeros((0, *value.shape))] for name, value in values.items()
    }

    def draw(chosen: Sequence[Statistic], weights_RE: Floats32) -> None:
        for statistic in chosen:
            for name, value in statistic(weights_RE).items():
                drawn[name].append(value)

    left_for_areas = num_resamples(count * num_rankings)
    for weights_RE in _weights(count, num_resamples(count), seed):
        draw(statistics, weights_RE)
        if left_for_areas > 0:
            draw(areas, weights_RE[:left_for_areas])
        left_for_areas -= len(weights_RE)
    return BootstrapResult(values, {name: np.concatenate(each) for name, each in drawn.items()})


def num_resamples(count: int) -> int:
    """R for a number of examples."""
    return max(FEWEST_RESAMPLES, min(RESAMPLES, MAX_DRAWS // max(1, count)))


def interval_of_draws(draws_R: Floats, *, keeps_zero_width: bool = False) -> Interval | None:
    """95 % percentile interval over the resamples that define the metric.

    None where fewer than `DEFINED_SHARE` of them do, or where all are equal: a perfect score stays
    perfect in every resample, which says nothing about other texts. The difference of two
    classifiers that answer alike is 0 in all of them, and rightly so (`keeps_zero_width`).
    """
    defined_R = draws_R[np.isfinite(draws_R)]
    if len(defined_R) < max(2, DEFINED_SHARE * len(draws_R)):
        return None
    low, high = (float(bound) for bound in np.quantile(defined_R, [0.025, 0.975]))
    if high == low and not keeps_zero_width:
        return None
    return Interval(low, high)


def share_interval(hits: float, trials: float, draws_R: Floats) -> Interval | None:
    """Interval of hits / trials: bootstrap, but Wilson's where hits or misses are few, as in
    `stats.example_interval`.
    """
    if trials < 2:
        return None
    if min(hits, trials - hits) < FEW_OF_A_KIND:
        return wilson_interval(hits, int(trials))
    return interval_of_draws(draws_R)


def f1_interval(hits: float, misses: float, draws_R: Floats) -> Interval | None:
    """Interval of F1: bootstrap; where hits or misses (given wrongly, or not given) are few,
    Wilson's interval of j = hits / (hits + misses) as 2j / (1 + j).

    Among the examples that have or get the label, hits are binomial, and F1 = 2 hits / (2 hits +
    misses) grows with their share.
    """
    share = share_interval(hits, hits + misses, draws_R)
    if share is None or min(hits, misses) >= FEW_OF_A_KIND:
        return share
    return Interval(2 * share.low / (1 + share.low), 2 * share.high / (1 + share.high))


def _weights(count: int, resamples: int, seed: int) -> Iterator[Floats32]:
    """How often each example is drawn, some rows [R, E] at a time; none for a single example."""
    if count < 2:
        return
    generator = np.random.default_rng(seed)
    rows = max(1, DRAWS_AT_ONCE // count)
    for start in range(0, resamples, rows):
        num = min(rows, resamples - start)
        numbers = generator.integers(count, size=(num, count)) + np.arange(num)[:, None] * count
        times = np.bincount(numbers.ravel(), minlength=num * count)
        yield times.reshape(num, count).astype(np.float32)
