"""An optimizer step of examples as rows of tokens."""

from collections.abc import Callable

import pytest

from brimful.planning.rows import as_rows
from brimful.recipe import Recipe


@pytest.mark.parametrize(("mean", "rows"), [(32.0, 8), (8.0, 2), (9.0, 3), (0.5, 1)])
def test_a_step_has_as_many_rows_as_its_tokens_fill(
    tiny: Callable[..., Recipe], mean: float, rows: int
) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=8", "training.steps=5")

    assert as_rows(recipe, positions_per_example=mean, train_examples=100).effective_batch == rows


def test_an_epoch_is_still_counted_in_examples(tiny: Callable[..., Recipe]) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=8", "training.epochs=2")

    assert as_rows(recipe, positions_per_example=4, train_examples=100).training.steps == 25


def test_a_length_in_tokens_counts_the_tokens_of_examples(tiny: Callable[..., Recipe]) -> None:
    recipe = tiny("sequence_length=32", "batch.sequences=8", "training.tokens=3200")

    assert as_rows(recipe, positions_per_example=4, train_examples=100).training.steps == 100


def test_a_cap_on_evaluation_becomes_one_in_rows(tiny: Callable[..., Recipe]) -> None:
    recipe = tiny(
        "sequence_length=32", "batch.sequences=8", "training.steps=5", "evaluation.max_sequences=20"
    )

    assert (
        as_rows(recipe, positions_per_example=8, train_examples=100).evaluation.max_sequences == 5
    )
    assert recipe.evaluation.max_sequences == 20
