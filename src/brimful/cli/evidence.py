"""The verb `evidence`: what runs here measured beside what was predicted. Imports nothing heavy."""

from pathlib import Path
from typing import Annotated

import typer

from brimful.base.text import plural

evidence_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="What runs here measured beside predictions: export FILE.",
)


@evidence_app.callback()
def evidence() -> None:
    """What runs on this machine measured beside what was predicted."""


@evidence_app.command("export")
def evidence_export(
    file: Annotated[Path, typer.Argument(help="A .json file; one of evidence is replaced.")],
) -> None:
    """Write what every run on this machine measured beside its plan's predictions, to be sent to
    others: numbers, settings, versions and the device's name; no other names, paths or texts.
    """
    from brimful.hardware.evidence import export

    count = export(file)
    print(f"{file}: {plural(count, 'run')}. Look through it before you send it.")
