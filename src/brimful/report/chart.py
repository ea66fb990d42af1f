"""Charts as values: named series of numbers with axes, levels and marked points. How they look is
for what draws them: the script of a page, and `drawing` for files.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from brimful.base.arrays import Floats
from brimful.base.types import Bounds
from brimful.report.bars import Part

MAX_POINTS, MAX_SMOOTH_POINTS = 800, 250
"""Points of a longer series that are kept, extremes among them, and of a running mean."""
SMOOTH_SHARE = 0.03
"""Width of the running mean, as a share of the series."""
DIGITS = 5
"""Significant digits of a number in a chart."""

Look = Literal["line", "faint", "points", "dotted", "steps", "area"]
Role = Literal["", "training", "validation", "baseline", "chance", "kept", "plain"]


@dataclass(frozen=True)
class Series:
    """One curve of a chart: numbers y over numbers x.

    Attributes:
        name: its name in the key of the chart; "" leaves it out there.
        x: in rising order; with the look "steps" the edges, one more than `y` has.
        y: None breaks the line.
        look: "dotted" is a line with a point at each value; "steps" go from edge to edge; an
            "area" lies on those before it, in files alone.
        role: what it shows, which decides its colour; "" for one of several curves alike.
        place: number of the run, label or part that it belongs to, which decides its colour where
            it has no role.
        intervals: 95 % intervals of `y`.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    look: Look = "line"
    role: Role = ""
    place: int = 0
    intervals: tuple[Bounds | None, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A straight line across the whole chart, at a value of one axis."""

    value: float
    name: str = ""
    role: Role = "baseline"


@dataclass(frozen=True)
class Mark:
    """A point of a curve that a ring marks, such as the best value."""

    x: float
    y: float
    name: str = ""


@dataclass(frozen=True)
class Chart:
    """Series on one pair of axes.

    Attributes:
        key: The name of its files.
        about: Its text alternative.
        x, y: Names of the axes; `y` is "" where the title says it.
        levels: Heights, such as a baseline's loss.
        uprights: Places on the x axis, such as a threshold.
        band: An interval of heights.
        x_range, y_range: Ends of an axis where they are given.
        x_names: Names of 0, 1, 2, ... on the x axis, where these are no numbers.
        is_log: Whether heights are counts on a logarithmic scale that begins at zero.
        is_main: Whether it is as wide as a page.
        note: A sentence below it.
        stack: Parts of a height that stand beside the series, on one scale with them.
    """

    key: str
    title: str
    about: str
    x: str
    series: tuple[Series, ...]
    y: str = ""
    levels: tuple[Rule, ...] = ()
    uprights: tuple[Rule, ...] = ()
    marks: tuple[Mark, ...] = ()
    band: Bounds | None = None
    x_range: Bounds | None = None
    y_range: tuple[float, float | None] | None = None
    x_names: tuple[str, ...] = ()
    is_log: bool = False
    is_main: bool = False
    note: str = ""
    stack: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Matrix:
    """Counts by two names, as a confusion matrix has them; what lies on the diagonal is right."""

    key: str
    title: str
    about: str
    rows: str
    columns: str
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    note: str = ""

    @property
    def shares(self) -> list[list[float]]:
        """Each count as a share of the sum of its row."""
        return [[count / max(1, sum(row)) for count in row] for row in self.counts]


def series_of(name: str, x: ArrayLike, y: ArrayLike, **looks: Any) -> Series:
    """A series of these numbers, thinned; one that is not known breaks the line."""
    x_N, y_N = thin(np.asarray(x, np.float64), np.asarray(y, np.float64))
    return Series(name, rounded(x_N), rounded(y_N), **looks)


def mean_of(name: str, x: ArrayLike, y: ArrayLike, **looks: Any) -> Series:
    """The running mean of these numbers as a series."""
    smooth_N = smooth(np.asarray(y, np.float64))
    x_N, y_N = thin(np.asarray(x, np.float64), smooth_N, MAX_SMOOTH_POINTS)
    return Series(name, rounded(x_N), rounded(y_N), **looks)


def noisy(name: str, x: ArrayLike, y: ArrayLike, role: Role = "training") -> tuple[Series, Series]:
    """Every value, and their running mean, which has the name."""
    return series_of("", x, y, look="faint", role=role), mean_of(name, x, y, role=role)


def rounded(values: Sequence[float] | Floats) -> tuple[Any, ...]:
    """Numbers with `DIGITS` significant digits; None for what is not finite."""
    return tuple(float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None for value in values)


def usual_range(values: ArrayLike) -> Bounds:
    """From zero to a little above what is usual, which a few extremes do not change."""
    low, high = np.quantile(np.asarray(values, np.float64), (0.005, 0.995))
    return 0.0, float(max(high, low)) * 1.2 or 1.0


def smooth(values: Floats) -> Floats:
    """Centred running mean over `SMOOTH_SHARE` of the series; shorter at the ends, so the same
    length comes back.
    """
    half = max(1, round(len(values) * SMOOTH_SHARE / 2))
    sums = np.concatenate(([0.0], np.cumsum(values)))
    centre = np.arange(len(values))
    first, last = np.maximum(centre - half, 0), np.minimum(centre + half + 1, len(values))
    return np.asarray((sums[last] - sums[first]) / (last - first), dtype=np.float64)


def thin(x_N: Floats, y_N: Floats, most: int = MAX_POINTS) -> tuple[Floats, Floats]:
    """At most about `most` points: the lowest and the highest of each stretch, and both ends."""
    if len(y_N) <= most:
        return x_N, y_N
    edges = np.linspace(0, len(y_N), most // 2 + 1).astype(int).tolist()
    kept = {0, len(y_N) - 1}
    for start, stop in itertools.pairwise(edges):
        kept |= {start + int(np.argmin(y_N[start:stop])), start + int(np.argmax(y_N[start:stop]))}
    chosen = np.array(sorted(kept))
    return x_N[chosen], y_N[chosen]
