"""The Plan as a value: it explains itself and survives plan.json."""

import dataclasses
import json
from collections.abc import Callable

import pytest
from fixture_types import Devices, MakeDevice, MakePlan, MakeRates, MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.hardware.guessed import guessed_rates
from brimful.planning.plan import Choice, Plan, Prediction, plan_from_json


@pytest.fixture
def plan(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    planned: MakePlan,
    rates: MakeRates,
) -> Plan:
    recipe = tiny("plan={micro_batch: 3}")
    return planned(recipe, cpu(), vocabulary=300, train_sequences=100, rates=rates())


def test_a_plan_survives_its_file(plan: Plan) -> None:
    assert plan_from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan


def test_every_device_gives_a_plan_that_survives_its_file(
    tiny: MakeRecipe, devices: Devices, planned: MakePlan
) -> None:
    for device in devices.values():
        plan = planned(tiny("plan={}"), device, rates=guessed_rates(device))

        assert "mfu" in plan.predicted
        assert plan_from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False))) == plan


def test_the_file_says_how_the_effective_batch_is_divided(plan: Plan) -> None:
    values = plan.to_json()

    assert (
        values["micro_batch"],
        values["accumulation"],
        values["remainder"],
        values["effective_batch"],
    ) == (3, 2, 2, 8)
    assert values["predicted"]["parameters"] == plan.parameters
    assert (
        values["predicted"].keys() - {"parameters"}
        == values["predicted_interval"].keys()
        == values["basis"].keys()
    )


def test_every_choice_is_explained_with_its_value_and_reason(plan: Plan) -> None:
    lines = plan.explain(width=1000).splitlines()

    for choice in plan.choices:
        (line,) = [line for line in lines if line.startswith(f"  {choice.name} ")]
        assert line.endswith(choice.reason)
        assert choice.reason
    assert len(plan.choices) == len({choice.name for choice in plan.choices})


def test_the_explanation_names_device_batch_and_every_prediction_with_its_interval(
    plan: Plan,
    snapshot: SnapshotAssertion,
) -> None:
    text = plan.explain(width=1000)

    assert text.startswith("a CPU: ")
    assert text == snapshot
    for name, entry in plan.predicted.items():
        assert entry.basis in text, name
        assert entry.low <= entry.value <= entry.high
    for label in ("peak memory", "step time", "tokens per second", "mfu"):
        assert f"  predicted {label}: " in text, label


def test_switches_are_told_as_on_and_off(plan: Plan, snapshot: SnapshotAssertion) -> None:
    told = dataclasses.replace(
        plan,
        choices=(Choice("compile", True, "pays"), Choice("recompute", False, "fits")),
        predicted={},
    ).explain()

    assert told.splitlines()[1:] == snapshot


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_explanation_is_as_wide_as_asked_and_cuts_no_word(plan: Plan, width: int) -> None:
    lines = plan.explain(width).splitlines()

    assert max(map(len, lines)) <= width
    assert " ".join(lines).split() == plan.explain(1000).split()


def test_an_interval_that_reads_as_a_point_is_not_shown(
    plan: Plan, snapshot: SnapshotAssertion
) -> None:
    exact = Prediction(3.0, 2.999, 3.001, "by hand")

    told = dataclasses.replace(plan, predicted={"total_time_s": exact}).explain()

    assert told.splitlines()[-1] == snapshot


@pytest.mark.parametrize(
    ("micro_batches", "passes"),
    [((8,), "1 pass of 8"), ((2,) * 4, "4 passes of 2"), ((3, 3, 2), "2 passes of 3 and one of 2")],
)
def test_a_step_is_told_in_passes(
    plan: Plan, micro_batches: tuple[int, ...], passes: str, snapshot: SnapshotAssertion
) -> None:
    divided = dataclasses.replace(plan, micro_batches=micro_batches)

    assert divided.passes() == passes
    assert divided.division() == snapshot


def test_a_plan_without_predictions_still_explains_itself(plan: Plan) -> None:
    assert "predicted" not in dataclasses.replace(plan, predicted={}).explain()


@pytest.mark.parametrize(
    "damage",
    [
        lambda values: values.pop("micro_batches"),
        lambda values: values.update(micro_batches=None),
        lambda values: values["choices"][0].update(colour="red"),
        lambda values: values["basis"].clear(),
        lambda values: values.pop("precision"),
        lambda values: values["predicted_interval"].update(step_time_s=[1]),
    ],
)
def test_what_is_not_a_plan_is_refused(plan: Plan, damage: Callable[[JsonDict], object]) -> None:
    values = json.loads(json.dumps(plan.to_json()))
    damage(values)

    with pytest.raises(
        PlanError, match=r"not a plan that this version of brimful can read.*Make a new one"
    ):
        plan_from_json(values)


@pytest.mark.parametrize(("fused", "optimizer"), [(True, "fused"), (False, "for_loop")])
def test_a_plan_of_an_earlier_version_is_read(plan: Plan, optimizer: str, *, fused: bool) -> None:
    values = json.loads(json.dumps(plan.to_json()))
    for name in ("optimizer", "loader_workers", "time_terms", "evaluation_share"):
        del values[name]

    earlier = plan_from_json({**values, "fused_optimizer": fused})

    assert (earlier.optimizer, earlier.loader_workers, earlier.time_terms) == (optimizer, 1, {})
    assert earlier.predicted == plan.predicted


def test_a_plan_cannot_be_changed(plan: Plan) -> None:
    for value, field in (
        (plan, "precision"),
        (plan.choices[0], "value"),
        (Prediction(1, 0, 2, "x"), "low"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, field, "x")
