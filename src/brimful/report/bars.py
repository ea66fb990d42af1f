"""Parts of a whole as a stacked bar: for a page, which draws it in HTML with a key, and as a figure
for files.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from brimful.report.drawing import INK, SERIES, Drawing
from brimful.report.quantities import format_quantity

MOST_PARTS = len(SERIES)
"""As many as there are colours; the rest is one part."""
BAR_WIDTH, BAR_HEIGHT = 820, 64
"""Points of a figure, for each bar."""


@dataclass(frozen=True)
class Part:
    """One part of a bar; `size` in the unit of the bar, `share` of the whole from 0 to 1, `text`
    the size as people read it.
    """

    name: str
    size: float
    share: float
    text: str
    place: int

    @property
    def colour(self) -> str:
        """Of the light theme."""
        return SERIES[self.place]

    @property
    def style(self) -> str:
        """Its colour on a page, as CSS."""
        return f"--c: var(--s{self.place + 1})"

    @property
    def percent(self) -> str:
        """Its share for CSS."""
        return f"{self.share:.2%}"

    @property
    def share_text(self) -> str:
        """Its share for people: `31 %`."""
        return share_text(self.share)


def share_text(share: float) -> str:
    """`0.314` -> `31 %`; one decimal below one."""
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{share * 100:.1f} %" if 0 < share < 0.0095 else f"{share * 100:.0f} %"


def parts(
    terms: Sequence[tuple[str, float]], unit: str, places: Sequence[int] | None = None
) -> list[Part]:
    """Return the parts of a whole in the given order; beyond `MOST_PARTS` the last are added up.

    Args:
        terms: (what, size above zero).
        unit: How sizes are formatted: the ending of such a quantity's name, as "bytes" or
            "step_time_s".
        places: Index of each part's colour in the palette, for parts that have the same colour in
            several bars.
    """
    shown = list(terms)
    if len(shown) > MOST_PARTS:
        shown = [
            *shown[: MOST_PARTS - 1],
            ("Everything else", sum(size for _, size in shown[MOST_PARTS - 1 :])),
        ]
    whole = sum(size for _, size in shown)
    if not whole:
        return []
    colours = range(len(shown)) if places is None else places
    return [
        Part(name, size, size / whole, format_quantity(unit, size), place)
        for place, (name, size) in zip(colours, shown, strict=False)
    ]


def total(terms: Sequence[Part]) -> float:
    """Return the size of a whole bar."""
    return sum(part.size for part in terms)


def widths(bars: Sequence[Sequence[Part]]) -> list[str]:
    """Return how long each bar is of the longest, as CSS, so that all have one scale."""
    sizes = [total(terms) for terms in bars]
    longest = max(sizes, default=0.0)
    return [f"{size / longest:.2%}" if longest else "0%" for size in sizes]


def bar_drawing(key: str, title: str, bars: Sequence[tuple[str, Sequence[Part]]]) -> Drawing:
    """Return a figure of named bars on one scale, whose parts are in one unit; parts of one name
    have one colour.
    """
    texts, colours = [], {}
    longest = max((total(terms) for _, terms in bars), default=0.0) or 1.0
    for name, terms in bars:
        texts.append(f"{name}: {', '.join(f'{part.name} {part.text}' for part in terms)}")
        colours.update({part.name: part.colour for part in terms if part.name not in colours})

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, (_, terms) in enumerate(reversed(bars)):
            _draw_bar(axes, row, terms, longest)
        axes.set(
            xlim=(0, longest), ylim=(-0.6, len(bars) - 0.4), xticks=[], yticks=range(len(bars))
        )
        axes.set_yticklabels([name for name, _ in reversed(bars)], color=INK)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    size = (BAR_WIDTH, 40 + BAR_HEIGHT * len(bars))
    legend = tuple((colour, name) for name, colour in colours.items())
    return Drawing(key, title, "; ".join(texts), size, draw, legend=legend)


def _draw_bar(axes: Axes, y: float, terms: Sequence[Part], longest: float) -> None:
    left = 0.0
    for part in terms:
        axes.barh(y, part.size, left=left, color=part.colour, height=0.55)
        if part.size >= 0.09 * longest:
            axes.text(
                left + part.size / 2,
                y,
                part.text,
                ha="center",
                va="center",
                color="white",
                fontsize=10,
                weight="bold",
            )
        left += part.size
