"""What is found out about the model before tuning, and what it is expected to cost."""

import dataclasses

import pytest
from fixture_types import MakeDevice, MakePlan, MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.planning.base_scoring import BASE, FEWEST_SEQUENCES, BaseTimes, decide, loss_seconds
from brimful.planning.cost import Conditions, costed
from brimful.planning.plan import BaseScoring, Plan, Prediction, plan_from_json
from brimful.planning.spacing import MOST_SHARE

LONG = BaseTimes(run_s=3600, evaluation_s=60, sequences=100, samples_s=10, tasks_s=200)
KNOWN = Conditions(validation_sequences=12, train_sequences=48)


def cost_s(found: BaseScoring, times: BaseTimes) -> float:
    answers_s = times.samples_s * found.samples + (times.tasks_s or 0) * found.tasks
    return answers_s + loss_seconds(found.loss_share, times.evaluation_s)


@pytest.mark.parametrize(
    ("run_s", "expected"),
    [
        (3600, BaseScoring(1.0, samples=True, tasks=True)),
        (1000, BaseScoring(1.0, samples=True, tasks=False)),
        (300, BaseScoring(0.16, samples=True, tasks=False)),
        (150, BaseScoring(0.12, samples=False, tasks=False)),
        (30, BaseScoring(0.0, samples=False, tasks=False)),
    ],
)
def test_auto_takes_what_fits_into_a_tenth_of_the_run(run_s: float, expected: BaseScoring) -> None:
    times = dataclasses.replace(LONG, run_s=run_s)
    found = decide("auto", times)

    assert found == expected
    assert cost_s(found, times) <= MOST_SHARE * run_s
    assert found.loss_share == 0 or found.loss_share * times.sequences >= FEWEST_SEQUENCES


def test_always_and_never_do_not_ask_what_it_costs() -> None:
    short = dataclasses.replace(LONG, run_s=1)

    assert decide("always", short) == BaseScoring(1.0, samples=True, tasks=True)
    assert decide("always", dataclasses.replace(short, tasks_s=None)).tasks is False
    assert decide("never", LONG) == BaseScoring()


@pytest.fixture
def plan(tuning: MakeRecipe, cpu: MakeDevice, planned: MakePlan) -> Plan:
    """Of eight steps of two minutes."""
    predicted = {"step_time_s": Prediction(120, 100, 150, "by hand")}
    return dataclasses.replace(
        planned(tuning(), cpu()), predicted=predicted, total_steps=8, compile=False
    )


def test_a_tuning_plan_tells_it_as_a_part_of_its_own(
    tuning: MakeRecipe, plan: Plan, snapshot: SnapshotAssertion
) -> None:
    recipe = tuning("evaluation.max_sequences=2")
    made = costed(recipe, plan, KNOWN)
    predicted = made.predicted

    assert made.base == BaseScoring(1.0, samples=True, tasks=False)
    assert predicted["total_time_s"].value == pytest.approx(
        sum(
            predicted[f"{part}_time_s"].value
            for part in ("training", "evaluation", "checkpoint", "start", "base")
        )
    )
    assert predicted["base_time_s"].value == pytest.approx(predicted["evaluation_time_s"].value / 2)
    told = [choice.reason for choice in made.choices if choice.name == BASE]
    assert [
        *told,
        predicted["base_time_s"].basis,
        predicted["base_answers_time_s"].basis,
    ] == snapshot
    assert plan_from_json(made.to_json()) == made
    assert costed(recipe, made, KNOWN) == made


def test_what_would_take_too_long_is_left_out_and_named(
    tuning: MakeRecipe, plan: Plan, snapshot: SnapshotAssertion
) -> None:
    short = dataclasses.replace(
        plan, predicted={"step_time_s": Prediction(0.1, 0.1, 0.1, "by hand")}
    )
    recipe = tuning("evaluation.tasks=[code-syntax]", "sample.tokens=64")
    made = costed(recipe, short, dataclasses.replace(KNOWN, validation_sequences=12_000))

    assert made.base == BaseScoring()
    assert not {"base_time_s", "base_answers_time_s"} & made.predicted.keys()
    assert [choice.reason for choice in made.choices if choice.name == BASE] == snapshot


def test_never_is_not_mentioned(tuning: MakeRecipe, plan: Plan) -> None:
    made = costed(tuning("evaluation.base=never"), plan, KNOWN)

    assert made.base == BaseScoring()
    assert BASE not in [choice.name for choice in made.choices]


def test_a_run_that_goes_on_keeps_what_was_decided(tuning: MakeRecipe, plan: Plan) -> None:
    kept = BaseScoring(0.5, samples=True)

    assert costed(tuning(), plan, dataclasses.replace(KNOWN, base=kept)).base == kept


def test_a_plan_of_an_earlier_version_has_none(plan: Plan) -> None:
    values = plan.to_json()
    del values["base"]

    assert plan_from_json(values).base is None


def test_a_fresh_model_has_no_base(tiny: MakeRecipe, cpu: MakeDevice, planned: MakePlan) -> None:
    assert costed(tiny(), planned(tiny(), cpu()), KNOWN).base is None
