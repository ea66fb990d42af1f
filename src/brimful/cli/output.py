"""Where verbs print: the console, and JSON."""

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def open_console(*, stderr: bool = False, least_width: int = 0) -> "Console":
    """Return a console as wide as the terminal; in a file or a pipe it has at least `least_width`
    columns.
    """
    from rich.console import Console

    console = Console(stderr=stderr)
    if console.is_terminal or console.width >= least_width:
        return console
    return Console(stderr=stderr, width=least_width)


def print_json(value: object) -> None:
    """Print a value as indented JSON to standard output."""
    print(json.dumps(value, indent=2))
