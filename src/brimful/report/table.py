"""Tables with typed cells, and how they print in a terminal, in Markdown and as CSV."""

import csv
import io
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from brimful.base.text import wrapped
from brimful.base.types import Bounds

BAR = "\\|"
"""A vertical bar inside a cell of Markdown."""
GAP = 2
"""Spaces between two columns in a terminal."""
LEAST_WIDTH = 24
"""Characters that a cell has at least where longer ones are broken into lines."""
Value = str | float | int | bool | None


@dataclass(frozen=True)
class Cell:
    """A value of a table; `str(cell)` is `1.923 [1.901, 1.945]`, or "" for None.

    Attributes:
        value: None where it is not known.
        form: Formats a number of this cell.
        interval: Its 95 % interval.
        note: A word or two on it, such as "better".
        unit: Stands after the value, and not after the ends of the interval.
    """

    value: Value
    form: Callable[[float], str] = "{:,.0f}".format
    interval: Bounds | None = None
    note: str = ""
    unit: str = ""

    @property
    def text(self) -> str:
        """The value alone, with its unit."""
        is_number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        text = self.form(float(self.value or 0)) if is_number else text_of(self.value)
        return f"{text} {self.unit}" if self.unit and text else text

    @property
    def interval_text(self) -> str:
        """`1.901 to 1.945`, "" without an interval."""
        return " to ".join(map(self.form, self.interval or ()))

    def __str__(self) -> str:
        if not self.interval or not self.text:
            return self.text
        return f"{self.text} [{', '.join(map(self.form, self.interval))}]"


@dataclass(frozen=True)
class Gauge:
    """Where a value and its interval lie on a scale that all rows of a table share, as a cell.

    Attributes:
        ends: Ends of the scale.
        about: Its text alternative.
        centre: What the value is compared with.
        word: What the value is called: "close", "off", "far off", or "base".
        is_log: Whether the scale is logarithmic.
    """

    ends: Bounds
    at: float | None
    interval: Bounds | None
    about: str
    text: str = ""
    centre: float | None = None
    word: str = ""
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where it is between the ends, in percent; a value beyond an end is at that end."""
        scale = math.log if self.is_log else float
        low, high = map(scale, self.ends)
        return round(min(100.0, max(0.0, 100 * (scale(value) - low) / (high - low))), 2)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Link:
    """Where more can be read, relative to the page; "" where nothing is."""

    name: str
    path: str


@dataclass(frozen=True)
class LinkCell:
    """Links as a cell."""

    links: tuple[Link, ...]

    def __str__(self) -> str:
        return " ".join(link.name for link in self.links)


Row = tuple[object, ...]
"""`Cell`s, `Gauge`s, `Links`, and plain values that need no format or interval."""


@dataclass(frozen=True)
class Table:
    """Columns and rows; the first column names the row. Plain texts and numbers are cells, too."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def text_rows(self) -> tuple[tuple[str, ...], ...]:
        """Every cell as text."""
        return tuple(tuple(text_of(cell) for cell in row) for row in self.rows)

    def without_empty_columns(self) -> "Table":
        """The same table; columns in which every cell is empty are left out."""
        texts = self.text_rows
        return self._only(
            [place for place in range(len(self.columns)) if any(row[place] for row in texts)]
        )

    def without_column(self, name: str) -> "Table":
        """The same table without one column."""
        dropped = self.columns.index(name)
        return self._only([place for place in range(len(self.columns)) if place != dropped])

    def without_remarks(self, name: str) -> "Table":
        """The same table; cells of one column have neither intervals nor notes."""
        place = self.columns.index(name)
        rows = tuple(
            (*row[:place], getattr(row[place], "text", row[place]), *row[place + 1 :])
            for row in self.rows
        )
        return replace(self, rows=rows)

    def _only(self, places: Sequence[int]) -> "Table":
        return Table(
            tuple(self.columns[place] for place in places),
            tuple(tuple(row[place] for place in places) for row in self.rows),
        )


def table_of(columns: Sequence[str], rows: Iterable[Row]) -> Table | None:
    """A table of these rows; None without any."""
    kept = tuple(rows)
    return Table(tuple(columns), kept) if kept else None


def text_of(cell: object) -> str:
    """How a person reads a cell; "" for None."""
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return f"{cell:,}"
    return str(cell)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines for a terminal, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        (" " * GAP)
        .join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        .rstrip()
        for row in rows
    ]


def terminal_lines(table: Table | None, width: float = math.inf) -> list[str]:
    """A table as `block_lines`, notes after their cells; none for None."""
    if table is None:
        return []
    noted = tuple(tuple(map(_with_note, row)) for row in table.rows)
    return block_lines(Table(table.columns, noted), width)


def _with_note(cell: object) -> str:
    text = text_of(cell)
    return f"{text}, {cell.note}" if isinstance(cell, Cell) and text and cell.note else text


def block_lines(table: Table, width: float) -> list[str]:
    """A table as lines of at most `width` characters. Long cells are broken between words; where
    that is not enough, columns stand in further blocks, each of which begins with the first column.
    """
    lines = [*([table.columns] if any(table.columns) else []), *table.text_rows]
    widths = [max(map(len, column)) + GAP for column in zip(*lines, strict=True)]
    if cut := _width_of_all(widths, width):
        return aligned([part for row in lines for part in _broken(row, cut)])
    blocks: list[list[int]] = [[0]]
    used = widths[0]
    for place, needed in enumerate(widths[1:], 1):
        if used + needed - GAP > width and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(place)
        used += needed
    printed: list[str] = []
    for number, block in enumerate(blocks):
        rows = [[row[place] for place in block] for row in lines]
        # A further block has no place for rows of which it tells nothing.
        printed += ["", *aligned([row for row in rows if number == 0 or any(row[1:])])]
    return printed[1:]


def _width_of_all(widths: Sequence[int], width: float) -> int:
    """The most characters of a cell with which all columns fit beside each other; 0 where they do
    not, or do as they are.
    """
    for cut in range(max(widths) - GAP - 1, LEAST_WIDTH - 1, -1):
        if sum(min(size, cut + GAP) for size in widths) - GAP <= width < sum(widths) - GAP:
            return cut
    return 0


def _broken(row: Sequence[str], width: int) -> Iterator[tuple[str, ...]]:
    """A row whose long cells go on in further ones."""
    cells = [wrapped(cell, width) if len(cell) > width else [cell] for cell in row]
    yield from itertools.zip_longest(*cells, fillvalue="")


def markdown_lines(table: Table) -> list[str]:
    """A table in Markdown; all columns but the first are aligned on the right."""
    rules = ("---", *["---:"] * (len(table.columns) - 1))
    return [
        f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |"
        for row in (table.columns, rules, *table.text_rows)
    ]


def csv_text(table: Table) -> str:
    """A table as CSV (RFC 4180) with a heading line: plain values without format or unit, nothing
    for None.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([cell.value if isinstance(cell, Cell) else cell for cell in row])
    return buffer.getvalue()
