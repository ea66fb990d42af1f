"""The verb data. Nothing heavy is imported before it runs."""

from pathlib import Path
from typing import Annotated

import typer

from brimful.base.console import waiting
from brimful.base.garbage import collector_off
from brimful.base.light_imports import keep_torch_out
from brimful.cli.options import Json, Overrides, RecipeName
from brimful.cli.output import open_console, print_json, say


def data(
    recipe: RecipeName,
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option(metavar="N", min=0, help="Show the first N rows.")] = 3,
    whole: Annotated[
        bool,
        typer.Option("--all", help="Read all rows of examples, not the first 1,000 of each file."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as a page, too.")
    ] = None,
    json_output: Json = False,
) -> None:
    """What is learned of each row, and what is not: rows as read and as tokens, the learned ones
    marked; what is dropped, cut or unread; lengths. Nothing is trained, no weights are loaded.
    """
    from brimful.recipe import load

    resolved = load(recipe, overrides or [])
    with waiting(open_console(stderr=True), "reading") as show, collector_off():
        from brimful.data.first_look import first_look

        first_look(resolved)
        from brimful.chains.base_model import source_at_hand

        source = source_at_hand(resolved, show)
        keep_torch_out()
        from brimful.chains.data_view import view_data
        from brimful.report.data_view import render, write_page

        view = view_data(resolved, source, rows, whole=whole)
    if html is not None:
        write_page(view, html)
        say(f"{html}: open it in a browser.", stderr=True)
    if json_output:
        print_json(view.to_json())
    else:
        open_console().print(render(view), soft_wrap=True)
