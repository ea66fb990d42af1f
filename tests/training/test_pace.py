"""What each piece of a session's work is expected to take, as its plan predicts."""

from types import SimpleNamespace
from typing import Any

from fixture_types import MakeRecipe

from brimful.planning.plan import Prediction
from brimful.training.pace import (
    BASE,
    BATCH,
    CHECKPOINT,
    EVALUATION,
    EXPORT,
    STEP,
    expected_seconds,
    with_start,
)


def _plan(**seconds: float) -> Any:
    predicted = {name: Prediction(value, value, value, "") for name, value in seconds.items()}
    return SimpleNamespace(
        predicted=predicted,
        memory_terms={"weights": 10**9, "optimizer states": 2 * 10**9},
        evaluate_every=None,
    )


def test_steps_evaluations_and_saves_take_what_the_plan_predicts(
    tiny: MakeRecipe,
) -> None:
    """Twelve steps with an evaluation after every sixth."""
    plan = _plan(step_time_s=2.0, evaluation_time_s=30.0, start_time_s=50.0)
    expected = expected_seconds(tiny(), plan, total_steps=12)
    assert (expected[STEP], expected[BATCH]) == (2.0, 2.0)
    assert (expected[EVALUATION], expected[BASE]) == (15.0, 15.0)
    assert 3 < expected[CHECKPOINT] < expected[EXPORT] < 300
    assert with_start(expected, plan) == {**expected, STEP: 52.0}


def test_a_plan_without_times_says_nothing_of_steps(tiny: MakeRecipe) -> None:
    expected = expected_seconds(tiny(), _plan(), total_steps=12)
    assert expected.keys() == {CHECKPOINT, EXPORT}
    assert with_start(expected, _plan()) == expected
