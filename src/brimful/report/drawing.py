"""Charts, bars and matrices as PNG and SVG files that are readable alone, drawn by matplotlib."""

import functools
import textwrap
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from brimful.base.types import JsonDict
from brimful.base.units import format_count
from brimful.report.bars import Bars, Part
from brimful.report.chart import Chart, Matrix, Rule, Series

Shown = Chart | Bars | Matrix

INK, AXIS, GRID = "#1c2024", "#5d6670", "#e9e7e2"
COLOURS = {
    "training": "#0b6e6e",
    "validation": "#c2570c",
    "baseline": "#7a6a9c",
    "chance": AXIS,
    "kept": "#a8480a",
    "plain": INK,
}
"""Colour of a curve by its role, as on the light page."""
PLACES = (
    "#0d7c7b",
    "#d2691e",
    "#6f5fa8",
    "#2e74b5",
    "#b08900",
    "#b14a76",
    "#5b8c3a",
    "#8b939b",
    "#35507a",
)
"""Colour of a curve or of a part of a bar by its place."""
AREAS = (
    "#0072b2",
    "#56b4e9",
    "#d55e00",
    "#e69f00",
    "#00405f",
    "#009e73",
    "#cc79a7",
    "#f0e442",
    "#3c3c3c",
    "#9c9c9c",
    "#d0d0d0",
    "#882255",
    "#44aa99",
)
"""Colour of an area by its place: Okabe and Ito's palette, which the colour-blind can tell apart, a
dark blue, three greys, and the wine red and the teal of Paul Tol's.
"""
DASHES: tuple[Any, ...] = ("solid", (0, (5, 2)), (0, (1, 1.5)))
"""Line style of a curve by its place, so that curves can be told apart without colour. A pair is
the offset and the lengths of dashes and gaps, as matplotlib takes them.
"""
DASHES_OF_ROLES = {"baseline": DASHES[1], "chance": DASHES[2]}
LOOKS: dict[str, JsonDict] = {
    "line": {"linewidth": 1.7},
    "faint": {"linewidth": 0.8, "alpha": 0.35},
    "dotted": {"linewidth": 1.4, "marker": "o", "markersize": 4},
    "points": {"linewidth": 0, "marker": "o", "markersize": 5},
}
WIDE_IN, SQUARE_IN = (11.4, 4.6), (6.4, 5.0)
FILE_DPI = 200
FILE_FORMATS = ("png", "svg")
FONT = "DejaVu Sans"
"""Comes with matplotlib, so that drawings look alike everywhere."""
FALLBACKS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Noto Sans SC",
    "Noto Sans JP",
    "Noto Sans KR",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "Droid Sans Fallback",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
    "Noto Emoji",
    "Symbola",
    "FreeSans",
    "Unifont",
    "Hiragino Sans",
    "PingFang SC",
    "Apple SD Gothic Neo",
    "Arial Unicode MS",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Segoe UI Symbol",
)
"""Fonts of Linux, macOS and Windows for letters that it lacks; matplotlib tries the installed ones
in this order.
"""
NO_GLYPH = "Glyph .* missing from|Matplotlib currently does not support"
"""How matplotlib's warnings about letters without a font begin."""
_LOCK = threading.RLock()


def save(shown: Shown, folder: Path) -> list[Path]:
    """Write KEY.png and KEY.svg as `write` does."""
    paths = [folder / f"{shown.key}.{suffix}" for suffix in FILE_FORMATS]
    write(shown, paths)
    return paths


