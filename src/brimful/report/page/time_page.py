"""Where the time went, as a report shows it: the plan's prediction above the measurement, and
advice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brimful.base.units import format_duration
from brimful.report.bars import Part, bar_drawing, parts, share_text, widths
from brimful.report.drawing import Drawing
from brimful.report.page.advice import Advice, advice
from brimful.report.predictions import time_terms
from brimful.report.ranks import ranks_table
from brimful.report.table import Table
from brimful.report.time_spent import NAMES, TimeSpent, time_spent
from brimful.runs import RunFolder

PLANNED = {
    "training_time_s": ("Compute", "compute_s"),
    "evaluation_time_s": ("Evaluation", "evaluation_s"),
    "base_time_s": ("Scoring the base", "base_s"),
    "checkpoint_time_s": ("Checkpoints", "checkpoint_s"),
    "start_time_s": ("Compiling and starting", "compile_s"),
}
"""Predictions of the plan: their name, and the measured part whose colour they have."""
PLACES = {name: place for place, name in enumerate(NAMES)}


@dataclass(frozen=True)
class TimeRow:
    """One bar: predicted or measured; `width` is its share of the longest, as CSS."""

    name: str
    parts: tuple[Part, ...]
    total: str
    width: str = "100%"


@dataclass(frozen=True)
class TimeView:
    """What the section shows; `keys` are the parts of the last row, which is the measured one where
    anything was measured.
    """

    sentence: str
    rows: tuple[TimeRow, ...]
    advice: tuple[Advice, ...]
    step_terms: tuple[Part, ...]
    drawing: Drawing | None
    ranks: Table | None = None

    @property
    def keys(self) -> tuple[Part, ...]:
        return self.rows[-1].parts if self.rows else ()


def time_view(run: RunFolder) -> TimeView | None:
    """None where neither a plan nor a measurement says anything of time."""
    spent = time_spent(run)
    rows = on_one_scale([row for row in (_planned_row(run), measured_row(spent)) if row])
    step_terms = tuple(parts(time_terms(run), "step_time_s"))
    if not rows and not step_terms:
        return None
    bars = [(f"{row.name}\n{row.total}", row.parts) for row in rows]
    drawing = bar_drawing("time", "Where the time went", bars) if rows else None
    ranks = ranks_table(run)
    return TimeView(_sentence(spent), rows, tuple(advice(run)), step_terms, drawing, ranks)


def on_one_scale(rows: Sequence[TimeRow]) -> tuple[TimeRow, ...]:
    """Return the same bars with widths by which they can be compared."""
    lengths = widths([row.parts for row in rows])
    return tuple(replace(row, width=width) for row, width in zip(rows, lengths, strict=True))


def _planned_row(run: RunFolder) -> TimeRow | None:
    predicted = {key: run.predicted(key) for key in PLANNED}
    terms = [
        (PLANNED[key][0], seconds, PLACES[PLANNED[key][1]])
        for key, seconds in predicted.items()
        if seconds
    ]
    return _row("predicted", terms)


def measured_row(spent: TimeSpent | None, name: str = "measured") -> TimeRow | None:
    """Return the bar of the measured parts; None where nothing was measured."""
    known = {key: getattr(spent, key) for key in PLACES} if spent else {}
    terms = [(NAMES[key], seconds, PLACES[key]) for key, seconds in known.items() if seconds]
    return _row(name, terms)


def _row(name: str, terms: list[tuple[str, float, int]]) -> TimeRow | None:
    if not terms:
        return None
    seconds = [(part, part_s) for part, part_s, _ in terms]
    found = parts(seconds, "time_s", [place for *_, place in terms])
    return TimeRow(name, tuple(found), format_duration(sum(part_s for _, part_s in seconds)))


def _sentence(spent: TimeSpent | None) -> str:
    """Say what the bar does not show: how long steps waited, and how long the device did
    nothing.
    """
    if spent is None:
        return ""
    computing = share_text(spent.share(spent.compute_s))
    sentences = [f"{computing} of {format_duration(spent.total_s)} was computing"]
    if spent.waiting_share is not None:
        sentences.append(f"steps waited {share_text(spent.waiting_share)} of their time for data")
    if spent.device_idle_share is not None:
        idle = share_text(spent.device_idle_share)
        sentences.append(f"no kernel ran for {idle} of the time that was watched")
    return f"{'; '.join(sentences)}."
