"""Intervals of classifiers' metrics: all metrics of all classifiers that are compared, from the
same resamples of examples.

Shapes: E examples, C labels, R resamples (rows of weights).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.base.intervals import Interval, wilson_interval
from brimful.evaluation.label_metrics import Floats, Statistic, Values
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


@dataclass(frozen=True)
class MetricEstimate:
    """A metric; None where it is undefined (see `label_metrics`), its interval None where nothing
    can be said.
    """

    value: float | None
    interval: Interval | None = None

    def to_json(self) -> dict[str, float | None]:
        """value, low, high."""
        low, high = (
            (None, None) if self.interval is None else (self.interval.low, self.interval.high)
        )
        return {"value": self.value, "low": low, "high": high}


@dataclass(frozen=True)
class BootstrapResult:
    """Values over all examples and over resamples of them.

    Attributes:
        values: By name, [] or [C].
        draws: By name, [R] or [R, C]; areas may have fewer rows. Row r of every name comes from the
            same examples.
    """

    values: Mapping[str, Floats]
    draws: Values

    def score(self, name: str, *, label: int | None = None, prefix: str = "") -> MetricEstimate:
        """A metric with its 95 % interval: percentile bootstrap; Wilson's for shares and F1 where
        hits or misses are few.

        Args:
            name: Such as `accuracy` or `f1`.
            label: Of metrics by label, which.
            prefix: Of the classifier.
        """
        value, draws_R = self.values[prefix + name], self.draws[prefix + name]
        if name in BY_LABEL:
            value, draws_R = value[label], draws_R[:, label]
        if not np.isfinite(value):
            return MetricEstimate(None)
        interval = interval_of_draws(draws_R)
        if counts := self._counts(name, label, prefix):
            interval = (
                f1_interval(*counts, draws_R) if name == "f1" else share_interval(*counts, draws_R)
            )
        if interval is not None:  # resamples can only add to the calibration error
            interval = Interval(
                min(float(value), interval.low),
                max(float(value), interval.high),
                interval.confidence,
            )
        return MetricEstimate(float(value), interval)

    def scores(
        self, names: Sequence[str], *, positive: int | None, prefix: str = ""
    ) -> dict[str, MetricEstimate]:
        """Metrics, those by label of the positive one; left out where there is none."""
        chosen = [name for name in names if positive is not None or name not in BY_LABEL]
        return {name: self.score(name, label=positive, prefix=prefix) for name in chosen}

    def differences(
        self, names: Sequence[str], *, positive: int | None, other: str
    ) -> dict[str, MetricEstimate]:
        """Metrics minus those of the classifier with the prefix `other`, pair by pair of
        resamples.
        """
        found = {}
        for name in [name for name in names if positive is not None or name not in BY_LABEL]:
            value, draws_R = (
                self.values[name] - self.values[other + name],
                self.draws[name] - self.draws[other + name],
            )
            if name in BY_LABEL:
                value, draws_R = value[positive], draws_R[:, positive]
            found[name] = (
                MetricEstimate(float(value), interval_of_draws(draws_R, keeps_zero_width=True))
                if np.isfinite(value)
                else MetricEstimate(None)
            )
        return found

    def _counts(self, name: str, label: int | None, prefix: str) -> tuple[float, float] | None:
        """Hits and trials of a share; hits and misses of F1; None for what is neither."""

        def total(part: str) -> float:
            values = self.values[prefix + part]
            return float(values if values.ndim == 0 else values[label])

        if name == "f1":
            return total("hits"), total("given") + total("true") - 2 * total("hits")
        parts = {
            "accuracy": ("right", "examples"),
            "precision": ("hits", "given"),
            "recall": ("hits", "true"),
            "base_rate": ("true", "examples"),
        }
        return (total(parts[name][0]), total(parts[name][1])) if name in parts else None


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
    left_for_areas = num_resamples(count * num_rankings)
    for weights_RE in _weights(count, num_resamples(count), seed) if count > 1 else ():
        parts = [(statistic, weights_RE) for statistic in statistics] + [
            (statistic, weights_RE[:left_for_areas]) for statistic in areas
        ]
        left_for_areas = max(0, left_for_areas - len(weights_RE))
        for statistic, chosen_RE in parts:
            for name, value in statistic(chosen_RE).items() if len(chosen_RE) else ():
                drawn[name].append(value)
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
    return Interval(low, high) if high > low or keeps_zero_width else None


def share_interval(hits: float, trials: float, draws_R: Floats) -> Interval | None:
    """Of hits / trials: bootstrap, but Wilson's where hits or misses are few, as in
    `stats.example_interval`.
    """
    if trials < 2:
        return None
    return (
        wilson_interval(hits, int(trials))
        if min(hits, trials - hits) < FEW_OF_A_KIND
        else interval_of_draws(draws_R)
    )


def f1_interval(hits: float, misses: float, draws_R: Floats) -> Interval | None:
    """Of F1: bootstrap; where hits or misses (given wrongly, or not given) are few, Wilson's
    interval of j = hits / (hits + misses) as 2j / (1 + j).

    Among the examples that have or get the label, hits are binomial, and F1 = 2 hits / (2 hits +
    misses) grows with their share.
    """
    share = share_interval(hits, hits + misses, draws_R)
    if share is None or min(hits, misses) >= FEW_OF_A_KIND:
        return share
    return Interval(
        2 * share.low / (1 + share.low), 2 * share.high / (1 + share.high), share.confidence
    )


def _weights(count: int, resamples: int, seed: int) -> Iterator[NDArray[np.float32]]:
    """How often each example is drawn, some rows [R, E] at a time."""
    generator = np.random.default_rng(seed)
    rows = max(1, DRAWS_AT_ONCE // count)
    for start in range(0, resamples, rows):
        num = min(rows, resamples - start)
        numbers = generator.integers(count, size=(num, count)) + np.arange(num)[:, None] * count
        yield (
            np.bincount(numbers.ravel(), minlength=num * count)
            .reshape(num, count)
            .astype(np.float32)
        )