def write(shown: Shown, paths: Sequence[Path]) -> None:
    """Write files whose suffix says the format, titled and on white.

    Text is outlines, so that they look alike everywhere; in an SVG it stays text where it has
    letters that no font here has.
    """
    is_wide = isinstance(shown, Bars) or (isinstance(shown, Chart) and shown.is_main)
    with settings(svg_hashsalt=shown.key, svg_fonttype="path", font_size=11):
        figure = Figure(figsize=WIDE_IN if is_wide else SQUARE_IN, layout="constrained")
        axes = figure.add_subplot()
        axes.spines[:].set_visible(False)
        axes.tick_params(colors=AXIS, length=0)
        axes.set_axisbelow(True)
        match shown:
            case Bars():
                _draw_bars(shown, axes)
            case Matrix():
                _draw_matrix(shown, axes)
            case Chart():
                _draw_chart(shown, axes)
        figure.suptitle(shown.title, x=0.012, ha="left", fontsize=13, weight="bold", color=INK)
        if axes.get_legend_handles_labels()[1]:
            columns = 3 if isinstance(shown, Chart) and shown.series[0].look == "area" else 4
            figure.legend(loc="outside lower left", ncols=columns, frameon=False, labelcolor=INK)
        for path in paths:
            matplotlib.rcParams["svg.fonttype"] = "path" if _has_all_letters(figure) else "none"
            metadata = {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(path, dpi=FILE_DPI, facecolor="white", metadata=metadata)


def _draw_chart(chart: Chart, axes: Axes) -> None:
    areas = [series for series in chart.series if series.look == "area"]
    if areas:
        colours = [AREAS[series.place] for series in areas]
        heights = [np.array(series.y, np.float64) for series in areas]
        names = [series.name for series in areas]
        axes.stackplot(areas[0].x, heights, labels=names, colors=colours, step="post", linewidth=0)
    for series in chart.series:
        if series not in areas:
            _draw_series(series, axes)
    if chart.band:
        axes.axhspan(*chart.band, color=AXIS, alpha=0.14, linewidth=0)
    for level in chart.levels:
        axes.axhline(level.value, **_line(level))
        _write(
            axes, level.name, (0.99, level.value), level.role, transform=axes.get_yaxis_transform()
        )
    for upright in chart.uprights:
        axes.axvline(upright.value, **_line(upright))
        _write(
            axes,
            upright.name,
            (upright.value, 1),
            upright.role,
            transform=axes.get_xaxis_transform(),
        )
    for mark in chart.marks:
        ring: JsonDict = {
            "markersize": 10,
            "markerfacecolor": "none",
            "color": COLOURS["kept"],
        }
        axes.plot(mark.x, mark.y, "o", **ring)
        _write(axes, mark.name, (mark.x, mark.y), "kept")
    left, right = axes.get_xlim()
    _stack(axes.bar, axes, chart.stack, x=left - (right - left) / 12, width=(right - left) / 14)
    _set_axes(chart, axes)


def _draw_series(series: Series, axes: Axes) -> None:
    look: JsonDict = {
        "color": COLOURS.get(series.role, PLACES[series.place % len(PLACES)]),
        "linestyle": DASHES_OF_ROLES.get(
            series.role, DASHES[0 if series.role else series.place % len(DASHES)]
        ),
        "label": series.name or None,
    }
    y_N = np.array(series.y, np.float64)
    if series.look == "steps":
        axes.stairs(y_N, np.array(series.x), baseline=0, **look)
    else:
        axes.plot(series.x, y_N, **look, **LOOKS[series.look])
    for x, ends in zip(series.x, series.intervals, strict=False):
        if ends:
            axes.vlines(x, *ends, color=look["color"], linewidth=1.2, alpha=0.6)


def _line(level: Rule) -> JsonDict:
    return {"color": COLOURS[level.role], "linewidth": 1.2, "linestyle": (0, (4, 3))}


def _write(axes: Axes, text: str, at: tuple[float, float], role: str, **how: Any) -> None:
    axes.text(*at, text, color=COLOURS[role], ha="right", va="bottom", weight="bold", **how)


def _set_axes(chart: Chart, axes: Axes) -> None:
    """Level lines, thousands separated, and the ends that are given."""
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    if chart.x_names:
        axes.set_xticks(range(len(chart.x_names)), chart.x_names)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=chart.x.endswith("step")))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    if chart.is_log:
        axes.set_yscale("symlog", linthresh=1)
    axes.yaxis.set_major_formatter(FuncFormatter(tick))
    if chart.x_range:
        axes.set_xlim(chart.x_range)
    if chart.y_range:
        axes.set_ylim(*chart.y_range)
    told = textwrap.wrap(chart.note, 140) if chart.series[0].look == "area" else []
    axes.set_xlabel("\n".join([chart.x, *told]), color=AXIS, fontsize=9 if told else None)
    axes.set_ylabel(chart.y, color=AXIS)


