"""The application: its verbs in the order of the help, and the entry point."""

import functools
import importlib
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from brimful.base.env import (
    keep_few_kernels,
    launched_rank,
    load_no_pydantic_plugins,
    wait_politely,
    was_started_by_brimful,
)
from brimful.base.errors import BrimfulError, RequestError
from brimful.base.text import printable
from brimful.cli.output import say

GROUPS = {
    "Start here": {
        "plan": "planning",
        "data": "data_view",
        "run": "training",
        "generate": "models",
        "report": "runs",
        "export": "models",
        "serve": "models",
    },
    "Runs": {
        "train": "training",
        "runs": "runs",
        "watch": "runs",
        "compare": "runs",
        "evaluate": "models",
        "predict": "models",
        "studio": "runs",
    },
    "Catalogs": {"recipes": "recipes", "models": "catalogs", "devices": "catalogs"},
    "Further": {
        "doctor": "planning",
        "calibrate": "planning",
        "sample": "training",
        "launch": "training",
        "diagnose": "models",
        "atlas": "planning",
        "prove": "proving",
        "evidence": "evidence",
    },
}
"""The verbs in the groups and the order of the help, each with its module: a function of that name,
or NAME_app with verbs of its own.
"""


class _GroupedVerbs(TyperGroup):
    """The application, whose help lists the verbs by group."""

    def format_commands(self, _context: Any, formatter: Any) -> None:
        for title, verbs in GROUPS.items():
            rows = [
                (name, self.commands[name].get_short_help_str(formatter.width)) for name in verbs
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        from brimful.base.libraries import installed_version

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


def app_with(names: Iterable[str]) -> typer.Typer:
    """Return the application with some of its verbs."""
    made = typer.Typer(
        name="brimful",
        cls=_GroupedVerbs,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    made.callback()(options)
    modules = {name: module for verbs in GROUPS.values() for name, module in verbs.items()}
    for name in names:
        module = importlib.import_module(f"brimful.cli.{modules[name]}")
        further = getattr(module, f"{name}_app", None)
        if further is not None:
            made.add_typer(further, name=name)
            continue
        verb: Callable[..., Any] = getattr(module, name)
        # Else the list of verbs cuts what they say.
        sentence = " ".join((verb.__doc__ or "").split()).partition(". ")[0].removesuffix(".")
        made.command(name, short_help=f"{sentence}.")(verb)
    return made


@functools.cache
def whole_app() -> typer.Typer:
    """Return the application with all verbs."""
    return app_with(name for verbs in GROUPS.values() for name in verbs)


def _app_for(words: Sequence[str]) -> typer.Typer:
    """Return the application for a command: with the one verb that it begins with, whose module
    alone is imported, else the whole.

    Raises:
        RequestError: it begins with another word; the verb that it may mean is told.
    """
    if not words or words[0].startswith("-"):
        return whole_app()
    known = [name for verbs in GROUPS.values() for name in verbs]
    if words[0] in known:
        return app_with(words[:1])
    from brimful.base.discover import did_you_mean
    from brimful.recipe import shipped_names
    from brimful.recipe.loading import OTHER_VERBS

    hint = did_you_mean(words[0], known)
    if words[0] in OTHER_VERBS:
        hint = f" - did you mean {OTHER_VERBS[words[0]]!r}?"
    elif words[0] in shipped_names():
        hint = f", but a recipe: `brimful run {shlex.join(words)}`."
    raise RequestError(f"{words[0]!r} is no verb{hint} `brimful --help` lists all.")


def main() -> None:
    """Run the command line. An expected error, a file that the system refuses, or libraries that do
    not fit each other are printed as one message and end with an exit code; any other error is a
    bug and shows its traceback.
    """
    wait_politely()
    keep_few_kernels()
    load_no_pydantic_plugins()
    try:
        _app_for(sys.argv[1:])()
    except BrimfulError as error:
        say(f"brimful: {printable(str(error))}", stderr=True)
        launched = launched_rank()
        if launched and not (error.is_known_to_ranks or was_started_by_brimful()):
            from brimful.training.endings import tell_refusal

            tell_refusal(error, launched["RANK"], launched["WORLD_SIZE"])
        raise SystemExit(error.exit_code) from None
    except ImportError:
        from brimful.base.libraries import misfits

        misfit = next(chain(misfits(), misfits("brimful")), None)
        if misfit is None:
            raise
        say(f"brimful: {misfit[1]}", stderr=True)
        raise SystemExit(2) from None
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
