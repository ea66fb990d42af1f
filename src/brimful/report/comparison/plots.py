"""Curves of several runs over one another, a colour and a line for each."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from brimful.base.units import GIB, MIB
from brimful.report.drawing import AXIS, SERIES, Drawing, style, tick
from brimful.report.page.memory_page import measured_memory
from brimful.report.page.plots import LARGE, LARGE_ON_PHONES, SMALL, FloatArray, smooth, thin
from brimful.runs.runfiles import RunFiles, losses_by_training_time, series

MOST_RUNS = len(SERIES)
"""As many as there are colours; a page says how many it left out."""
SIZE = SMALL
"""Three stand side by side on a page."""
LINES: tuple[str | tuple[float, tuple[float, ...]], ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)))
"""Runs are told apart by line as well as by colour."""

Points = tuple[FloatArray, FloatArray]
Named = Sequence[tuple[str, RunFiles]]


def overlays(runs: Named) -> list[Drawing]:
    """Loss, validation loss by time, tokens per second and memory; those that no run has points for
    are left out. At most `MOST_RUNS` runs.
    """
    shown = runs[:MOST_RUNS]
    found = [_loss(shown), _loss_by_time(shown), _speed(shown), _memory(shown)]
    return [drawing for drawing in found if drawing is not None]


def colour_of(place: int) -> str:
    """Of a run, in the light theme."""
    return SERIES[place % MOST_RUNS]


def line_of(place: int) -> str | tuple[float, tuple[float, ...]]:
    """Of a run."""
    return LINES[place % len(LINES)]


def _points(run: RunFiles, kind: str, name: str) -> Points | None:
    steps, values = series(run.of_kind(kind), name)
    return (
        (np.asarray(steps, dtype=np.float64), np.asarray(values, dtype=np.float64))
        if len(steps) > 1
        else None
    )


def _loss(runs: Named) -> Drawing | None:
    training = [_points(run, "step", "loss") for _, run in runs]
    held_out = [_points(run, "evaluation", "loss") for _, run in runs]
    if not any(training):
        return None

    def draw(axes: Axes) -> None:
        for place, (name, _) in enumerate(runs):
            if (points := training[place]) is not None:
                smoothed = smooth(points[1])
                axes.plot(
                    *thin(points[0], smoothed),
                    color=colour_of(place),
                    linestyle=line_of(place),
                    linewidth=1.4,
                    alpha=0.75,
                    label=name,
                )
            if (points := held_out[place]) is not None:
                axes.plot(*points, "o", color=colour_of(place), markersize=5)
        axes.legend(loc="upper right", frameon=False, fontsize=11, labelcolor=AXIS)

    told = f"Loss by optimizer step of {_names(runs)}"
    return _drawing(
        ("loss", "Loss: lines training (smoothed), dots validation", told),
        draw,
        "optimizer step",
        LARGE,
        LARGE_ON_PHONES,
    )


def _loss_by_time(runs: Named) -> Drawing | None:
    found = [losses_by_training_time(run) for _, run in runs]
    if not any(len(curve) > 1 for curve in found):
        return None

    def draw(axes: Axes) -> None:
        for place, curve in enumerate(found):
            minutes, losses = [seconds / 60 for seconds, _ in curve], [loss for _, loss in curve]
            axes.plot(
                minutes,
                losses,
                color=colour_of(place),
                linestyle=line_of(place),
                linewidth=1.5,
                marker="o",
                markersize=4,
            )

    told = f"Validation loss by minutes of training of {_names(runs)}"
    return _drawing(
        ("loss-by-time", "Validation loss by time of training", told),
        draw,
        "minutes of training",
        SIZE,
    )


def _speed(runs: Named) -> Drawing | None:
    found = [_points(run, "step", "tokens_per_second") for _, run in runs]
    if not any(found):
        return None

    def draw(axes: Axes) -> None:
        for place, points in enumerate(found):
            if points is not None:
                axes.plot(
                    *thin(points[0], smooth(points[1])),
                    color=colour_of(place),
                    linestyle=line_of(place),
                    linewidth=1.5,
                )
        axes.set_ylim(bottom=0)

    return _drawing(
        (
            "speed",
            "Tokens per second, smoothed",
            f"Tokens per second by optimizer step of {_names(runs)}",
        ),
        draw,
        "optimizer step",
        SIZE,
    )


def _memory(runs: Named) -> Drawing | None:
    found = [measured_memory(run) for _, run in runs]
    highest = max((float(points[1].max()) for points in found if points is not None), default=0.0)
    if not highest:
        return None
    unit, scale = ("GiB", GIB) if highest >= GIB else ("MiB", MIB)

    def draw(axes: Axes) -> None:
        for place, points in enumerate(found):
            if points is not None:
                axes.plot(
                    *thin(points[0], points[1] / scale),
                    color=colour_of(place),
                    linestyle=line_of(place),
                    linewidth=1.5,
                )
        axes.set_ylim(bottom=0)

    return _drawing(
        ("memory", f"Memory used, {unit}", f"Memory over the minutes of {_names(runs)}"),
        draw,
        "minutes",
        SIZE,
    )


def _drawing(
    told: tuple[str, str, str],
    draw: Callable[[Axes], None],
    xlabel: str,
    size: tuple[int, int],
    phone_size: tuple[int, int] | None = None,
) -> Drawing:
    """`told`: key, title and description."""

    def draw_all(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        draw(axes)
        style(axes, xlabel, integer=xlabel == "optimizer step")

    return Drawing(f"compare-{told[0]}", told[1], told[2], size, draw_all, phone_size)


def _names(runs: Named) -> str:
    return ", ".join(name for name, _ in runs)