def _draw_bars(shown: Bars, axes: Axes) -> None:
    for row, bar in enumerate(shown.bars):
        _stack(axes.barh, axes, bar.parts, y=row, height=0.6)
    axes.set_yticks(range(len(shown.bars)), [f"{bar.name}\n{bar.text}" for bar in shown.bars])
    axes.set(xticks=[], ylim=(len(shown.bars) - 0.5, -0.5))


def _stack(draw: Any, axes: Axes, parts: Sequence[Part], **where: float) -> None:
    """Parts of a whole one after another; the first row that has one names it."""
    end, named = 0.0, axes.get_legend_handles_labels()[1]
    before = "left" if "height" in where else "bottom"
    size = "width" if "height" in where else "height"
    for part in parts:
        label = part.name if part.name not in named else None
        draw(**where, **{size: part.size, before: end}, color=PLACES[part.place], label=label)
        end += part.size


def _draw_matrix(shown: Matrix, axes: Axes) -> None:
    shares_CC = np.array(shown.shares)
    signed_CC = shares_CC * (2 * np.eye(len(shares_CC)) - 1)
    axes.imshow(signed_CC, cmap="BrBG", vmin=-2, vmax=2, aspect="auto")
    for (true, given), count in np.ndenumerate(np.array(shown.counts)):
        text = f"{count:,}\n{shares_CC[true, given]:.0%}" if count else ""
        axes.text(given, true, text, ha="center", va="center", fontsize=9.5, color=INK)
    places = range(len(shown.names))
    axes.set_xticks(places, shown.names, rotation=45, rotation_mode="xtick")
    axes.set_yticks(places, shown.names)
    axes.set_xlabel(shown.columns, color=AXIS)
    axes.set_ylabel(shown.rows, color=AXIS)


def tick(value: float, _: object = None) -> str:
    """A number on a vertical axis, short."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return format_count(value).replace(".00", "")
    return f"{value:.0e}" if abs(value) < 0.001 else f"{value:.4g}"


@contextmanager
def settings(**values: object) -> Iterator[None]:
    """Draw with settings of matplotlib, which it keeps for all threads: one draws at a time. Names
    with `_` in place of the first dot.

    Letters that no font has are not warned of: a page's text stays text, and a browser has its own
    fonts.
    """
    chosen: dict[Any, Any] = {name.replace("_", ".", 1): value for name, value in values.items()}
    with (
        _LOCK,
        warnings.catch_warnings(),
        matplotlib.rc_context(
            {"font.family": [FONT, *_fallbacks()], "text.parse_math": False, **chosen}
        ),
    ):
        warnings.filterwarnings("ignore", NO_GLYPH, UserWarning)
        yield


@functools.cache
def _fallbacks() -> tuple[str, ...]:
    installed = set(font_manager.get_font_names())
    return tuple(name for name in FALLBACKS if name in installed)


@functools.cache
def _letters() -> frozenset[int]:
    """That some font has."""
    return frozenset().union(
        *(
            font_manager.get_font(font_manager.findfont(name)).get_charmap()
            for name in (FONT, *_fallbacks())
        )
    )


def _has_all_letters(figure: Figure) -> bool:
    """Of a figure that was drawn before."""
    texts = [each.get_text() for each in figure.findobj(Text) if isinstance(each, Text)]
    return {ord(letter) for text in texts for letter in text if not letter.isspace()} <= _letters()
