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
"""As many as there are colours; what is left is one part."""
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
    """Parts in the order given, from the names and sizes of `terms`; beyond `MOST_PARTS` the last
    are one.

    Args:
        terms: (what, size above zero).
        unit: How the name of such a quantity ends, such as "bytes" or "step_time_s": sizes print by
            it.
        places: Of their colours, for parts that have the same one in several bars.
    """
    shown = list(terms)
    if len(shown) > MOST_PARTS:
        shown = [
            *shown[: MOST_PARTS - 1],
            ("Everything else", sum(size for _, size in shown[MOST_PARTS - 1 :])),
        ]
    total = sum(size for _, size in shown)
    colours = range(len(shown)) if places is None else places
    return (
        [
            Part(name, size, size / total, format_quantity(unit, size), place)
            for place, (name, size) in zip(colours, shown, strict=False)
        ]
        if total
        else []
    )


def bar_drawing(key: str, title: str, bars: Sequence[tuple[str, Sequence[Part]]]) -> Drawing:
    """A figure of named bars, each as long as the others; parts of one name have one colour."""
    told = "; ".join(
        f"{name}: {', '.join(f'{part.name} {part.text}' for part in found)}" for name, found in bars
    )
    names: dict[str, str] = {}
    for _, found in bars:
        for part in found:
            names.setdefault(part.name, part.colour)

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, (_, found) in enumerate(bars):
            _draw_bar(axes, len(bars) - 1 - row, found)
        axes.set(xlim=(0, 1), ylim=(-0.6, len(bars) - 0.4), xticks=[], yticks=range(len(bars)))
        axes.set_yticklabels([name for name, _ in reversed(bars)], color=INK)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)

    legend = tuple((colour, name) for name, colour in names.items())
    return Drawing(key, title, told, (BAR_WIDTH, 40 + BAR_HEIGHT * len(bars)), draw, legend=legend)


def _draw_bar(axes: Axes, y: float, found: Sequence[Part]) -> None:
    left = 0.0
    for part in found:
        axes.barh(y, part.share, left=left, color=part.colour, height=0.55)
        if part.share >= 0.09:
            axes.text(
                left + part.share / 2,
                y,
                part.text,
                ha="center",
                va="center",
                color="white",
                fontsize=10,
                weight="bold",
            )
        left += part.share
