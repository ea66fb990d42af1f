"""The application: its verbs in the order of the help, and the entry point."""

import sys

import typer

from brimful.base.env import keep_few_kernels, wait_politely
from brimful.base.errors import BrimfulError
from brimful.cli import models, planning, runs, training
from brimful.cli.recipes import recipes_app

VERBS = (
    planning.doctor,
    planning.plan,
    training.train,
    training.run,
    training.sample,
    models.generate,
    models.predict,
    models.export,
    models.evaluate,
    models.diagnose,
    planning.calibrate,
    runs.report,
    runs.compare,
    runs.runs,
    runs.watch,
    runs.studio,
)

app = typer.Typer(
    name="brimful",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=(
        "Say what to train. brimful works out what the hardware can hold, trains it that way, and"
        " shows what came of it."
    ),
)
app.add_typer(recipes_app, name="recipes")
for verb in VERBS:
    app.command()(verb)


def main() -> None:
    """Run the command line. An expected error is printed as one message and ends with its exit
    code; any other error is a bug and shows its traceback.
    """
    wait_politely()
    keep_few_kernels()
    try:
        app()
    except BrimfulError as error:
        print(f"brimful: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("brimful: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
