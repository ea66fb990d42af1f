"""Plans in a file: `plan ... --save` writes them, `train` and `run --plan` use them unchanged or
say why they cannot. No torch.
"""

from collections.abc import Mapping
from pathlib import Path

from brimful.base.dotted import flatten
from brimful.base.errors import PlanError
from brimful.base.rundir import parse_json, write_json_atomically
from brimful.base.types import Json, JsonDict
from brimful.hardware.device import Device
from brimful.planning.plan import Plan, plan_from_json
from brimful.recipe import Recipe

FORMAT = "brimful plan"
FORMAT_VERSION = 1
NOT_OF_THE_STEP: JsonDict = {
    **dict.fromkeys(
        ("name", "description", "evaluation", "checkpoint", "sample", "plan", "run"), True
    ),
    "optimizer": {"spikes"},
}
"""Sections and keys of a recipe that do not change what the plan is about; they may differ from
those of the plan's recipe.
"""


def save_plans(path: Path, recipe: Recipe, plans: Mapping[str, Plan]) -> None:
    """Write a file that holds a recipe and the plan of each of its trainings, for `load_plan`.

    Args:
        path: The file.
        recipe: The recipe of the whole job.
        plans: Plan of each variant of a study, by name; "" is the plan of all other trainings.

    Raises:
        RunFolderError: the file cannot be written.
    """
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "recipe": _fingerprint(recipe),
    }
    values = {variant: plan.to_json() for variant, plan in plans.items()}
    # As earlier versions read the plan of one run.
    content |= {"plan": values[""]} if values.keys() == {""} else {"plans": values}
    write_json_atomically(path, content)


def load_plan(
    path: Path, recipe: Recipe, device: Device, part: tuple[Recipe, str] | None = None
) -> Plan:
    """The plan of a file, for exactly this recipe and device.

    Args:
        path: The file.
        recipe: Recipe of the run.
        device: Trains it.
        part: The whole recipe that the run is part of, and the run's variant there; None: the run
            is all.

    Raises:
        PlanError: not a plan, another version's, another recipe's or another device's; none of this
            variant; or the recipe fixes something else than the plan says.
    """
    content, (whole, variant) = _read(path), part or (recipe, "")
    again = f"Make a new one: brimful plan {whole.name} --save {path}"
    plans = content.get("plans") or {"": content.get("plan")}
    if content.get("format") != FORMAT or not all(plans.values()):
        raise PlanError(f"{path} is not a saved plan. {again}")
    if content.get("format_version") != FORMAT_VERSION:
        raise PlanError(
            f"{path} has plan version {content.get('format_version')}, this brimful reads"
            f" {FORMAT_VERSION}. {again}"
        )
    if changed := _changes(content.get("recipe", {}), whole):
        raise PlanError(f"{path} was made for another recipe:\n{changed}\n{again}")
    values = plans.get(variant, plans.get(""))
    if values is None:
        raise PlanError(f"{path} has no plan of {variant}, which did not fit. {again}")
    plan = plan_from_json(values)
    if plan.device["name"] != device.name:
        raise PlanError(
            f"{path} was made for {plan.device['name']}, but this is {device.name}. {again}"
        )
    if plan.effective_batch != recipe.effective_batch:
        raise PlanError(
            f"{path} feeds {plan.effective_batch} sequences per step, the recipe asks for"
            f" {recipe.effective_batch}. {again}"
        )
    _refuse_contradictions(path, recipe, plan)
    return plan


def with_choices_of(plan: Plan, recipe: Recipe) -> Recipe:
    """The recipe with everything fixed as in the plan, so that deriving it again only looks whether
    it fits.
    """
    known = {
        name: value
        for name, value in _decided(plan).items()
        if name in type(recipe.plan).model_fields and value is not None
    }
    return recipe.model_copy(update={"plan": recipe.plan.model_copy(update=known)})


def _read(path: Path) -> JsonDict:
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(
            f"the plan {path} cannot be read: {error}. `brimful plan RECIPE --save FILE` writes"
            " one."
        ) from error


def _fingerprint(recipe: Recipe) -> JsonDict:
    return recipe.model_dump(mode="json", exclude=NOT_OF_THE_STEP)


def _changes(stored: Json, recipe: Recipe) -> str:
    """What differs. Keys that plans of earlier versions do not have mean their defaults."""
    try:
        was = Recipe.model_validate({**recipe.model_dump(mode="json"), **stored})
    except ValueError:  # no recipe of this version
        old = flatten(dict(stored))
    else:
        old = flatten(_fingerprint(was))
    new = flatten(_fingerprint(recipe))
    return "\n".join(
        f"  - {key}: {old.get(key)} -> {new.get(key)}"
        for key in sorted(old | new)
        if old.get(key) != new.get(key)
    )


def _decided(plan: Plan) -> JsonDict:
    return {choice.name: choice.value for choice in plan.choices} | {"threads": plan.threads}


def _refuse_contradictions(path: Path, recipe: Recipe, plan: Plan) -> None:
    decided = {name: value for name, value in _decided(plan).items() if value is not None}
    fixed = {
        name: value
        for name, value in recipe.plan.model_dump().items()
        if value != "auto" and name in decided
    }
    if "micro_batch" in fixed:
        fixed["micro_batch"] = min(fixed["micro_batch"], recipe.effective_batch)
    if wrong := [
        f"plan.{name}={value}, but {path} says {decided[name]}"
        for name, value in fixed.items()
        if value != decided[name]
    ]:
        raise PlanError(
            f"the recipe fixes {'; '.join(wrong)}. Leave it out, or plan again with it and --save."
        )
