"""How often a run evaluates: what it costs, and what the recipe asks for."""

import dataclasses
import json

import pytest
from fixture_types import MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.planning.spacing import (
    MOST_SHARE,
    Durations,
    evaluations,
    most_sampled,
    most_scored,
    saves_between,
    short_run_notes,
    spaced,
    usual_interval,
)
from brimful.recipe import Recipe

CHEAP = Durations(training_s=1000, start_s=1, evaluation_s=2, checkpoint_s=0.5)
DEAR = dataclasses.replace(CHEAP, evaluation_s=50.0)


def cost_s(recipe: Recipe, every: int, steps: int, times: Durations) -> float:
    """Seconds of evaluations and checkpoints."""
    count = evaluations(every, steps)
    saves = count + saves_between(recipe, steps, times.training_s, times.checkpoint_s)
    return count * times.evaluation_s + saves * times.checkpoint_s


@pytest.mark.parametrize(
    ("steps", "interval", "count"), [(1000, 100, 10), (19, 1, 19), (25, 2, 13), (1, 1, 1)]
)
def test_cheap_evaluations_are_about_ten(
    tiny: MakeRecipe, steps: int, interval: int, count: int
) -> None:
    found = spaced(tiny("evaluation.every=auto"), steps, CHEAP)

    assert (found.every, found.reason) == (interval, "")
    assert (usual_interval(steps), evaluations(interval, steps)) == (interval, count)


def test_fifteen_steps_that_would_spend_three_quarters_on_evaluations_have_one_at_the_end(
    tiny: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    """The run of an outsider: 15 evaluations, each as long as 2.6 steps."""
    times = Durations(training_s=15, start_s=1.5, evaluation_s=2.57, checkpoint_s=0.01)
    found = spaced(tiny("evaluation.every=auto"), 15, times)

    assert found.every == 15
    assert found.reason == snapshot


@pytest.mark.parametrize("evaluation_s", [0.0, 1.0, 5.0, 12.0, 40.0, 500.0])
@pytest.mark.parametrize("checkpoint_s", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("steps", [1, 7, 30, 500])
def test_evaluations_and_checkpoints_take_at_most_a_tenth_or_come_once(
    tiny: MakeRecipe, evaluation_s: float, checkpoint_s: float, steps: int
) -> None:
    recipe = tiny("evaluation.every=auto", "checkpoint.every=auto")
    times = Durations(1000, 2, evaluation_s, checkpoint_s)
    found = spaced(recipe, steps, times)
    cost = cost_s(recipe, found.every, steps, times)

    assert usual_interval(steps) <= found.every <= steps
    assert cost <= MOST_SHARE * (1002 + cost) + 1e-9 or evaluations(found.every, steps) == 1
    assert bool(found.reason) == (found.every > usual_interval(steps))


def test_evaluations_are_no_fewer_than_needed(tiny: MakeRecipe) -> None:
    recipe = tiny("evaluation.every=auto", "checkpoint.every=auto")
    times = dataclasses.replace(CHEAP, evaluation_s=25.0)
    found = spaced(recipe, 1000, times)
    count = evaluations(found.every, 1000)

    assert 1 < count < 10
    more = cost_s(recipe, 1000 // (count + 1), 1000, times)
    assert more > MOST_SHARE * (1001 + more)


def test_a_number_in_the_recipe_stands_and_its_cost_is_said(
    tiny: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    asked = spaced(tiny("evaluation.every=10"), 100, DEAR)

    assert asked.every == 10
    assert asked.reason == snapshot
    assert spaced(tiny("evaluation.every=10"), 100, CHEAP).reason == ""
    assert spaced(tiny("evaluation.every=100"), 100, DEAR).reason == ""


def test_early_stopping_keeps_the_evaluations_it_counts(
    tiny: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    found = spaced(tiny("evaluation={every: auto, patience: 3}"), 100, DEAR)

    assert found.every == 10
    assert found.reason == snapshot


def test_checkpoints_that_the_recipe_asks_for_do_not_push_evaluations_away(
    tiny: MakeRecipe,
) -> None:
    times = dataclasses.replace(CHEAP, checkpoint_s=4.0)
    asked = spaced(tiny("evaluation.every=auto", "checkpoint.every=1"), 100, times)

    assert asked.every == usual_interval(100)


@pytest.mark.parametrize(
    ("steps", "held_out", "most", "scored"),
    [
        (1, 100, None, 8),
        (1, 100, 64, 8),
        (1, 100, 4, 4),
        (1, 8, None, None),
        (12, 96, None, None),
        (12, 97, None, 96),
        (12, 500, 96, 96),
        (900, 500, 64, 64),
        (None, 500, 64, 64),
    ],
)
def test_an_evaluation_scores_no_more_than_a_run_from_fresh_weights_trains_on(
    tiny: MakeRecipe, steps: int | None, held_out: int, most: int | None, scored: int | None
) -> None:
    recipe = tiny(f"evaluation.max_sequences={json.dumps(most)}")

    assert most_scored(recipe, steps, held_out) == scored


@pytest.mark.parametrize(
    ("steps", "tokens"), [(1, 32), (6, 192), (7, 200), (900, 200), (None, 200)]
)
def test_the_sample_of_a_short_run_is_short(
    tiny: MakeRecipe, steps: int | None, tokens: int
) -> None:
    assert most_sampled(tiny("sample.tokens=200"), steps) == tokens


def test_a_short_run_says_what_it_leaves_out(tiny: MakeRecipe, snapshot: SnapshotAssertion) -> None:
    recipe = tiny("sample.tokens=200")

    assert short_run_notes(recipe, 1, 100) == snapshot(name="scored and sampled")
    assert short_run_notes(recipe, 1, 8) == snapshot(name="sampled")
    assert short_run_notes(recipe, 12, 100) == snapshot(name="scored")
    assert short_run_notes(recipe, 12, 96) == []
    assert short_run_notes(recipe, None, 96) == []


def test_a_tuned_model_is_scored_and_sampled_as_the_recipe_says(
    tuning: MakeRecipe,
) -> None:
    recipe = tuning("sample.tokens=200")

    assert most_scored(recipe, 1, 1000) == recipe.evaluation.max_sequences
    assert most_sampled(recipe, 1) == 200
    assert short_run_notes(recipe, 1, 1000) == []
