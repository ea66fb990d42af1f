"""The verb `recipes`: shipped ones listed and shown, every key, the schema. Nothing heavy is
imported.
"""

import json
import sys
from typing import Annotated

import typer

from brimful.cli.options import recipe_names

recipes_app = typer.Typer(
    no_args_is_help=False,
    invoke_without_command=True,
    rich_markup_mode=None,
    help="Shipped recipes: list, show NAME, keys, schema.",
)


@recipes_app.callback()
def recipes(context: typer.Context) -> None:
    """Shipped recipes, one line each, with the presets to choose from."""
    if context.invoked_subcommand is None:
        from brimful.base.text import aligned_and_wrapped
        from brimful.cli.output import open_console
        from brimful.recipe import shipped_names

        console = open_console()
        rows = [(name, _described(name)) for name in shipped_names()]
        width = console.width if console.is_terminal else sys.maxsize
        print("\n".join(aligned_and_wrapped(rows, width)))


def _described(name: str) -> str:
    from brimful.recipe.loading import load, presets_of
    from brimful.recipe.presets import how_to_choose

    presets = presets_of(name)
    return load(name).description + (f" [{how_to_choose(presets)}]" if presets else "")


@recipes_app.command("show")
def recipes_show(
    name: Annotated[str, typer.Argument(help="A shipped recipe.", autocompletion=recipe_names)],
) -> None:
    """Print a shipped recipe, to save and edit."""
    from brimful.recipe import shipped_text

    print(shipped_text(name), end="")


@recipes_app.command("keys")
def recipes_keys() -> None:
    """Print every key of a recipe with its type, default and meaning, as a Markdown table."""
    from brimful.base.keys import describe_keys
    from brimful.recipe import Recipe

    print("| key | value | default | meaning |\n| --- | --- | --- | --- |")
    print(
        "\n".join(
            f"| `{key}` | {kind} | {default} | {meaning} |"
            for key, kind, default, meaning in describe_keys(Recipe)
        )
    )


@recipes_app.command("schema")
def recipes_schema() -> None:
    """Print the JSON schema of recipes."""
    from brimful.recipe import Recipe

    print(json.dumps(Recipe.model_json_schema(), indent=2))
