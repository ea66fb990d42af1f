"""The published model that a recipe starts from: named, or made by another recipe first."""

from pathlib import Path

from brimful.data.tokens import Progress
from brimful.kinds.run_data import run_data_class
from brimful.recipe import OF_RECIPE, Recipe, load


def named_model(recipe: Recipe) -> str:
    """Return the hub id or absolute folder that a recipe names; empty for a fresh model."""
    if not isinstance(recipe.model, str):
        return ""
    return str(Path(recipe.model).resolve()) if Path(recipe.model).is_dir() else recipe.model


def names_recipe(recipe: Recipe) -> bool:
    """Return whether the model is that of another recipe, as `recipe:NAME`."""
    return isinstance(recipe.model, str) and recipe.model.startswith(OF_RECIPE)


def recipe_of_base(recipe: Recipe, progress: Progress | None = None) -> Recipe:
    """Return the recipe that trains the model named by `recipe:NAME`, on the same device and beside
    this run.
    """
    named = load(str(recipe.model).removeprefix(OF_RECIPE))
    base = run_data_class(recipe.kind).base_recipe(named, recipe, progress)
    place = {"device": recipe.plan.device, "threads": recipe.plan.threads}
    changes = {"run": recipe.run.beside(base.run.name), "plan": base.plan.model_copy(update=place)}
    return base.model_copy(update=changes)
