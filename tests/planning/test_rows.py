"""An optimizer step of examples as rows of tokens."""

import pytest
from fixture_types import MakeRecipe

from brimful.planning.rows import as_rows, fill_of_rows


@pytest.mark.parametrize(
    ("mean", "rows", "fill"), [(32.0, 8, 1.0), (8.0, 2, 1.0), (9.0, 3, 0.75), (0.5, 1, 0.125)]
)
def test_a_step_has_as_many_rows_as_its_tokens_fill_and_the_last_one_is_not_full(
    tiny: MakeRecipe, mean: float, rows: int, fill: float
) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=8", "training.steps=5")

    assert as_rows(recipe, positions_per_example=mean, train_examples=100).effective_batch == rows
    assert fill_of_rows(recipe, mean) == fill


def test_an_epoch_is_still_counted_in_examples(tiny: MakeRecipe) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=8", "training.epochs=2")

    assert as_rows(recipe, positions_per_example=4, train_examples=100).training.steps == 25


def test_a_length_in_tokens_counts_the_tokens_of_examples(tiny: MakeRecipe) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=8", "training.tokens=3200")

    assert as_rows(recipe, positions_per_example=4, train_examples=100).training.steps == 100


def test_a_cap_on_evaluation_becomes_one_in_rows(tiny: MakeRecipe) -> None:
    recipe = tiny(
        "sequence_length=32", "batch.sequences=8", "training.steps=5", "evaluation.max_sequences=20"
    )

    assert (
        as_rows(recipe, positions_per_example=8, train_examples=100).evaluation.max_sequences == 5
    )
    assert recipe.evaluation.max_sequences == 20
