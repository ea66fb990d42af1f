"""What is kept of a run, and what is not."""

import json

from fixture_types import MakePlan, MakeRecipe

from brimful.hardware import catalog
from brimful.planning.described import described

CARD = catalog.get("NVIDIA H200")


def test_a_fresh_model_is_described_by_its_sizes(tiny: MakeRecipe, planned: MakePlan) -> None:
    recipe = tiny()

    about = described(recipe, planned(recipe, CARD))

    assert about.settings["model"]["layers"] == 2
    assert about.settings["micro_batches"]
    assert about.memory_terms["weights"] > 0
    value, low, high = about.shown["peak_memory_bytes"]
    assert low <= value <= high


def test_paths_and_names_of_recipes_and_own_models_are_left_out(
    adapted: MakeRecipe, planned: MakePlan
) -> None:
    recipe = adapted("name=my-secret", "model=/home/somebody/model", "data.path=/secret/data")
    known = adapted("method=sft")

    about = described(recipe, planned(known, CARD))

    assert about.settings["model"] is None
    text = json.dumps(about.settings)
    assert "secret" not in text
    assert "somebody" not in text
    assert isinstance(described(known, planned(known, CARD)).settings["model"], str)
