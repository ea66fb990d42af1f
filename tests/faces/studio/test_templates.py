"""A model that is only named gets a recipe that can be run once its data are put in."""

import pytest

from brimful.faces.studio.templates import SEQUENCE_LENGTH, template
from brimful.recipe import Recipe


def test_it_names_the_model_and_what_is_done() -> None:
    recipe = template("meta-llama/Llama-3.1-8B", "qlora")

    assert (recipe.name, recipe.model, recipe.sequence_length) == (
        "llama-3.1-8b-qlora",
        "meta-llama/Llama-3.1-8B",
        SEQUENCE_LENGTH,
    )


@pytest.mark.parametrize(
    ("method", "expected"), [("lora", 2e-4), ("full", 2e-5), ("pretrain", 1e-4)]
)
def test_the_learning_rate_is_usual_for_the_method(method: str, expected: float) -> None:
    assert template("Qwen/Qwen2.5-0.5B", method).optimizer.learning_rate == expected  # type: ignore[arg-type]


def test_sequences_are_no_longer_than_the_model_reads() -> None:
    recipe = template("openai-community/gpt2", "full")

    assert isinstance(recipe, Recipe)
    assert recipe.sequence_length == 1024
