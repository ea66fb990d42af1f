"""How the scores and costs of variants print, and the table of a comparison."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from brimful.evaluation.metric import split_kind
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.results import OF_LAYERS
from brimful.report.comparison.variants import Variant
from brimful.report.predictions import PREDICTED_NAMES
from brimful.report.quantities import capitalised, format_quantity, label
from brimful.report.table import Cell, Row, Table


@dataclass(frozen=True)
class ScoreUnit:
    """How scores of a unit print.

    Attributes:
        digits: A format specification.
        factor: What values are multiplied by.
        heading: The unit in the heading of a column.
        of_difference: The unit behind a difference.
    """

    digits: str = ".3g"
    factor: float = 1.0
    heading: str = ""
    of_difference: str = ""

    def formatter(self, sign: str = "") -> Callable[[float], str]:
        """Return a function that formats a value without its unit; the sign "+" shows both
        signs.
        """
        return lambda value: format(value * self.factor, f"{sign}{self.digits}")


UNITS = {
    "nats/token": ScoreUnit(".3f", 1, "nats/token", "nats/token"),
    "nats/text": ScoreUnit(".4f", 1, "nats/text", "nats/text"),
    "nats/pair": ScoreUnit(".3f", 1, "nats/pair", "nats/pair"),
    "nats/masked token": ScoreUnit(".3f", 1, "nats/masked token", "nats/masked token"),
    "area": ScoreUnit(".3f"),
    "share": ScoreUnit(".1f", 100, "%", "points"),
    "BLEU": ScoreUnit(".1f", 1, "", "BLEU"),
    "chrF": ScoreUnit(".1f", 1, "", "chrF"),
    "tokens": ScoreUnit(".0f", 1, "tokens", "tokens"),
    "perplexity": ScoreUnit(",.1f"),
    "bits/byte": ScoreUnit(".3f", 1, "", "bits/byte"),
    "cosine": ScoreUnit(".3f"),
}


def unit_of(comparison: RunComparison, metric: str) -> ScoreUnit:
    """Return how a metric's values print."""
    return UNITS.get(comparison.unit(metric), ScoreUnit())


def heading(comparison: RunComparison, metric: str) -> str:
    """`Code-syntax syntax (%)`."""
    unit = unit_of(comparison, metric).heading
    name = capitalised(metric).replace("_", " ")
    return f"{name} ({unit})" if unit else name


def comparison_table(comparison: RunComparison) -> Table:
    """Return one row for each variant: the number of seeds where there are several, scores, then
    costs, each with its interval if known.
    """
    table = variant_table(comparison, (*comparison.metrics, *comparison.costs))
    counts = [len(variant.runs) for variant in comparison.variants]
    if max(counts) == 1:
        return table
    name, *titles = table.columns
    rows: list[Row] = [
        (row[0], count, *row[1:]) for row, count in zip(table.rows, counts, strict=True)
    ]
    return Table((name, "Seeds", *titles), tuple(rows))


def score_table(comparison: RunComparison) -> Table:
    """Return the scores over all examples."""
    return variant_table(
        comparison,
        [
            metric
            for metric in comparison.metrics
            if metric not in OF_LAYERS and not split_kind(metric)[1]
        ],
    )


def layer_table(comparison: RunComparison) -> Table:
    """Return what was measured inside the layers, means over them."""
    metrics = [metric for metric in comparison.metrics if metric in OF_LAYERS]
    return variant_table(comparison, metrics)


def variant_table(comparison: RunComparison, names: Sequence[str]) -> Table:
    """Return one row for each variant with its scores and costs of the given names."""
    columns = []
    for name in names:
        if name in comparison.costs:
            columns.append(PREDICTED_NAMES.get(name, label(name)))
        else:
            columns.append(heading(comparison, name))
    rows: list[Row] = [
        (variant.name, *(variant_cell(comparison, variant, name) for name in names))
        for variant in comparison.variants
    ]
    return Table(("", *columns), tuple(rows))


def variant_cell(comparison: RunComparison, variant: Variant, name: str) -> Cell:
    """Return a variant's score or cost with its interval. A cost that does not depend on the seed
    has no interval.
    """
    figure = variant.figure(name)
    if figure is None:
        return Cell(None)
    if name not in comparison.costs:
        form = unit_of(comparison, name).formatter()
        return Cell(figure.value, form, figure.interval)
    form = partial(format_quantity, name)
    varies = figure.interval is not None and form(figure.interval[0]) != form(figure.interval[1])
    return Cell(figure.value, form, figure.interval if varies else None)
