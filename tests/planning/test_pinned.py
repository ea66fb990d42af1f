"""Plans in files: used as they are, or refused with the reason."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import MakeDevice, MakePlan, MakeRecipe, Refuses

from brimful.base.errors import BrimfulError, PlanError, RunFolderError
from brimful.base.types import JsonDict
from brimful.hardware.device import Device
from brimful.planning.pinned import load_plan, save_plans, with_choices_of
from brimful.planning.plan import Plan
from brimful.recipe import Recipe

Saved = tuple[Path, Plan, Recipe]


@pytest.fixture
def saved(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    planned: MakePlan,
    tmp_path: Path,
) -> Saved:
    """A file, its plan with micro-batch 3, and the recipe without any."""
    plan = planned(tiny("plan.micro_batch=3"), cpu())
    save_plans(tmp_path / "plan.json", tiny(), {"": plan})
    return tmp_path / "plan.json", plan, tiny()


def _refused(
    path: Path, recipe: Recipe, device: Device, *parts: str, error: type[BrimfulError] = PlanError
) -> None:
    with pytest.raises(error) as raised:
        load_plan(path, recipe, device)
    for part in parts:
        assert part in str(raised.value)


def test_a_saved_plan_is_used_as_it_is(saved: Saved, cpu: MakeDevice) -> None:
    path, plan, recipe = saved

    assert load_plan(path, recipe, cpu()) == plan


def test_what_does_not_belong_to_the_step_may_differ(
    saved: Saved, tiny: MakeRecipe, cpu: MakeDevice
) -> None:
    path, plan, _ = saved

    for change in (
        "name=other",
        "checkpoint.every=7",
        "evaluation.every=2",
        "sample.tokens=3",
        "run.name=second",
        "plan.micro_batch=3",
    ):
        assert load_plan(path, tiny(change), cpu()) == plan, change


def test_each_variant_of_a_study_has_its_own_plan(
    saved: Saved, tiny: MakeRecipe, cpu: MakeDevice, planned: MakePlan
) -> None:
    path, three, _ = saved
    study = tiny("study.variants={one: [], three: [], large: []}")
    one = planned(tiny("plan.micro_batch=1"), cpu())
    save_plans(path, study, {"one": one, "three": three})

    assert load_plan(path, tiny(), cpu(), (study, "one")) == one
    assert load_plan(path, tiny("seed=2"), cpu(), (study, "three")) == three
    with pytest.raises(PlanError, match="has no plan of large, which did not fit"):
        load_plan(path, tiny(), cpu(), (study, "large"))
    other = tiny("study.variants={one: [], three: [], larger: []}")
    with pytest.raises(PlanError, match=r"study\.variants\.larger: None ->"):
        load_plan(path, tiny(), cpu(), (other, "one"))
    _refused(path, tiny(), cpu(), "made for another recipe:", "study.variants.one")


def test_trainings_of_rounds_share_a_plan(saved: Saved, tiny: MakeRecipe, cpu: MakeDevice) -> None:
    path, plan, recipe = saved

    assert load_plan(path, tiny("seed=2"), cpu(), (recipe, "rft-1")) == plan


def test_another_recipe_is_refused_with_what_differs(
    saved: Saved, tiny: MakeRecipe, cpu: MakeDevice
) -> None:
    path, _, _ = saved

    _refused(
        path,
        tiny("sequence_length=16", "model.layers=3"),
        cpu(),
        "made for another recipe:",
        "model.layers: 2 -> 3",
        "sequence_length: 32 -> 16",
        f"Make a new one: brimful plan tiny --save {path}",
    )


def test_keys_that_an_earlier_version_did_not_know_mean_their_defaults(
    saved: Saved, tiny: MakeRecipe, cpu: MakeDevice
) -> None:
    path, plan, _ = saved
    content = json.loads(path.read_text())
    for section, key in (("data", "bad_rows"), ("data", "header"), ("optimizer", "weights")):
        del content["recipe"][section][key]
    path.write_text(json.dumps(content))
    assert load_plan(path, tiny(), cpu()) == plan
    _refused(path, tiny("data.header=false"), cpu(), "data.header: auto -> False")
    del content["recipe"]["sequence_length"]
    content["recipe"]["unknown"] = 1
    path.write_text(json.dumps(content))
    _refused(path, tiny(), cpu(), "sequence_length: None -> 32", "unknown: 1 -> None")


def test_another_device_is_refused_with_both_names(saved: Saved, cpu: MakeDevice) -> None:
    path, _, recipe = saved

    _refused(path, recipe, cpu(name="another CPU"), "was made for a CPU, but this is another CPU")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda values: values.update(format_version=99),
            "has plan version 99, this brimful reads 1",
        ),
        (lambda values: values.pop("format"), "is not a saved plan"),
        (lambda values: values.pop("plan"), "is not a saved plan"),
        (
            lambda values: values["plan"].pop("choices"),
            "not a plan that this version of brimful can read",
        ),
        (
            lambda values: values["plan"].update(micro_batches=[3, 3]),
            "feeds 6 sequences per step, the recipe asks for 8",
        ),
    ],
)
def test_what_is_no_plan_of_this_version_is_refused(
    saved: Saved, cpu: MakeDevice, damage: Callable[[JsonDict], object], said: str
) -> None:
    path, _, recipe = saved
    values = json.loads(path.read_text())
    damage(values)
    path.write_text(json.dumps(values))

    _refused(path, recipe, cpu(), said)


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00"])
def test_a_file_that_holds_no_plan_is_refused(saved: Saved, cpu: MakeDevice, content: str) -> None:
    path, _, recipe = saved
    path.write_text(content)

    _refused(path, recipe, cpu(), str(path))


def test_a_missing_file_is_told_with_how_to_make_one(saved: Saved, cpu: MakeDevice) -> None:
    path, _, recipe = saved

    _refused(
        path.with_name("absent.json"),
        recipe,
        cpu(),
        "cannot be read",
        "`brimful plan RECIPE --save FILE` writes one",
    )


def test_a_recipe_that_fixes_something_else_is_refused_with_both_values(
    saved: Saved, tiny: MakeRecipe, cpu: MakeDevice
) -> None:
    path, _, _ = saved

    _refused(
        path,
        tiny("plan.micro_batch=4"),
        cpu(),
        "plan.micro_batch=4",
        "says 3",
        "Leave it out, or plan again with it and --save",
    )


def test_a_place_that_cannot_be_written_is_told(
    saved: Saved, tmp_path: Path, refuses: Refuses
) -> None:
    _, plan, recipe = saved

    with refuses(RunFolderError):
        save_plans(tmp_path / "absent" / "plan.json", recipe, {"": plan})


def test_the_plans_choices_become_the_recipes(
    saved: Saved, cpu: MakeDevice, planned: MakePlan
) -> None:
    _, plan, recipe = saved

    fixed = with_choices_of(plan, recipe)

    assert (fixed.plan.micro_batch, fixed.plan.precision, fixed.plan.recompute) == (
        3,
        plan.precision,
        plan.recompute,
    )
    assert planned(fixed, cpu()).micro_batches == plan.micro_batches
    assert recipe.plan.micro_batch == "auto"
