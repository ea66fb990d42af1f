"""Recipes whose optimizer step is counted in examples, as planning sees them: in rows of the
sequence length.
"""

import math

from brimful.planning.derive import total_steps_of
from brimful.recipe import BatchRecipe, Recipe, TrainingRecipe
from brimful.recipe.base import Section
from brimful.recipe.rewards import CountedRewards, rewards_of


def as_rows(recipe: Recipe, *, positions_per_example: float, train_examples: int) -> Recipe:
    """Return the recipe with its batch and its evaluation counted in full rows in place of
    examples, and its length in steps.

    Examples of a step lie end to end (or beside others of similar length), so a step costs as much
    as its tokens, not as much as a full sequence for each example.

    Args:
        recipe: `batch.sequences` and `evaluation.max_sequences` count examples.
        positions_per_example: Mean number of inputs of a training example.
        train_examples: Examples of one epoch.
    """
    positions = recipe.kind.rows_per_sample * recipe.effective_batch * positions_per_example
    steps = total_steps_of(recipe, train_examples)
    if recipe.training.tokens is not None:
        steps = max(1, round(recipe.training.tokens / positions))

    def rows(examples: int) -> int:
        return _full_rows(examples * positions_per_example / recipe.sequence_length)

    most = recipe.evaluation.max_sequences
    evaluation = (
        recipe.evaluation
        if most is None
        else recipe.evaluation.model_copy(update={"max_sequences": rows(most)})
    )
    changed: dict[str, Section] = {
        "batch": BatchRecipe(sequences=rows(recipe.effective_batch)),
        "training": TrainingRecipe(steps=steps),
        "evaluation": evaluation,
    }
    if recipe.kind.draws_answers:
        rules = rewards_of(recipe).model_dump()
        changed["rewards"] = CountedRewards(
            **rules, answers=recipe.effective_batch, positions=positions_per_example
        )
    return recipe.model_copy(update=changed)


def fill_of_rows(recipe: Recipe, positions_per_example: float) -> float:
    """Return the share of the positions of `as_rows`' rows that the examples of a step take.

    Args:
        recipe: Recipe as for `as_rows`: `batch.sequences` counts examples.
        positions_per_example: Mean number of inputs of a training example.
    """
    rows = recipe.effective_batch * positions_per_example / recipe.sequence_length
    return min(1.0, rows / _full_rows(rows))


def _full_rows(rows: float) -> int:
    return max(1, math.ceil(rows))
