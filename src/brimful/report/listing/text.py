"""A list of runs for a terminal: a line each with the next command below it, members under their
study; blocks where the terminal is narrow.
"""

import time
from collections.abc import Sequence

from rich.text import Text

from brimful.base.text import plural, printable
from brimful.base.units import format_bytes
from brimful.report.listing.listing import Listed, freeable
from brimful.report.live.run_state import age

GAP = 2
STYLES = {
    "running": "cyan",
    "finished": "green",
    "scored": "green",
    "stopped": "yellow",
    "interrupted": "yellow",
    "unfinished": "yellow",
    "not started": "yellow",
    "damaged": "bold red",
}


def render(listed: Sequence[Listed], width: int, *, now: float | None = None) -> Text:
    """The list as text.

    Args:
        listed: Runs as `find_runs` gives them.
        width: Columns of the console.
        now: Unix seconds, for ages.
    """
    if not listed:
        return Text("no runs here yet: `brimful run quickstart` makes one")
    now = time.time() if now is None else now
    rows = [_cells(entry, now) for entry in listed]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if sum(widths) + GAP * (len(widths) - 1) <= width:
        lines = _in_columns(listed, rows, widths)
    else:
        lines = _in_blocks(listed, rows)
    return Text("\n").join([*lines, *_foot(listed)])


def _cells(entry: Listed, now: float) -> tuple[str, str, str, str, str]:
    """Name, state, score, size, age."""
    indent = "  " * _level(entry)
    size = format_bytes(entry.size_bytes)
    if entry.checkpoint_bytes:
        size += f", checkpoints {format_bytes(entry.checkpoint_bytes)}"
    name = printable(entry.name.rpartition("/")[2] if _level(entry) else entry.name)
    return (
        f"{indent}{name}",
        printable(entry.told),
        entry.score,
        size,
        f"{age(now - entry.last_active)} ago",
    )


def _level(entry: Listed) -> int:
    """1 for what belongs to a study or a chain."""
    return int(entry.is_member)


def _in_columns(
    listed: Sequence[Listed], rows: Sequence[tuple[str, ...]], widths: Sequence[int]
) -> list[Text]:
    lines = []
    for entry, row in zip(listed, rows, strict=True):
        line = Text(" " * GAP).join(
            Text(cell.ljust(width), style=style)
            for cell, width, style in zip(row, widths, _styles(entry), strict=True)
        )
        line.rstrip()
        lines += [line, *_below(entry)]
    return lines


def _in_blocks(listed: Sequence[Listed], rows: Sequence[tuple[str, ...]]) -> list[Text]:
    lines = []
    for entry, row in zip(listed, rows, strict=True):
        styles, indent = _styles(entry), "  " * (_level(entry) + 1)
        lines += [Text(row[0], style=styles[0]), Text(indent + row[1], style=styles[1])]
        lines += [Text(indent + row[2])] if row[2] else []
        lines.append(Text(indent + ", ".join(row[3:])))
        lines += _below(entry)
    return lines


def _styles(entry: Listed) -> tuple[str, str, str, str, str]:
    return "bold" if not _level(entry) else "", STYLES.get(entry.state, ""), "", "", "dim"


CHECK_MARKS = {
    True: ("sound", "green"),
    False: ("DAMAGED", "bold red"),
    None: ("not known", "yellow"),
}


def _below(entry: Listed) -> list[Text]:
    """Return the lines below an entry: recovery points, problems, results of checks, the next
    command.
    """
    indent = "  " * (_level(entry) + 1)
    lines = [(point, "") for point in (*entry.points, entry.ranks) if point]
    lines += [(problem, "yellow") for problem in entry.problems]
    for checked in entry.checked or ():
        mark, style = CHECK_MARKS[checked.is_sound]
        lines.append((f"{checked.what}: {mark}: {checked.told}", style))
    if entry.command and not (entry.is_member and entry.state == "finished"):
        lines.append((entry.command, "dim"))
    return [Text(indent + printable(text), style=style) for text, style in lines]


def _foot(listed: Sequence[Listed]) -> list[Text]:
    """Return the size of all runs, what could be freed, and the results of a check."""
    runs = [entry for entry in listed if entry.kind == "run"]
    total = format_bytes(sum(entry.size_bytes for entry in listed))
    lines = [f"{plural(len(runs), 'run')}, {total}"]
    num_bytes, count = freeable(listed)
    if num_bytes:
        lines.append(
            f"checkpoints of {count} finished: {format_bytes(num_bytes)}, which only training"
            " further needs"
        )
    results = [checked.is_sound for entry in runs for checked in entry.checked or ()]
    if results:
        sound, damaged, unknown = (results.count(each) for each in (True, False, None))
        line = f"read back: {sound} sound, {damaged} damaged"
        lines.append(line + f", {unknown} with nothing to compare with" * bool(unknown))
    return [Text(), *map(Text, lines)]
