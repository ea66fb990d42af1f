"""Parts of the views of a run on a terminal: a bar, fields that flow into lines, and a small curve,
of characters that the console can show.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from brimful.base.console import console_printer
from brimful.report.live.run_state import Field, coarse_duration, percent

BAR_FROM_WIDTH = 60
BARS, PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.:-=+*#"


class Shown(Protocol):
    """What a panel shows: how far something is, and what is known of it."""

    @property
    def run(self) -> str: ...
    @property
    def position(self) -> str: ...
    @property
    def share(self) -> float | None: ...
    @property
    def ended(self) -> str | None: ...
    @property
    def remaining_s(self) -> float | None: ...
    def fields(self) -> list[Field]: ...


class Panel:
    """The terminal's view of what goes on: a bar, then the fields, as many a line as fit."""

    def __init__(self, state: Shown) -> None:
        self._state = state

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield header(self._state, console, options.max_width)
        yield from flow(self._state.fields(), console, options.max_width)


def header(state: Shown, console: Console, width: int, *, remaining: bool = True) -> Table | Text:
    """Return the name of a run, a bar where there is room, and its progress.

    Args:
        remaining: Whether to show the time left.
    """
    progress = state.position.removeprefix("step ") + percent(state.share)
    if state.ended:
        progress += f"  {state.ended}"
    elif remaining and state.remaining_s:
        progress += f"  {coarse_duration(state.remaining_s)} left"
    progress = printable(progress, console)
    name = printable(state.run, console)
    if width < BAR_FROM_WIDTH:
        return Text(f"{name} {progress}", no_wrap=True, overflow="crop")
    table = Table.grid(
        Column(no_wrap=True, overflow="crop", max_width=24),
        Column(ratio=1),
        Column(no_wrap=True, overflow="crop"),
        padding=(0, 1),
        expand=True,
    )
    bar = ProgressBar(
        total=1.0, completed=state.share or 0.0, complete_style="cyan", finished_style="green"
    )
    table.add_row(Text(name, style="bold"), bar, Text(progress))
    return table


def flow(fields: Iterable[Field], console: Console, width: int) -> Iterator[Text]:
    """Fields side by side, as many a line as fit; one that is wider than a line is cropped."""
    line = Text(no_wrap=True, overflow="crop")
    for label, value, style in fields:
        field = Text(no_wrap=True, overflow="crop")
        if label:
            field.append(printable(label, console), style="dim").append(" ")
        field.append(printable(value, console), style=style)
        if line and line.cell_len + 3 + field.cell_len <= width:
            field = Text.assemble(line, "   ", field, no_wrap=True, overflow="crop")
        elif line:
            yield line
        line = field
    if line:
        yield line


def sparkline(values: Sequence[float], width: int, console: Console) -> str:
    """Means of `width` equal parts of a series, or the values where there are fewer, as characters
    of eight heights.

    The highest tenth is all as tall, so that a steep beginning leaves the rest its shape.
    """
    if not values or width < 1:
        return ""
    count = min(width, len(values))
    ends = [len(values) * place // count for place in range(count + 1)]
    means = [sum(values[first:last]) / (last - first) for first, last in pairwise(ends)]
    low, high = min(means), sorted(means)[-1 - count // 10]
    characters = BARS if can_show(BARS, console) else PLAIN_BARS
    if high <= low:
        return characters[0] * count
    heights = (min(1.0, (mean - low) / (high - low)) for mean in means)
    return "".join(characters[round(height * (len(characters) - 1))] for height in heights)


def print_line(console: Console, line: str) -> None:
    """One line as it is, however wide."""
    console_printer(console)(printable(line, console))


def printable(text: str, console: Console) -> str:
    """`text` on one line, without control characters or what the console's encoding lacks."""
    one_line = "".join(character if character.isprintable() else " " for character in text)
    return one_line.encode(console.encoding, "replace").decode(console.encoding)


def can_show(text: str, console: Console) -> bool:
    """Whether the console's encoding has all characters of `text`."""
    return printable(text, console) == text
