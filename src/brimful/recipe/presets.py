"""Presets of a recipe: sets of changes under a name, of which a user chooses one with
`preset=NAME`.

A preset belongs to the recipe: its changes come before the user's, and the loaded recipe holds the
result, not the presets.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

import pydantic
from pydantic import Field

from brimful.base.discover import did_you_mean
from brimful.base.errors import RecipeError
from brimful.base.problems import problem_lines
from brimful.base.types import JsonDict
from brimful.recipe.base import Section

KEYS = ("preset", "presets")
"""Keys of a recipe file that a loaded recipe no longer has."""


class PresetRecipe(Section):
    """One preset of a recipe."""

    description: str = Field(description="One line; it becomes the recipe's description.")
    changes: list[str] = Field(description="Changes to the recipe as dotted.key=value.")

    @pydantic.field_validator("changes")
    @classmethod
    def _chooses_no_preset(cls, value: list[str]) -> list[str]:
        if chosen := choosing(value):
            raise ValueError(
                "a preset cannot choose or change presets: leave out"
                f" {', '.join(map(repr, chosen))}"
            )
        return value


def choosing(overrides: Iterable[str]) -> list[str]:
    """Return the overrides that choose or change presets: `preset=NAME` and `presets...`."""
    return [
        assignment
        for assignment in overrides
        if assignment.partition("=")[0].partition(".")[0] in KEYS
    ]


def _are_named(value: dict[str, PresetRecipe]) -> dict[str, PresetRecipe]:
    for name in value:
        if not re.fullmatch(r"\w[\w\-]*", name):
            raise ValueError(
                f"name {name!r}: use letters, digits, '_' and '-', not starting with '-'"
            )
    return value


PresetName = Annotated[
    str | None,
    Field(
        exclude=True, description="Name of the preset that applies; null: the recipe as written."
    ),
]
Presets = Annotated[
    dict[str, PresetRecipe],
    pydantic.AfterValidator(_are_named),
    Field(
        exclude=True,
        description=(
            "By name, {description: TEXT, changes: [dotted.key=value]}, of which preset=NAME"
            " chooses one."
        ),
    ),
]


class _OfFile(Section):
    preset: PresetName = None
    presets: Presets = Field({})


def take_presets(values: JsonDict) -> tuple[str | None, dict[str, PresetRecipe], list[str]]:
    """Take the two keys out of a recipe's values.

    Returns:
        The chosen name, every preset by name, and what is wrong with either, in which case the
        first two are empty.
    """
    try:
        found = _OfFile.model_validate({key: values.pop(key) for key in KEYS if key in values})
    except pydantic.ValidationError as error:
        return None, {}, problem_lines(error, _OfFile)
    return found.preset, found.presets, []


def require_preset(name: str, presets: Mapping[str, PresetRecipe], origin: str) -> PresetRecipe:
    """Return the preset of this name.

    Args:
        origin: The recipe, as errors name it.

    Raises:
        RecipeError: there is none.
    """
    if not presets:
        raise RecipeError(
            f"{origin} has no presets, so none can be chosen: leave out preset={name}. `brimful"
            " recipes` tells which recipes have some."
        )
    if name not in presets:
        raise RecipeError(
            f"{origin} has no preset {name!r}{did_you_mean(name, presets)} Its presets:"
            f" {', '.join(presets)}."
        )
    return presets[name]


def how_to_choose(names: Iterable[str]) -> str:
    """`preset=fast|max`."""
    return f"preset={'|'.join(names)}"
