"""What the plan said beside what came true, as a page shows it: a row for each quantity, with where
the measurement lies in the stated interval.
"""

import math
from dataclasses import dataclass

from brimful.report import tables
from brimful.report.quantities import format_error, format_quantity
from brimful.report.table import Table
from brimful.report.tables import Comparison
from brimful.runs.runfiles import RunFiles

SCALES = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Times the prediction at the right end of the gauges, which all rows share; at the left end one by
it.
"""
MAIN = (
    "peak_memory_bytes",
    "step_time_s",
    "tokens_per_s",
    "mfu",
    "training_time_s",
    "total_time_s",
    "energy_wh",
    "cost_usd",
)
"""What the scale is made for; of others, ends that lie beyond it are drawn at its ends."""
NOT_MEASURED = "-"


@dataclass(frozen=True)
class Gauge:
    """Places as CSS: the prediction is in the middle of a logarithmic scale. None for what is not
    known.
    """

    label: str
    low: str
    width: str | None
    at: str | None


@dataclass(frozen=True)
class Prediction:
    """One row; `tone` is "good", "bad" or "" where no interval was stated or nothing measured."""

    name: str
    predicted: str
    interval: str
    measured: str
    error: str
    inside: str
    tone: str
    gauge: Gauge | None


def predictions(run: RunFiles) -> tuple[list[Prediction], str]:
    """Every prediction of the plan, those that were measured first, and the end of their gauges as
    text; "" where there is none to show.
    """
    found = sorted(tables.comparisons(run), key=lambda comparison: comparison.measured is None)
    scale = _scale(found)
    rows = [_row(comparison, scale) for comparison in found]
    return rows, f"{scale:g}" if any(row.gauge for row in rows) else ""


def origin_table(run: RunFiles) -> Table | None:
    """How each prediction and each measurement came about."""
    rows = tuple(
        (each.name, each.basis, each.way)
        for each in tables.comparisons(run)
        if each.basis or each.way
    )
    return Table(("Quantity", "Predicted from", "Measured as"), rows) if rows else None


def _row(comparison: Comparison, scale: float) -> Prediction:
    def show(value: float | None) -> str:
        return NOT_MEASURED if value is None else format_quantity(comparison.key, value)

    return Prediction(
        comparison.name,
        show(comparison.predicted),
        f"{show(comparison.interval[0])} to {show(comparison.interval[1])}"
        if comparison.interval
        else "",
        show(comparison.measured),
        NOT_MEASURED
        if comparison.error is None
        else format_error(comparison.error).replace("-", "\N{MINUS SIGN}"),
        {True: "inside", False: "outside", None: ""}[comparison.came_true],
        {True: "good", False: "bad", None: ""}[comparison.came_true],
        _gauge(comparison, scale),
    )


def _ratios(comparison: Comparison) -> tuple[float | None, tuple[float, float] | None]:
    """The measurement and the interval, over the prediction; None where one is not above zero."""
    if comparison.predicted <= 0:
        return None, None
    at = (
        comparison.measured / comparison.predicted
        if comparison.measured and comparison.measured > 0
        else None
    )
    ends = [end / comparison.predicted for end in comparison.interval or () if end > 0]
    return at, (ends[0], ends[1]) if len(ends) == 2 else None


def _scale(found: list[Comparison]) -> float:
    """The least of `SCALES` that every main measurement and its interval lie in."""
    counted = [comparison for comparison in found if comparison.key in MAIN] or found
    known = [
        ratio
        for comparison in counted
        for at, ends in [_ratios(comparison)]
        if at is not None
        for ratio in (at, *(ends or ()))
    ]
    furthest = max((abs(math.log(ratio)) for ratio in known), default=0.0)
    return next((scale for scale in SCALES if furthest <= math.log(scale)), SCALES[-1])


def _gauge(comparison: Comparison, scale: float) -> Gauge | None:
    at, ends = _ratios(comparison)
    if at is None:
        return None

    def place(ratio: float) -> float:
        return min(100.0, max(0.0, 50 + 50 * math.log(ratio) / math.log(scale)))

    told = f"measured {at:.2f} times what was predicted" + (
        f"; interval {ends[0]:.2f} to {ends[1]:.2f} times" if ends else ""
    )
    if ends is None:
        return Gauge(told, "0%", None, f"{place(at):.1f}%")
    low, high = (place(end) for end in ends)
    return Gauge(told, f"{low:.1f}%", f"{high - low:.1f}%", f"{place(at):.1f}%")
