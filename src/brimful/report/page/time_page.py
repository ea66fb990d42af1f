"""Where the time went, as a report shows it: what the plan expected above what was measured, and
advice from measurements alone.
"""

from dataclasses import dataclass

from brimful.base.units import format_duration
from brimful.report.bars import Part, bar_drawing, parts, share_text
from brimful.report.drawing import Drawing
from brimful.report.page.advice import Advice, advice
from brimful.report.tables import time_terms
from brimful.report.time_spent import NAMES, TimeSpent, time_spent
from brimful.runs.runfiles import RunFiles, number, section

PLANNED = {
    "training_time_s": ("Compute", "compute_s"),
    "evaluation_time_s": ("Evaluation", "evaluation_s"),
    "checkpoint_time_s": ("Checkpoints", "checkpoint_s"),
    "start_time_s": ("Compiling and starting", "compile_s"),
}
"""Predictions of the plan: their name, and the measured part whose colour they have."""
PLACES = {name: place for place, name in enumerate(NAMES)}


@dataclass(frozen=True)
class TimeRow:
    """One bar: predicted or measured."""

    name: str
    parts: tuple[Part, ...]
    total: str


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

    @property
    def keys(self) -> tuple[Part, ...]:
        return self.rows[-1].parts if self.rows else ()


def time_view(run: RunFiles) -> TimeView | None:
    """None where neither a plan nor a measurement says anything of time."""
    predicted, spent = section(run.plan, "predicted"), time_spent(run)
    planned = [
        (name, seconds, PLACES[like])
        for key, (name, like) in PLANNED.items()
        if (seconds := number(predicted.get(key)))
    ]
    measured = [
        (NAMES[key], getattr(spent, key), place)
        for key, place in PLACES.items()
        if spent is not None and getattr(spent, key)
    ]
    rows = tuple(
        _row(name, terms)
        for name, terms in (("predicted", planned), ("measured", measured))
        if terms
    )
    step_terms = tuple(parts(time_terms(run), "step_time_s"))
    if not rows and not step_terms:
        return None
    drawing = (
        bar_drawing(
            "time", "Where the time went", [(f"{row.name}\n{row.total}", row.parts) for row in rows]
        )
        if rows
        else None
    )
    return TimeView(_sentence(spent), rows, tuple(advice(run)), step_terms, drawing)


def _row(name: str, terms: list[tuple[str, float, int]]) -> TimeRow:
    found = parts(
        [(what, seconds) for what, seconds, _ in terms], "time_s", [place for *_, place in terms]
    )
    return TimeRow(name, tuple(found), format_duration(sum(seconds for _, seconds, _ in terms)))


def _sentence(spent: TimeSpent | None) -> str:
    """What the parts do not show: how long steps waited, and how long the device did nothing."""
    if spent is None:
        return ""
    waiting, idle = spent.waiting_share, spent.device_idle_share
    told = [
        f"{share_text(spent.share(spent.compute_s))} of {format_duration(spent.total_s)} was"
        " computing"
    ]
    told += (
        [] if waiting is None else [f"steps waited {share_text(waiting)} of their time for data"]
    )
    told += (
        []
        if idle is None
        else [f"no kernel ran for {share_text(idle)} of the time that was watched"]
    )
    return f"{'; '.join(told)}."
