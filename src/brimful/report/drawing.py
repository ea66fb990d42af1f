"""One drawing for every use: inline SVG whose colours follow the page's theme, and PNG and SVG
files that are readable alone.
"""

import functools
import io
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
from markupsafe import escape
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from brimful.base.units import format_count

VARIABLES = {
    "#5d6670": "--axis",
    "#e9e7e2": "--grid",
    "#0b6e6e": "--train",
    "#c2570c": "--validation",
    "#7a6a9c": "--baseline",
    "#a8480a": "--best",
    "#1c2024": "--ink",
    "#fbfaf8": "--page",
    "#0d7c7b": "--s1",
    "#d2691e": "--s2",
    "#6f5fa8": "--s3",
    "#2e74b5": "--s4",
    "#b08900": "--s5",
    "#b14a76": "--s6",
    "#5b8c3a": "--s7",
    "#8b939b": "--s8",
}
"""Colours drawn with, which are the light theme's, and the variables of the page's style that stand
for them.
"""
AXIS, GRID, TRAIN, VALIDATION, BASELINE, BEST, INK, PAGE, *SERIES = VARIABLES
"""SERIES: parts of a whole, in the order of the key beside them."""
POINTS_PER_INCH = 72
FILE_DPI, FILE_PAD = 200, 8
"""Dots per inch of a PNG, and points around what is drawn."""
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


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn when its SVG or its files are requested.

    Attributes:
        key: The name of its files, and the prefix of the ids inside its SVG.
        title: Stands above it; a page writes it itself.
        description: Its text alternative.
        size: Width and height in points.
        draw: Draws on an empty figure.
        phone_size: Width and height for a phone, where it has another shape there.
        legend: Colours and their meanings, below it in a file; a page has its own key.
    """

    key: str
    title: str
    description: str
    size: tuple[int, int]
    draw: Callable[[Figure], None]
    phone_size: tuple[int, int] | None = None
    legend: tuple[tuple[str, str], ...] = ()

    @property
    def wide(self) -> str:
        """An `<svg>` element for a desk."""
        return render_figure(
            f"{self.key}-wide" if self.phone_size else self.key,
            self.size,
            self.description,
            self.draw,
        )

    @property
    def narrow(self) -> str:
        """An `<svg>` element for a phone."""
        return render_figure(
            f"{self.key}-narrow", self.phone_size or self.size, self.description, self.draw
        )

    def save(self, folder: Path) -> list[Path]:
        """Write KEY.png and KEY.svg, titled and on white.

        Text is outlines, so that they look alike everywhere; in an SVG it stays text where it has
        letters that no font here has.
        """
        with _settings(self.key, "path"):
            figure = _figure(self.size, layout="constrained")
            self.draw(figure)
            figure.set_layout_engine(
                "constrained", w_pad=FILE_PAD / POINTS_PER_INCH, h_pad=FILE_PAD / POINTS_PER_INCH
            )
            figure.suptitle(self.title, x=0.012, ha="left", fontsize=13, weight="bold", color=INK)
            if self.legend:
                handles = [Patch(color=colour, label=text) for colour, text in self.legend]
                figure.legend(
                    handles=handles,
                    loc="outside lower left",
                    ncols=3,
                    frameon=False,
                    fontsize=10,
                    labelcolor=INK,
                )
            paths = [folder / f"{self.key}.{suffix}" for suffix in FILE_FORMATS]
            for path in paths:
                matplotlib.rcParams["svg.fonttype"] = "path" if _has_all_letters(figure) else "none"
                figure.savefig(
                    path,
                    dpi=FILE_DPI,
                    facecolor="white",
                    metadata={"Date": None} if path.suffix == ".svg" else None,
                )
        return paths


def render_figure(
    key: str, size: tuple[int, int], description: str, draw: Callable[[Figure], None]
) -> str:
    """Draw on a fresh figure of `size` points and give back an `<svg>` element whose ids are its
    own; `description` is its text alternative.
    """
    buffer = io.StringIO()
    with _settings(key, "none"):
        figure = _figure(size, layout=None)
        draw(figure)
        # A figure that has a layout engine is drawn twice by savefig.
        ConstrainedLayoutEngine().execute(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _as_element(buffer.getvalue(), key, description)


def style(axes: Axes, xlabel: str = "optimizer step", *, integer: bool = True) -> None:
    """How every chart over steps or time looks: level lines, no frame, thousands separated."""
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=AXIS, length=0, labelsize=11)
    axes.margins(x=0.01)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=integer))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value:,.0f}" if integer else f"{value:,g}")
    )
    axes.set_xlabel(xlabel, color=AXIS, fontsize=11)


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


def _settings(key: str, fonttype: str) -> AbstractContextManager[None]:
    return settings(
        svg_fonttype=fonttype,
        svg_hashsalt=key,
        font_size=12,
        axes_edgecolor=AXIS,
        text_usetex=False,
    )


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


def _figure(size: tuple[int, int], layout: Literal["constrained"] | None) -> Figure:
    return Figure(figsize=(size[0] / POINTS_PER_INCH, size[1] / POINTS_PER_INCH), layout=layout)


def _as_element(document: str, key: str, description: str) -> str:
    svg = document[document.index("<svg") :]
    svg = re.sub(
        r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL
    )
    svg = re.sub(r'\bid="([^"]*)"', rf'id="{key}-\1"', svg)
    svg = re.sub(r'url\(#|href="#', lambda match: f"{match[0]}{key}-", svg)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font, sans-serif)", svg)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable}, {colour})")
    opening = re.match(r"<svg[^>]*>", svg)
    box = re.search(r'viewBox="[^"]*"', opening[0]) if opening else None
    if opening is None or box is None:
        raise AssertionError("matplotlib wrote an SVG without a viewBox")
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' {box[0]} role="img" aria-label="{escape(description)}">'
    )
    return head + svg[opening.end() :].strip()
