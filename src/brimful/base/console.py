"""The one way to say a line to the user, and to say what is being done."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from brimful.base.text import printable, wrapped

if TYPE_CHECKING:
    from rich.console import Console

Say = Callable[[str], None]
"""Shows a text of one or more lines."""
WAITING_FRAMES_PER_SECOND = 4
WRAPPED_FROM = 40
"""Columns of a terminal from which words are kept whole."""


def console_printer(console: "Console") -> Say:
    """Return a function that prints a text as it is: brackets are no markup, `:name:` is no emoji,
    and numbers are not highlighted. On a terminal long lines are broken between words and go on
    indented, elsewhere they are not broken.
    """

    def say(text: str) -> None:
        text = printable(text)
        if console.is_terminal and console.width >= WRAPPED_FROM:
            text = "\n".join(
                part
                for line in text.split("\n")
                for part in (
                    [line] if len(line) <= console.width else wrapped(line, console.width, 2)
                )
            )
        console.print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)

    return say


def width_of(console: "Console") -> float:
    """Return how many columns a console's terminal has; infinity where it is no terminal."""
    return console.width if console.is_terminal else math.inf


def silent(text: str) -> None:
    """A `Say` that shows nothing."""


@contextmanager
def waiting(console: "Console", doing: str = "starting") -> Iterator[Say]:
    """Show what is being done, at first `doing`, in one line that is updated in place, until the
    block ends; on a console that is no terminal nothing.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        yield silent
        return
    # Only a terminal needs them.
    from rich.progress import (  # noqa: PLC0415
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column  # noqa: PLC0415

    columns = (
        SpinnerColumn(),
        TextColumn(
            "{task.description}",
            markup=False,
            table_column=Column(no_wrap=True, overflow="crop"),
        ),
        TimeElapsedColumn(),
    )
    # What is printed meanwhile belongs to standard output, which may be a file.
    with Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=WAITING_FRAMES_PER_SECOND,
        redirect_stdout=False,
    ) as progress:
        task = progress.add_task(doing, total=None)

        def show(text: str) -> None:
            progress.update(task, description=text)

        yield show
