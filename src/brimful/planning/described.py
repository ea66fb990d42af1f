"""What a run was, in the plain values that decide its memory and time, for later plans and for
people who compare runs. No names of people, folders or files, and no text.
"""

from brimful.base.types import JsonDict
from brimful.hardware.calibration import Described
from brimful.model import catalog
from brimful.planning.plan import Plan
from brimful.recipe import ModelRecipe, Recipe


def described(recipe: Recipe, plan: Plan) -> Described:
    """Return what a run by this plan is."""
    return Described(
        memory_kind=plan.memory_kind,
        memory_terms={name: float(size) for name, size in plan.memory_terms.items()},
        time_terms=dict(plan.time_terms),
        shown={
            name: [entry.value, entry.low, entry.high] for name, entry in plan.predicted.items()
        },
        settings={**_of_recipe(recipe), **_of_plan(plan)},
    )


def _of_recipe(recipe: Recipe) -> JsonDict:
    fresh = isinstance(recipe.model, ModelRecipe)
    return {
        "method": recipe.method,
        "model": _model(recipe),
        "vocabulary": recipe.own_tokenizer.vocabulary if fresh else None,
        "sequence_length": recipe.sequence_length,
        "effective_batch": recipe.effective_batch,
        "adapter": None
        if recipe.adapter is None
        else recipe.adapter.model_dump(mode="json", exclude={"start"}),
        "quantize": recipe.quantize,
        "optimizer": recipe.optimizer.kind,
        "weights": recipe.optimizer.weights,
        "layout": recipe.data.layout,
    }


def _model(recipe: Recipe) -> str | JsonDict | None:
    """Return a fresh model's sizes, or the name of a published one; None for one that the catalog
    does not have, as its name may be a folder or nobody else's business.
    """
    if isinstance(recipe.model, ModelRecipe):
        return recipe.model.model_dump(mode="json")
    row = catalog.find(recipe.model)
    return None if row is None else row.name


def _of_plan(plan: Plan) -> JsonDict:
    names = (
        "precision",
        "attention",
        "recompute",
        "offload",
        "compile",
        "packing",
        "loss_chunk",
        "threads",
    )
    return {
        **{name: getattr(plan, name) for name in names},
        "micro_batches": list(plan.micro_batches),
        "update": plan.optimizer,
        "parameters": plan.parameters,
        "total_steps": plan.total_steps,
        "device_kind": plan.device["kind"],
        "device_memory_bytes": plan.device["memory_bytes"],
    }
