"""Every trial has a recipe that brimful takes, and worth decides their order."""

from brimful.prove.trials import (
    CUDA_TRAININGS,
    DOCUMENTS,
    EXAMPLES,
    FEEDBACK,
    LABELS,
    LONG_DOCUMENTS,
    MASKED,
    PARTS,
    SMALL_TRAININGS,
    SURVIVAL,
    trials_for,
)
from brimful.prove.workplace import Workplace
from brimful.recipe import load


def test_every_recipe_is_valid(place: Workplace) -> None:
    recipes = {each.name: each.recipe for each in (*CUDA_TRAININGS, *SMALL_TRAININGS)}
    survivals = (DOCUMENTS, LONG_DOCUMENTS, EXAMPLES, FEEDBACK, LABELS, MASKED)
    recipes |= {str(number): recipe for number, recipe in enumerate(survivals)}
    for name, recipe in recipes.items():
        is_tuned = recipe.get("method") == "sft" and "model" not in recipe
        values = {**recipe, "model": "bases/x"} if is_tuned else recipe

        loaded = load(str(place.folder / place.write_recipe(name, values)))

        assert loaded.name == name


def test_names_are_unique_and_parts_known() -> None:
    for kind in ("cuda", "cpu", "mps"):
        trials = trials_for(kind)
        assert len({each.name for each in trials}) == len(trials)
        assert {each.part for each in trials} <= set(PARTS)
        assert trials[0].part == SURVIVAL


def test_a_gpu_has_27_trainings_and_its_own_trials() -> None:
    names = [each.name for each in trials_for("cuda")]

    assert len(CUDA_TRAININGS) == 27
    assert set(names) >= {each.name for each in CUDA_TRAININGS}
    assert names.index("calibrate") < names.index("gpt-124m-calibrated") < names.index("tests")
