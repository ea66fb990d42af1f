"""What verbs in several files share: the argument that names a run, the console, JSON."""

from pathlib import Path
from typing import Annotated, Any

import typer

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def open_console(*, stderr: bool = False, least_width: int = 0) -> Any:
    """A terminal has the width it has; into a file or a pipe go at least `least_width` columns."""
    from rich.console import Console

    console = Console(stderr=stderr)
    return (
        console
        if console.is_terminal or console.width >= least_width
        else Console(stderr=stderr, width=least_width)
    )


def print_json(value: object) -> None:
    """Indented, to standard output."""
    import json

    print(json.dumps(value, indent=2))


def run_folder(run: str) -> Path:
    """The folder of a run that is named or whose path is given.

    Raises:
        RunFolderError: there is none.
    """
    from brimful.base.env import runs_folder
    from brimful.generation.load import resolve_run

    return resolve_run(run, runs_folder())
