"""Curves of several runs over one another, a colour and a line for each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from brimful.base.units import GIB, MIB
from brimful.report.drawing import AXIS, SERIES, Drawing, style, tick
from brimful.report.page.memory_page import measured_memory
from brimful.report.page.plots import LARGE, LARGE_ON_PHONES, SMALL, FloatArray, smooth, thin
from brimful.runs import RunFolder
from brimful.runs.measurements import losses_by_training_time
from brimful.runs.records import series

MOST_RUNS = len(SERIES)
"""As many as there are colours; a page says how many it left out."""
LineStyle = str | tuple[float, tuple[float, ...]]
LINES: tuple[LineStyle, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)))
"""Runs have their own line as well as their own colour."""

NamedRuns = Sequence[tuple[str, RunFolder]]


@dataclass(frozen=True)
class Curve:
    """Points of one run, drawn in the run's colour and line."""

    place: int
    x_N: FloatArray
    y_N: FloatArray

    @property
    def colour(self) -> str:
        """Of the light theme."""
        return SERIES[self.place % MOST_RUNS]

    @property
    def line(self) -> LineStyle:
        """Of the run."""
        return LINES[self.place % len(LINES)]

    def draw(self, axes: Axes, *, smoothed: bool = False, scale: float = 1.0) -> None:
        """Draw a line through the points, of long curves through some of them."""
        y_N = (smooth(self.y_N) if smoothed else self.y_N) / scale
        axes.plot(*thin(self.x_N, y_N), color=self.colour, linestyle=self.line, linewidth=1.5)


def overlays(runs: NamedRuns) -> list[Drawing]:
    """Return loss, validation loss by time, tokens per second and memory; those that no run has
    points for are left out. At most `MOST_RUNS` runs are drawn.
    """
    shown = runs[:MOST_RUNS]
    drawings = [_loss(shown), _loss_by_time(shown), _speed(shown), _memory(shown)]
    return [drawing for drawing in drawings if drawing is not None]


def _curves(
    runs: NamedRuns, points: Callable[[RunFolder], tuple[Sequence[float], Sequence[float]]]
) -> list[Curve]:
    """Return the curves of runs that have at least two points."""
    curves = []
    for place, (_, run) in enumerate(runs):
        x, y = points(run)
        if len(x) > 1:
            curves.append(Curve(place, np.asarray(x, np.float64), np.asarray(y, np.float64)))
    return curves


def _loss(runs: NamedRuns) -> Drawing | None:
    training = _curves(runs, lambda run: series(run.steps, "loss"))
    validation = _curves(runs, lambda run: series(run.evaluations, "loss"))
    if not training:
        return None

    def draw(axes: Axes) -> None:
        for curve in training:
            curve.draw(axes, smoothed=True)
            axes.lines[-1].set(linewidth=1.4, alpha=0.75, label=runs[curve.place][0])
        for curve in validation:
            axes.plot(curve.x_N, curve.y_N, "o", color=curve.colour, markersize=5)
        axes.legend(loc="upper right", frameon=False, fontsize=11, labelcolor=AXIS)

    return Drawing(
        "compare-loss",
        "Loss: lines training (smoothed), dots validation",
        f"Loss by optimizer step of {_names(runs)}",
        LARGE,
        _styled(draw, "optimizer step"),
        LARGE_ON_PHONES,
    )


def _loss_by_time(runs: NamedRuns) -> Drawing | None:
    curves = []
    for place, (_, run) in enumerate(runs):
        points = np.array(losses_by_training_time(run), np.float64).reshape(-1, 2)
        curves.append(Curve(place, points[:, 0] / 60, points[:, 1]))
    if not any(len(curve.x_N) > 1 for curve in curves):
        return None

    def draw(axes: Axes) -> None:
        for curve in curves:
            curve.draw(axes)
            axes.lines[-1].set(marker="o", markersize=4)

    return Drawing(
        "compare-loss-by-time",
        "Validation loss by time of training",
        f"Validation loss by minutes of training of {_names(runs)}",
        SMALL,
        _styled(draw, "minutes of training"),
    )


def _speed(runs: NamedRuns) -> Drawing | None:
    curves = _curves(runs, lambda run: series(run.steps, "tokens_per_second"))
    if not curves:
        return None

    def draw(axes: Axes) -> None:
        for curve in curves:
            curve.draw(axes, smoothed=True)
        axes.set_ylim(bottom=0)

    return Drawing(
        "compare-speed",
        "Tokens per second, smoothed",
        f"Tokens per second by optimizer step of {_names(runs)}",
        SMALL,
        _styled(draw, "optimizer step"),
    )


def _memory(runs: NamedRuns) -> Drawing | None:
    measured = [measured_memory(run) for _, run in runs]
    curves = [Curve(place, *points) for place, points in enumerate(measured) if points is not None]
    highest = max((float(curve.y_N.max()) for curve in curves), default=0.0)
    if not highest:
        return None
    unit, scale = ("GiB", GIB) if highest >= GIB else ("MiB", MIB)

    def draw(axes: Axes) -> None:
        for curve in curves:
            curve.draw(axes, scale=scale)
        axes.set_ylim(bottom=0)

    return Drawing(
        "compare-memory",
        f"Memory used, {unit}",
        f"Memory over the minutes of {_names(runs)}",
        SMALL,
        _styled(draw, "minutes"),
    )


def _styled(draw: Callable[[Axes], None], xlabel: str) -> Callable[[Figure], None]:
    """Return a function that draws on a figure with labelled axes."""

    def draw_all(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.yaxis.set_major_formatter(FuncFormatter(tick))
        draw(axes)
        style(axes, xlabel, integer=xlabel == "optimizer step")

    return draw_all


def _names(runs: NamedRuns) -> str:
    return ", ".join(name for name, _ in runs)
