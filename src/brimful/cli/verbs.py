"""The application: its verbs in the order of the help, and the entry point."""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from brimful.base.env import keep_few_kernels, load_no_pydantic_plugins, wait_politely
from brimful.base.errors import BrimfulError
from brimful.base.text import printable
from brimful.cli.kept_answers import AskedCommand
from brimful.cli.output import say

VERBS = {
    "doctor": "planning",
    "plan": "planning",
    "train": "training",
    "run": "training",
    "sample": "training",
    "launch": "training",
    "generate": "models",
    "predict": "models",
    "export": "models",
    "serve": "models",
    "evaluate": "models",
    "diagnose": "models",
    "calibrate": "planning",
    "atlas": "planning",
    "prove": "proving",
    "devices": "catalogs",
    "report": "runs",
    "compare": "runs",
    "runs": "runs",
    "watch": "runs",
    "studio": "runs",
}
"""By name, in the order of the help: the module of each."""


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from brimful.base.version import installed_version

        print(f"brimful {installed_version()}")
        raise typer.Exit


def options(
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Say what to train. brimful works out what the hardware can hold, trains it that way, and
    shows what came of it.
    """


def app_with(verbs: Sequence[Callable[..., Any]]) -> typer.Typer:
    """Return the application with some of its verbs."""
    made = typer.Typer(
        name="brimful",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    made.callback()(options)
    for verb in verbs:
        # Else the list of verbs cuts what they say.
        sentence = " ".join((verb.__doc__ or "").split()).partition(". ")[0].removesuffix(".")
        made.command(short_help=f"{sentence}.")(verb)
    return made


def _verb(name: str) -> Callable[..., Any]:
    module = importlib.import_module(f"brimful.cli.{VERBS[name]}")
    function: Callable[..., Any] = getattr(module, name)
    return function


@functools.cache
def whole_app() -> typer.Typer:
    """Return the application with all verbs."""
    from brimful.cli.catalogs import models_app
    from brimful.cli.evidence import evidence_app
    from brimful.cli.recipes import recipes_app

    app = app_with([_verb(name) for name in VERBS])
    app.add_typer(recipes_app, name="recipes")
    app.add_typer(models_app, name="models")
    app.add_typer(evidence_app, name="evidence")
    return app


def _app_for(words: Sequence[str]) -> typer.Typer:
    """Return the application for a command: with the one verb that it begins with, whose module
    alone is imported, else the whole.
    """
    named = words and words[0] in VERBS
    return app_with([_verb(words[0])]) if named else whole_app()


def main(question: AskedCommand | None = None) -> None:
    """Run the command line. An expected error, or a file that the system refuses, is printed as one
    message and ends with its exit code; any other error is a bug and shows its traceback.

    Args:
        question: Where the verb may keep its answer.
    """
    wait_politely()
    keep_few_kernels()
    load_no_pydantic_plugins()
    try:
        _app_for(sys.argv[1:])(obj=question)
    except BrimfulError as error:
        say(f"brimful: {printable(str(error))}", stderr=True)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        if error.filename is None:
            raise
        where = printable(str(error.filename))
        print(
            f"brimful: {where}: {error.strerror}. Check permissions, and that the disk is there.",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("brimful: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
