"""The arguments and options that several verbs share."""

from pathlib import Path
from typing import Annotated

import typer

from brimful.cli.completion import device_names, recipe_names, run_names

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
