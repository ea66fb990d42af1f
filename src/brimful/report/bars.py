"""Parts of a whole as stacked bars, several of them on one scale."""

from collections.abc import Sequence
from dataclasses import dataclass

from brimful.report.quantities import format_quantity

MOST_PARTS = 8
"""The most parts of a bar that can be told apart; the others are added up as one."""


@dataclass(frozen=True)
class Part:
    """One part of a bar; `size` in the unit of the bar, `share` of the whole from 0 to 1, `text`
    the size as people read it, `place` which of the parts of all bars it is.
    """

    name: str
    size: float
    share: float
    text: str
    place: int

    @property
    def share_text(self) -> str:
        """Its share for people: `31 %`."""
        return share_text(self.share)


@dataclass(frozen=True)
class Bar:
    """A named bar and its whole as text."""

    name: str
    parts: tuple[Part, ...]
    text: str = ""

    @property
    def size(self) -> float:
        """Sum of the sizes of its parts."""
        return sum(part.size for part in self.parts)


@dataclass(frozen=True)
class Bars:
    """Bars on one scale whose parts are in one unit; parts of one place are alike in all of them.

    Attributes:
        key: The name of its files; "" where it has none.
        has_sizes: Whether its key tells the sizes of the last bar's parts.
    """

    key: str
    title: str
    bars: tuple[Bar, ...]
    has_sizes: bool = True

    @property
    def key_parts(self) -> tuple[Part, ...]:
        """Parts named in the key, one for each place; none where every bar has one part only."""
        if all(len(bar.parts) < 2 for bar in self.bars):
            return ()
        if self.has_sizes:
            return self.bars[-1].parts
        by_place = {part.place: part for bar in self.bars for part in bar.parts}
        return tuple(by_place[place] for place in sorted(by_place))

    @property
    def about(self) -> str:
        """What a screen reader says in place of the bars."""
        return "; ".join(
            f"{bar.name}: {', '.join(f'{part.name} {part.text}' for part in bar.parts)}"
            for bar in self.bars
        )

    @property
    def longest(self) -> float:
        """The size of the longest bar."""
        return max((bar.size for bar in self.bars), default=0.0) or 1.0


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
        places: Which part each is, for parts that are alike in several bars.
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
    return [
        Part(name, size, size / whole, format_quantity(unit, size), place)
        for place, (name, size) in zip(places or range(len(shown)), shown, strict=False)
    ]
