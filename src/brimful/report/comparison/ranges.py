"""The values of all variants with their intervals on one scale, for pages that compare variants."""

from dataclasses import dataclass

from brimful.evaluation.metric import split_kind
from brimful.recipe import BASE
from brimful.report.comparison.compare import NEITHER_IS_BETTER, RunComparison, is_lower_better
from brimful.report.comparison.results import SAME_AS_LOSS
from brimful.report.comparison.units import heading, unit_of

PAD = 0.04
"""Room at both ends of a drawn scale, as a share of it."""


@dataclass(frozen=True)
class Range:
    """A value with its interval on a scale from 0 to 100; `low` is `at` without an interval."""

    name: str
    text: str
    at: float
    low: float
    width: float
    is_base: bool


@dataclass(frozen=True)
class Ranges:
    """One metric of all variants."""

    title: str
    direction: str
    rows: tuple[Range, ...]


def all_ranges(comparison: RunComparison, charted: frozenset[str] = frozenset()) -> list[Ranges]:
    """Return the ranges of every metric that is drawn; `charted` are headings of metrics that have
    a chart already.
    """
    return [
        ranges_of(comparison, metric)
        for metric in comparison.metrics
        if has_ranges(metric) and heading(comparison, metric) not in charted
    ]


def has_ranges(metric: str) -> bool:
    """Whether a metric is drawn: one with a better direction that does not repeat the loss and is
    over all types of question.
    """
    return not (
        metric.endswith(NEITHER_IS_BETTER) or metric in SAME_AS_LOSS or split_kind(metric)[1]
    )


def ranges_of(comparison: RunComparison, metric: str) -> Ranges:
    """Return every variant's value on the same scale, from the least to the greatest end of all
    intervals.
    """
    figures = comparison.figures(metric)
    ends = [end for _, figure in figures for end in (figure.value, *figure.bounds)]
    pad = (max(ends) - min(ends)) * PAD or 1.0
    least, most = min(ends) - pad, max(ends) + pad

    def place(value: float) -> float:
        return 100 * (value - least) / (most - least)

    form = unit_of(comparison, metric).formatter()
    rows = [
        Range(
            name=variant.name,
            text=form(figure.value),
            at=place(figure.value),
            low=place(figure.bounds[0]),
            width=place(figure.bounds[1]) - place(figure.bounds[0]),
            is_base=variant.name == BASE,
        )
        for variant, figure in figures
    ]
    direction = "lower is better" if is_lower_better(metric) else "higher is better"
    return Ranges(heading(comparison, metric), direction, tuple(rows))
