"""Predictions of the plan beside measurements, as a page shows them: a row for each quantity, with
a gauge of where the measurement lies in the stated interval.
"""

import math
from collections.abc import Iterable, Sequence
from functools import partial

from brimful.base.types import Bounds
from brimful.report.judgement import BANDS, CLOSE, GUESS_WIDTH
from brimful.report.predictions import Comparison
from brimful.report.quantities import MINUS, format_error, format_quantity
from brimful.report.table import Cell, Gauge, Row, Table, table_of
from brimful.report.views import Block, Paragraph, fold, text

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


def judged_blocks(found: Sequence[Comparison], rest: str = "") -> tuple[Block, ...]:
    """Return predictions beside measurements, how they are judged, and how each number came about.

    Args:
        found: The predictions.
        rest: What else is to be said of those without a measurement.
    """
    close, off = (f"{band.limit * 100:.0f} %" for band in BANDS[:-1])
    told = (
        f"Error = (predicted - measured) / measured, close up to {close}, off up to {off}, else far"
        ' off. Bars are the stated intervals, marks the measurements. "-" is what was not'
        f" measured{rest}."
    )
    origins = fold("How each number came about", origin_table(found))
    return Paragraph(told, "note"), *prediction_tables(found), *origins


def prediction_tables(of: Iterable[Comparison]) -> tuple[Block, ...]:
    """Return predictions as tables, those that were measured first and rough guesses apart."""
    found = sorted(of, key=lambda each: each.measured is None)
    scale = _scale(found)
    counted = [_row(each, scale) for each in found if not each.judgement.is_guess]
    guessed = [_row(each, scale) for each in found if each.judgement.is_guess]
    is_drawn = any(isinstance(row[-1], Gauge) for row in (*counted, *guessed))
    gauges = f"Interval, from 1/{scale:g} to {scale:g}x" if is_drawn else ""
    columns = ("Quantity", "Predicted", "Measured", "Error", gauges)
    note = f"Rough guesses, not counted: intervals of {GUESS_WIDTH:g}x or wider"
    tables = (table_of(columns, counted), table_of(columns, guessed))
    blocks = (tables[0], *text(note if guessed else "", "note"), tables[1])
    return tuple(block for block in blocks if block)


def origin_table(found: Iterable[Comparison]) -> Table | None:
    """How each prediction was derived, and how each measurement was made."""
    rows = [(each.name, each.basis, each.source) for each in found if each.basis or each.source]
    return table_of(("Quantity", "Predicted from", "Measured as"), rows)


def _row(comparison: Comparison, scale: float) -> Row:
    form, judgement = partial(format_quantity, comparison.key), comparison.judgement
    measured: Cell | str = NOT_MEASURED
    if comparison.measured is not None:
        measured = Cell(comparison.measured, form)
    error: Cell | str = NOT_MEASURED
    if judgement.error is not None:
        error = Cell(judgement.error, lambda value: format_error(value, MINUS), note=judgement.word)
    predicted = Cell(comparison.predicted, form, comparison.interval)
    return comparison.name, predicted, measured, error, _gauge(comparison, scale)


def _ratios(comparison: Comparison) -> tuple[float | None, Bounds | None]:
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
    about = f"measured {at:.2f} times what was predicted"
    if ends is not None:
        about += f"; interval {ends[0]:.2f} to {ends[1]:.2f} times"
    judgement = comparison.judgement
    word = "" if judgement.is_guess and judgement.band is CLOSE else judgement.word
    return Gauge((1 / scale, scale), at, ends, about, judgement.inside, 1.0, word, is_log=True)
