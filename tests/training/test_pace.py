"""What each piece of a session's work is expected to take, as its plan predicts."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fixture_types import MakeRecipe
from torch import Tensor

from brimful.planning.plan import Prediction
from brimful.training import pace
from brimful.training.pace import (
    BASE,
    BATCH,
    CHECKPOINT,
    EVALUATION,
    EXPORT,
    STEP,
    RankPace,
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


def test_communication_is_taken_out_of_computing_and_both_are_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 1.0, 3.0, 10.0, 10.0, 11.0, 12.0, 16.0])
    monkeypatch.setattr(pace.time, "perf_counter", lambda: next(clock))
    rank_pace = RankPace(torch.device("cpu"))

    def together(gradients: Callable[[], Tensor]) -> Tensor:
        with rank_pace.talking.span():
            return gradients()

    act = rank_pace.timed(together)
    for _ in range(2):
        act(lambda: torch.zeros(()))
        with rank_pace.talking.span():  # of an evaluation
            pass

    taken = rank_pace.take()
    assert (taken["computing_s"], taken["communication_s"]) == (6.5, 1.5)
    assert rank_pace.take()["computing_s"] == 0.0
