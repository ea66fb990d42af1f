"""Shared pieces of a classifier's figures: axes, legends and the colours of curves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from brimful.report.drawing import AXIS, BASELINE, BEST, GRID, TRAIN, VALIDATION, Drawing
from brimful.runs.scores import LabelScore, Row

FloatArray = NDArray[np.float64]

PREFIX = "labels-"
"""Of the keys of all figures here."""
SIZE = (390, 310)
"""Points; two stand side by side on a page, one fills a phone."""
NAME_CHARACTERS = 16
DASHED, DOTTED, FINE_DOTS = (0, (5, 2)), (0, (1, 1.5)), (0, (2, 3))
STYLES = tuple(
    (colour, line)
    for line in ("solid", DASHED, DOTTED)
    for colour in (TRAIN, VALIDATION, BASELINE, AXIS)
)
"""Curves differ in lightness and in line as well, not in hue alone."""


@dataclass(frozen=True)
class Picture:
    """A figure of a page.

    Attributes:
        about: A sentence below it.
        is_wide: Too detailed for half a page.
    """

    drawing: Drawing
    about: str
    is_wide: bool = False


def short(name: str, most: int = NAME_CHARACTERS) -> str:
    """Return a label's name, cut where it is long."""
    return name if len(name) <= most else f"{name[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def drawing_of(
    key: str,
    title: str,
    description: str,
    draw: Callable[[Axes], None],
    size: tuple[int, int] = SIZE,
) -> Drawing:
    """A figure with one pair of axes."""
    return Drawing(
        f"{PREFIX}{key}", title, description, size, lambda figure: draw(figure.add_subplot())
    )


def points_of(rows: Sequence[Row], columns: int) -> FloatArray | None:
    """Return at least two rows of numbers, NaN where one is not known; None for anything else."""
    if len(rows) < 2 or {len(row) for row in rows} != {columns}:
        return None
    return np.array(rows, dtype=np.float64)


def single_threshold(score: LabelScore) -> float | None:
    """Return the threshold of the positive label; None where each label has its own."""
    value = score.threshold.value
    return None if isinstance(value, tuple) else value


def draw_threshold(axes: Axes, value: float) -> None:
    """Draw an upright line at the threshold."""
    axes.axvline(value, color=BEST, linewidth=1.4)


def set_unit_square(axes: Axes) -> None:
    """Show probabilities or shares on both axes."""
    ticks = (0, 0.25, 0.5, 0.75, 1)
    names = [f"{tick:g}" for tick in ticks]
    axes.set(xlim=(-0.01, 1.01), xticks=ticks, xticklabels=names)
    axes.set(ylim=(-0.02, 1.03), yticks=ticks, yticklabels=names)


def add_legend(axes: Axes, *, above: bool) -> None:
    """Add a legend, above the axes or where it hides least."""
    place: dict[str, Any] = {"loc": "best"}
    if above:
        place = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 4, "columnspacing": 1.2}
    axes.legend(
        **place,
        frameon=False,
        fontsize=11,
        labelcolor=AXIS,
        handlelength=1.6,
        borderaxespad=0.2,
        handletextpad=0.5,
    )


def finish_axes(axes: Axes, x_label: str, y_label: str, *, grid: bool = True) -> None:
    """Name the axes and draw them without a frame."""
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    if grid:
        axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=AXIS, length=0, labelsize=11)
    axes.set_xlabel(x_label, color=AXIS, fontsize=11)
    axes.set_ylabel(y_label, color=AXIS, fontsize=11)
