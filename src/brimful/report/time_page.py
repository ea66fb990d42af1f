"""Where the time went, as a report shows it: what the plan expected above what was measured, and advice from measurements alone."""

from dataclasses import dataclass

from brimful.base.units import format_duration
from brimful.report.bars import Part, bar_drawing, parts
from brimful.report.drawing import Drawing
from brimful.report.runfiles import RunFiles, number, section, stage_times_s
from brimful.report.tables import time_terms

PLANNED = {
    "training_time_s": "Compute",
    "evaluation_time_s": "Evaluation",
    "checkpoint_time_s": "Checkpoints",
    "start_time_s": "Compiling and starting",
}
"""Predictions of the plan, and what measured part each is beside."""
ORDER = ("Compute", "Waiting for data", "Evaluation", "Checkpoints", "Compiling and starting", "Idle")
"""Of parts and their colours."""


@dataclass(frozen=True)
class TimeRow:
    """One bar: predicted or measured."""

    name: str
    parts: tuple[Part, ...]
    total: str


@dataclass(frozen=True)
class TimeView:
    """What the section shows; `keys` are the parts of the last row, which is the measured one where anything was measured."""

    sentence: str
    rows: tuple[TimeRow, ...]
    keys: tuple[Part, ...]
    advice: tuple[str, ...]
    step_terms: tuple[Part, ...]
    notes: tuple[str, ...]
    drawing: Drawing | None


def time_view(run: RunFiles) -> TimeView | None:
    """None where neither a plan nor a measurement says anything of time."""
    planned = [(name, value) for key, name in PLANNED.items() if (value := number(section(run.plan, "predicted").get(key)))]
    measured = _measured(run)
    rows = [_row(name, terms) for name, terms in (("predicted", planned), ("measured", measured)) if terms]
    step_terms = tuple(parts(time_terms(run), "step_time_s"))
    if not rows and not step_terms:
        return None
    drawing = bar_drawing("time", "Where the time went", [(row.name, row.parts) for row in rows]) if rows else None
    return TimeView("", tuple(rows), rows[-1].parts if rows else (), (), step_terms, (), drawing)


def _measured(run: RunFiles) -> list[tuple[str, float]]:
    times = stage_times_s(run)
    return [(name, value) for key, name in PLANNED.items() if (value := times.get(key))]


def _row(name: str, terms: list[tuple[str, float]]) -> TimeRow:
    ordered = sorted(terms, key=lambda term: ORDER.index(term[0]))
    return TimeRow(name, tuple(parts(ordered, "time_s", [ORDER.index(each) for each, _ in ordered])), format_duration(sum(size for _, size in terms)))
