"""Curves of several runs over one another, told apart by their places."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from brimful.base.units import GIB, MIB
from brimful.report.bars import MOST_PARTS
from brimful.report.chart import Chart, Series, mean_of, series_of
from brimful.report.page.memory_page import measured_memory
from brimful.report.page.plots import MINUTES, STEPS
from brimful.runs.folder import RunFolder
from brimful.runs.measurements import losses_by_training_time
from brimful.runs.records import series

MOST_RUNS = MOST_PARTS
"""The most runs whose curves stand in one chart; the page says how many it left out."""

NamedRuns = Sequence[tuple[str, RunFolder]]
Points = tuple[ArrayLike, ArrayLike] | None


def overlays(runs: NamedRuns) -> list[Chart]:
    """Return loss, validation loss by time, tokens per second and memory; those that no run has
    points for are left out. At most `MOST_RUNS` runs are drawn.
    """
    shown = runs[:MOST_RUNS]
    names = ", ".join(name for name, _ in shown)
    loss = _series(shown, lambda run: series(run.steps, "loss"), mean_of)
    if loss:
        evaluated = _series(shown, lambda run: series(run.evaluations, "loss"), look="points")
        loss += tuple(replace(each, name="") for each in evaluated)
    memory = [measured_memory(run) for _, run in shown]
    highest = max((float(each[1].max()) for each in memory if each is not None), default=0.0)
    unit, scale = ("GiB", GIB) if highest >= GIB else ("MiB", MIB)
    charts = (
        Chart(
            "compare-loss",
            "Loss: lines training (smoothed), dots validation",
            f"Loss by optimizer step of {names}",
            STEPS,
            loss,
            is_main=True,
        ),
        Chart(
            "compare-loss-by-time",
            "Validation loss by time of training",
            f"Validation loss by minutes of training of {names}",
            "minutes of training",
            _series(shown, _loss_by_time, look="dotted"),
        ),
        Chart(
            "compare-speed",
            "Tokens per second, smoothed",
            f"Tokens per second by optimizer step of {names}",
            STEPS,
            _series(shown, lambda run: series(run.steps, "tokens_per_second"), mean_of),
            y_range=(0.0, None),
        ),
        Chart(
            "compare-memory",
            f"Memory used, {unit}",
            f"Memory over the minutes of {names}",
            MINUTES,
            _series(shown, lambda run: _scaled(measured_memory(run), scale)),
            y_range=(0.0, None),
        ),
    )
    return [chart for chart in charts if chart.series]


def _series(
    runs: NamedRuns,
    points: Callable[[RunFolder], Points],
    make: Callable[..., Series] = series_of,
    **looks: Any,
) -> tuple[Series, ...]:
    """Return a series for each run that has at least two points."""
    found = [(place, name, points(run)) for place, (name, run) in enumerate(runs)]
    return tuple(
        make(name, *known, place=place, **looks)
        for place, name, known in found
        if known is not None and np.size(known[0]) > 1
    )


def _loss_by_time(run: RunFolder) -> Points:
    seconds_N2 = np.array(losses_by_training_time(run), np.float64).reshape(-1, 2)
    return seconds_N2[:, 0] / 60, seconds_N2[:, 1]


def _scaled(points: Points, scale: float) -> Points:
    return None if points is None else (points[0], np.asarray(points[1]) / scale)
