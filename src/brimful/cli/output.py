"""Where verbs print: the console, and JSON; and how they load what they need."""

import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.base.console import console_printer, waiting
from brimful.base.garbage import importing

if TYPE_CHECKING:
    from rich.console import Console


def open_console(*, stderr: bool = False, least_width: int = 0) -> "Console":
    """Return a console as wide as the terminal, also in a pipe; where there is no terminal it has
    at least `least_width` columns.
    """
    from rich.console import Console

    console = Console(stderr=stderr)
    if console.is_terminal or console.width >= least_width or _width_is_known():
        return console
    return Console(stderr=stderr, width=least_width)


def say(text: str, *, stderr: bool = False) -> None:
    """Print a text; a terminal gets its long lines broken between words."""
    console_printer(open_console(stderr=stderr))(text)


@contextmanager
def loading() -> Iterator[None]:
    """Tell a terminal that brimful is starting while the block imports what a verb needs.

    Where the block imports torch, what was imported is left out of every later search for garbage:
    a third of a second each time.
    """
    with waiting(open_console(stderr=True)):
        if "torch" in sys.modules:
            yield
            return
        with importing("torch"):
            yield


def _width_is_known() -> bool:
    """Return whether COLUMNS or a terminal at any of the three streams says how wide it is."""
    if shutil.get_terminal_size((0, 0)).columns:
        return True
    for stream in (0, 1, 2):
        with suppress(OSError):
            os.get_terminal_size(stream)
            return True
    return False


def print_json(value: object) -> None:
    """Print a value as indented JSON to standard output; typed values have their fields as keys."""
    print(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
