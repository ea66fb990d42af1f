"""Predictions of the plan beside measurements, as a page shows them: a row for each quantity, with
a gauge of where the measurement lies in the stated interval.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from brimful.report.predictions import Comparison, comparisons
from brimful.report.quantities import MINUS, format_error, format_quantity
from brimful.report.table import Interval, Table, table_of
from brimful.runs import RunFolder

SCALES = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""What the right end of the gauges may stand for: so many times the prediction; the left end is the
prediction divided by it. All rows share one scale.
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
"""The scale has room for these; other values beyond it are drawn at its ends."""
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
class PredictionRow:
    """One row.

    Attributes:
        word, tone: How large the error is, and the class of its colour; see `judgement`.
        inside: Whether the measurement lies in the interval, in a word.
        is_guess: Whether the interval is too wide for a prediction.
    """

    name: str
    predicted: str
    interval: str
    measured: str
    error: str
    word: str
    tone: str
    inside: str
    is_guess: bool
    gauge: Gauge | None


def predictions(run: RunFolder) -> tuple[list[PredictionRow], str]:
    """Return every prediction of the plan, rough guesses behind others and in both those first that
    were measured, and the end of their gauges as text; "" where there is none to show.
    """
    return prediction_rows(comparisons(run))


def prediction_rows(of: Iterable[Comparison]) -> tuple[list[PredictionRow], str]:
    """Return such rows of any predictions."""
    found = sorted(of, key=lambda each: (each.judgement.is_guess, each.measured is None))
    scale = _scale(found)
    rows = [_row(comparison, scale) for comparison in found]
    return rows, f"{scale:g}" if any(row.gauge for row in rows) else ""


def origin_table(run: RunFolder) -> Table | None:
    """How each prediction was derived, and how each measurement was made."""
    rows = [
        (each.name, each.basis, each.source)
        for each in comparisons(run)
        if each.basis or each.source
    ]
    return table_of(("Quantity", "Predicted from", "Measured as"), rows)


def _row(comparison: Comparison, scale: float) -> PredictionRow:
    key, judgement = comparison.key, comparison.judgement
    return PredictionRow(
        comparison.name,
        _text(key, comparison.predicted),
        " to ".join(format_quantity(key, end) for end in comparison.interval or ()),
        _text(key, comparison.measured),
        NOT_MEASURED if judgement.error is None else format_error(judgement.error, MINUS),
        judgement.word,
        judgement.tone,
        judgement.inside,
        judgement.is_guess,
        _gauge(comparison, scale),
    )


def _text(key: str, value: float | None) -> str:
    return NOT_MEASURED if value is None else format_quantity(key, value)


def _ratios(comparison: Comparison) -> tuple[float | None, Interval | None]:
    """Return the measurement and the interval over the prediction; None where one is not above
    zero.
    """
    predicted, measured = comparison.predicted, comparison.measured or 0.0
    if predicted <= 0:
        return None, None
    at = measured / predicted if measured > 0 else None
    low, high = comparison.interval or (0.0, 0.0)
    return at, (low / predicted, high / predicted) if low > 0 and high > 0 else None


def _scale(found: list[Comparison]) -> float:
    """Return the least of `SCALES` in which every main measurement and its interval lie."""
    furthest = 0.0
    for comparison in [each for each in found if each.key in MAIN] or found:
        at, ends = _ratios(comparison)
        if at is not None:
            furthest = max(furthest, *(abs(math.log(ratio)) for ratio in (at, *(ends or ()))))
    return next((scale for scale in SCALES if furthest <= math.log(scale)), SCALES[-1])


def _gauge(comparison: Comparison, scale: float) -> Gauge | None:
    at, ends = _ratios(comparison)
    if at is None:
        return None

    def place(ratio: float) -> float:
        return min(100.0, max(0.0, 50 + 50 * math.log(ratio) / math.log(scale)))

    text, at_text = f"measured {at:.2f} times what was predicted", f"{place(at):.1f}%"
    if ends is None:
        return Gauge(text, "0%", None, at_text)
    text += f"; interval {ends[0]:.2f} to {ends[1]:.2f} times"
    low, high = (place(end) for end in ends)
    return Gauge(text, f"{low:.1f}%", f"{high - low:.1f}%", at_text)
