"""Values with their intervals on one scale, and as cells of a table: for pages that compare
variants.
"""

from dataclasses import dataclass

from brimful.evaluation.metric import split_kind
from brimful.recipe import BASE
from brimful.report.comparison.compare import NEITHER_IS_BETTER, RunComparison, is_lower_better
from brimful.report.comparison.results import SAME_AS_LOSS
from brimful.report.comparison.text import form_of, heading

PAD = 0.04
"""Room at both ends of a drawn scale, as a share of it."""


@dataclass(frozen=True)
class Range:
    """A value with its interval on a scale from 0 to 100; `low` is `at` where there is no
    interval.
    """

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


@dataclass(frozen=True)
class Cell:
    """A number and its interval, as text."""

    value: str
    interval: str


def cell_of(text: str) -> Cell:
    """`1.923 [1.901, 1.945]` in two parts."""
    value, _, interval = text.partition(" [")
    return Cell(value, interval.removesuffix("]").replace(", ", " to "))


def has_ranges(comparison: RunComparison, metric: str, charted: set[str]) -> bool:
    """Whether a metric is drawn: not where neither end is better, where it repeats the loss, is of
    one type of question, or has a chart already.
    """
    return (
        not metric.endswith(NEITHER_IS_BETTER)
        and metric not in SAME_AS_LOSS
        and not split_kind(metric)[1]
        and heading(comparison, metric) not in charted
    )


def ranges_of(comparison: RunComparison, metric: str) -> Ranges:
    """Every variant's value on the same scale, from the least to the greatest end of all
    intervals.
    """
    found = [
        (variant.name, figure)
        for variant in comparison.variants
        if (figure := variant.figure(metric)) is not None
    ]
    ends: list[float] = [
        end for _, figure in found for end in (figure.value, *(figure.interval or ()))
    ]
    pad = (max(ends) - min(ends)) * PAD or 1.0
    least, most = min(ends) - pad, max(ends) + pad

    def place(value: float) -> float:
        return 100 * (value - least) / (most - least)

    form = form_of(comparison.unit(metric))
    rows = []
    for name, figure in found:
        low, high = figure.interval or (figure.value, figure.value)
        rows.append(
            Range(
                name,
                form(figure.value),
                place(figure.value),
                place(low),
                place(high) - place(low),
                name == BASE,
            )
        )
    return Ranges(
        heading(comparison, metric),
        "lower is better" if is_lower_better(metric) else "higher is better",
        tuple(rows),
    )
