"""Recipes from YAML files and shipped names, with `key=value` overrides; every problem in one error."""

import copy
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic

from brimful.base.discover import did_you_mean, names_in
from brimful.base.dotted import flatten, override, parse_yaml
from brimful.base.errors import RecipeError
from brimful.base.problems import problem_lines
from brimful.recipe.sections import MODEL_TAGS, Recipe

SHIPPED_PACKAGE = "brimful.recipes"


def shipped_names() -> list[str]:
    """Names of the recipes that come with brimful."""
    return names_in(SHIPPED_PACKAGE, ".yaml")


def shipped_text(name: str) -> str:
    """The YAML of a shipped recipe, as written.

    Raises:
        RecipeError: no shipped recipe has this name.
    """
    if name not in shipped_names():
        raise RecipeError(f"no shipped recipe {name!r}{did_you_mean(name, shipped_names())} Shipped: {', '.join(shipped_names())}.")
    return resources.files(SHIPPED_PACKAGE).joinpath(f"{name}.yaml").read_text(encoding="utf-8")


def load(name_or_path: str, overrides: list[str] | tuple[str, ...] = ()) -> Recipe:
    """Read a recipe and apply `dotted.key=value` overrides, values in YAML.

    Where they change how much an optimizer step sees, learning rates that they leave alone follow the recipe's
    `optimizer.scale_learning_rate`; the result holds the scaled values.

    Raises:
        RecipeError: the recipe does not exist, is not YAML, or breaks rules; all of them are listed.
    """
    text, origin = _read(name_or_path)
    try:
        values = parse_yaml(text)
    except ValueError as error:
        raise RecipeError(f"{origin} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{origin} must hold `key: value` lines at the top, found {type(values).__name__}.")
    return _changed(values, overrides, origin)


def with_changes(recipe: Recipe, changes: Sequence[str], origin: str) -> Recipe:
    """A recipe with `dotted.key=value` changes, by the rules of `load`.

    Args:
        origin: Named in the error.

    Raises:
        RecipeError: they do not make a recipe; all problems are listed.
    """
    return _changed(recipe.model_dump(mode="json"), changes, origin)


def _changed(own_values: dict[str, Any], overrides: Sequence[str], origin: str) -> Recipe:
    values = copy.deepcopy(own_values)
    problems = [problem for assignment in overrides if (problem := _apply(assignment, values))]
    recipe = _validate(values, origin, problems)
    scaled = _scaled_learning_rates(recipe, own_values, overrides)
    if not scaled:
        return recipe
    values["optimizer"] |= scaled
    return _validate(values, origin, [])


def learning_rate_factor(before: Recipe, after: Recipe) -> float:
    """What the rule of `after` makes of the learning rate of `before`: k or its square root, k as in `step_growth`; 1 without a rule."""
    return float(step_growth(before, after) ** LEARNING_RATE_POWER[after.optimizer.scale_learning_rate])


def step_growth(before: Recipe, after: Recipe) -> float:
    """k: how many times as much an optimizer step of `after` sees, in tokens; in examples, whose length varies, for method sft."""
    if "sft" in {before.method, after.method}:
        return after.effective_batch / before.effective_batch
    return after.effective_batch * after.sequence_length / (before.effective_batch * before.sequence_length)


LEARNING_RATE_POWER = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}
"""By `optimizer.scale_learning_rate`: the power of k by which the learning rate grows."""


def _scaled_learning_rates(recipe: Recipe, own_values: dict[str, Any], overrides: Sequence[str]) -> dict[str, float]:
    """Keys of the optimizer section and their scaled values; none where the user set the learning rate, or changes alone make the recipe whole."""
    set_keys = {assignment.partition("=")[0] for assignment in overrides}
    if not overrides or set_keys & {"optimizer", "optimizer.learning_rate"}:
        return {}
    try:
        own = Recipe.model_validate(own_values)
    except pydantic.ValidationError:
        return {}
    factor = learning_rate_factor(own, recipe)
    scaled = {"learning_rate": own.optimizer.learning_rate * factor}
    if recipe.optimizer.min_learning_rate is not None and "optimizer.min_learning_rate" not in set_keys:
        scaled["min_learning_rate"] = recipe.optimizer.min_learning_rate * factor
    return {} if factor == 1 else {key: float(f"{value:.6g}") for key, value in scaled.items()}


def _read(name_or_path: str) -> tuple[str, str]:
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        try:
            return path.read_text(encoding="utf-8"), str(path)
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"recipe {name_or_path} cannot be read: {error}. Shipped recipes: {', '.join(shipped_names())}.") from error
    if name_or_path in shipped_names():
        return shipped_text(name_or_path), f"recipe {name_or_path}"
    hint = did_you_mean(name_or_path, shipped_names())
    raise RecipeError(f"no recipe {name_or_path!r}{hint} Shipped: {', '.join(shipped_names())}; or give a .yaml file.")


def _apply(assignment: str, values: dict[str, Any]) -> str | None:
    """Set one override in place; returns what is wrong with it, if anything."""
    try:
        override(assignment, values, _RIVALS)
    except ValueError as error:
        return str(error)
    return None


_RIVALS = {"batch": ("sequences", "tokens"), "training": ("steps", "epochs", "tokens")}
"""Fields of which a section has exactly one: overriding one takes the others of the file back."""


def _validate(values: dict[str, Any], origin: str, problems: list[str]) -> Recipe:
    try:
        recipe = Recipe.model_validate(values)
    except pydantic.ValidationError as error:
        problems = problems + problem_lines(error, Recipe, MODEL_TAGS)
        recipe = None
    if recipe is None or problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise RecipeError(
            f"{origin} has {len(problems)} problem{'s' * (len(problems) != 1)}:\n{lines}\nEvery key is described by `brimful recipes keys`."
        )
    return recipe


def differences(before: Recipe, after: Recipe) -> dict[str, tuple[object, object]]:
    """Dotted key -> (before, after), for every field in which the two differ."""
    old, new = flatten(before.model_dump(mode="json")), flatten(after.model_dump(mode="json"))
    return {key: (old.get(key), new.get(key)) for key in sorted(old | new) if old.get(key) != new.get(key)}
