"""The arguments and options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer


def recipe_names(incomplete: str) -> list[str]:
    """Return the shipped recipes that begin like this."""
    from brimful.base.discover import names_in

    return [name for name in names_in("brimful.recipes", ".yaml") if name.startswith(incomplete)]


def run_names(incomplete: str) -> list[str]:
    """Return the folders of runs, and of members of studies, that begin like this."""
    from brimful.base.env import runs_folder

    root = runs_folder()
    folders = [path.parent for path in [*root.glob("*/recipe.*"), *root.glob("*/*/recipe.*")]]
    names = {folder.relative_to(root).as_posix() for folder in folders}
    return sorted(name for name in names if name.startswith(incomplete))


def device_names(incomplete: str) -> list[str]:
    """Return the short names of devices that begin like the last of a list with commas."""
    from brimful.hardware.catalog import names
    from brimful.hardware.naming import short_name

    before, comma, last = incomplete.rpartition(",")
    known = ["here", "all", *map(short_name, names())]
    return [before + comma + name for name in known if name.startswith(last.casefold())]


RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A shipped recipe's name or a .yaml file.",
        autocompletion=recipe_names,
    ),
]
Devices = Annotated[
    str,
    typer.Option(
        metavar="DEVICES",
        help="here, all, or names separated by commas: T4, 4090; `brimful devices` lists them.",
        autocompletion=device_names,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the recipe, as dotted.key=value."),
]
Fresh = Annotated[
    bool,
    typer.Option(
        "--fresh",
        help="Start over; unfinished work is moved aside, a finished run is never replaced.",
    ),
]
Accept = Annotated[
    list[str] | None,
    typer.Option(
        "--accept-change", metavar="KEY", help="Continue with a changed value of this key."
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Use this plan as it is; `brimful plan ... --save FILE` wrote it.",
    ),
]
Session = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="This machine is taken away, say, 12h from now: save in time. As run.session=12h.",
    ),
]
Yes = Annotated[
    bool,
    typer.Option("--yes", help="Begin although it is predicted to take more than a year."),
]
Explain = Annotated[
    bool,
    typer.Option("--explain", help="Print the whole plan, with reasons, and all about the data."),
]
RunName = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's name or folder.", autocompletion=run_names),
]
DeviceName = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeviceCount = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="N|all",
        help="Train on several devices of this machine together: how many, or all.",
    ),
]
Parallel = Annotated[
    bool,
    typer.Option(
        "--parallel",
        help="With --devices, for a study: one variant on each device at a time, not all on one.",
    ),
]
Only = Annotated[
    str | None,
    typer.Option("--only", metavar="VARIANT", help="Of a study: train and score this variant."),
]
SharedBy = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="N|all",
        help="Share the work among several devices of this machine: how many, or all.",
    ),
]
Restarts = Annotated[
    int,
    typer.Option(
        metavar="K",
        min=0,
        help="With --devices: start again up to K times after a process died or hung.",
    ),
]
