"""The values of all variants with their intervals on one scale, for pages that compare variants."""

from collections.abc import Iterator

from brimful.evaluation.metric import split_kind
from brimful.recipe import BASE
from brimful.report.comparison.compare import NEITHER_IS_BETTER, RunComparison, is_lower_better
from brimful.report.comparison.results import SAME_AS_LOSS
from brimful.report.comparison.units import heading, unit_of
from brimful.report.table import Gauge, Table
from brimful.report.views import Block, Heading

PAD = 0.04
"""Room at both ends of a drawn scale, as a share of it."""


def all_ranges(comparison: RunComparison, charted: frozenset[str] = frozenset()) -> Iterator[Block]:
    """Return a table of every metric that is drawn; `charted` are headings of metrics that have a
    chart already.
    """
    for metric in comparison.metrics:
        title = heading(comparison, metric)
        if has_ranges(metric) and title not in charted:
            better = "lower" if is_lower_better(metric) else "higher"
            yield Heading(f"{title}: {better} is better")
            yield range_table(comparison, metric)


def has_ranges(metric: str) -> bool:
    """Whether a metric is drawn: one with a better direction that does not repeat the loss and is
    over all types of question.
    """
    return not (
        metric.endswith(NEITHER_IS_BETTER) or metric in SAME_AS_LOSS or split_kind(metric)[1]
    )


def range_table(comparison: RunComparison, metric: str) -> Table:
    """Return every variant's value on the same scale, from the least to the greatest end of all
    intervals.
    """
    figures = comparison.figures(metric)
    ends = [end for _, figure in figures for end in (figure.value, *figure.bounds)]
    pad = (max(ends) - min(ends)) * PAD or 1.0
    scale = (min(ends) - pad, max(ends) + pad)
    form = unit_of(comparison, metric).formatter()
    rows = []
    for variant, figure in figures:
        text, word = form(figure.value), "base" if variant.name == BASE else ""
        about = f"{variant.name}: {text}"
        gauge = Gauge(scale, figure.value, figure.bounds, about, text, word=word)
        rows.append((variant.name, gauge))
    return Table(("", ""), tuple(rows))
