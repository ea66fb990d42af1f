"""What a run takes beside its steps, and energy and money of all of it."""

import dataclasses
import math

import pytest
from fixture_types import MakeDevice, MakePlan, MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.hardware import catalog
from brimful.hardware.catalog import Price
from brimful.planning.cost import (
    CHECKPOINT_BYTES_PER_S,
    HASH_BYTES_PER_S,
    PARTS,
    POWER_SHARE,
    START_S,
    Conditions,
    checkpoint_seconds,
    conditions_of,
    costed,
    total_time,
    whole_run,
)
from brimful.planning.plan import Plan, Prediction
from brimful.recipe import Recipe

STEP = Prediction(0.5, 0.4, 0.8, "by hand")
PRICE = Price(1.8, "1.8", "a list", "2026-11-21")
KNOWN = Conditions(price=PRICE, power_w=100.0, validation_sequences=40)


@pytest.fixture
def recipe(tiny: MakeRecipe) -> Recipe:
    """8 sequences a step, evaluated and saved every 6 of 12 steps."""
    return tiny("plan={compile: false}")


@pytest.fixture
def plan(recipe: Recipe, cpu: MakeDevice, planned: MakePlan) -> Plan:
    """12 steps of half a second; 100 MB of weights and 200 MB of states."""
    made = planned(recipe, cpu())
    return dataclasses.replace(
        made,
        predicted={"step_time_s": STEP, "peak_memory_bytes": Prediction(1, 1, 1, "")},
        total_steps=12,
        compile=False,
        recompute=False,
        memory_terms={"weights": 100_000_000, "optimizer states": 200_000_000, "activations": 7},
    )


def test_the_whole_is_training_evaluation_checkpoints_and_start(recipe: Recipe, plan: Plan) -> None:
    found = whole_run(recipe, plan, KNOWN)

    assert found["training_time_s"].value == pytest.approx(12 * 0.5)
    assert found["evaluation_time_s"].value == pytest.approx(2 * 40 / 8 * 0.5 / 3)
    assert found["checkpoint_time_s"].value == pytest.approx(2 * 300e6 / CHECKPOINT_BYTES_PER_S[1])
    assert found["start_time_s"].value == START_S["cpu"][1]
    assert found["total_time_s"].value == pytest.approx(sum(found[name].value for name in PARTS))
    assert all(entry.low <= entry.value <= entry.high and entry.basis for entry in found.values())


def test_training_and_evaluation_err_together_and_the_rest_independently() -> None:
    parts = {name: Prediction(10, 7, 14, "") for name in PARTS}

    total = total_time(parts)

    assert (total.value, total.low, total.high) == (
        40,
        40 - math.hypot(6, 3, 3),
        pytest.approx(40 + math.hypot(8, 4, 4)),
    )


def test_a_compiled_run_starts_later(recipe: Recipe, plan: Plan) -> None:
    compiled = whole_run(recipe, dataclasses.replace(plan, compile=True), KNOWN)

    assert compiled["start_time_s"].value > START_S["cpu"][1]
    assert "compiling" in compiled["start_time_s"].basis


def test_scoring_a_sequence_is_a_forward_pass_unless_its_time_is_known(
    recipe: Recipe, plan: Plan
) -> None:
    eager = whole_run(recipe, plan, KNOWN)["evaluation_time_s"].value
    recomputing = whole_run(recipe, dataclasses.replace(plan, recompute=True), KNOWN)[
        "evaluation_time_s"
    ].value
    known = whole_run(recipe, dataclasses.replace(plan, evaluation_share=0.5), KNOWN)[
        "evaluation_time_s"
    ].value

    assert recomputing == pytest.approx(eager * 3 / 4)
    assert known == pytest.approx(eager * 3 / 2)


def test_a_validation_split_that_nobody_read_is_guessed_with_a_wide_interval(
    recipe: Recipe, plan: Plan, snapshot: SnapshotAssertion
) -> None:
    read, unread = (
        whole_run(recipe, plan, conditions)["evaluation_time_s"]
        for conditions in (KNOWN, Conditions())
    )

    assert unread.basis == snapshot
    assert unread.high / unread.low > 10 * read.high / read.low
    by_share = whole_run(recipe, plan, Conditions(train_sequences=160))[
        "evaluation_time_s"
    ]  # a fifth is held out
    assert by_share.value == pytest.approx(read.value)


def test_a_recipe_can_bound_the_validation_sequences(tiny: MakeRecipe, plan: Plan) -> None:
    bounded = whole_run(tiny("evaluation={every: 6, max_sequences: 4}"), plan, KNOWN)

    assert bounded["evaluation_time_s"].value == pytest.approx(
        whole_run(tiny("plan={}"), plan, KNOWN)["evaluation_time_s"].value / 10
    )


def test_automatic_evaluations_and_checkpoints_are_those_of_the_loop(
    tiny: MakeRecipe, plan: Plan, snapshot: SnapshotAssertion
) -> None:
    automatic = whole_run(tiny("evaluation={every: auto}"), plan, KNOWN, steps=1000)

    assert automatic["evaluation_time_s"].basis == snapshot
    assert automatic["checkpoint_time_s"].basis == snapshot


def test_a_share_that_is_known_errs_less_than_a_guessed_one(recipe: Recipe, plan: Plan) -> None:
    guessed, known = (
        whole_run(recipe, made, KNOWN)["evaluation_time_s"]
        for made in (plan, dataclasses.replace(plan, evaluation_share=1 / 3))
    )

    assert known.value == guessed.value
    assert guessed.low < known.low < known.high < guessed.high


def test_energy_and_cost_follow_from_the_whole_time(
    recipe: Recipe, plan: Plan, snapshot: SnapshotAssertion
) -> None:
    found = whole_run(recipe, plan, KNOWN)
    total = found["total_time_s"]

    assert found["energy_wh"].value == pytest.approx(total.value * POWER_SHARE[1] * 100 / 3600)
    assert (found["energy_wh"].low, found["energy_wh"].high) == (
        pytest.approx(total.low * POWER_SHARE[0] * 100 / 3600),
        pytest.approx(total.high * 100 / 3600),
    )
    assert found["cost_usd"].value == pytest.approx(total.value * 1.8 / 3600)
    assert found["cost_usd"].basis == snapshot


def test_nothing_is_said_of_energy_and_cost_that_are_not_known(recipe: Recipe, plan: Plan) -> None:
    assert not {"energy_wh", "cost_usd"} & whole_run(recipe, plan, Conditions()).keys()
    assert whole_run(recipe, dataclasses.replace(plan, predicted={}), KNOWN) == {}


def test_a_run_of_unknown_length_is_told_by_the_billion_tokens(recipe: Recipe, plan: Plan) -> None:
    found = whole_run(recipe, dataclasses.replace(plan, total_steps=None), KNOWN)

    assert found.keys() == {"billion_tokens_s", "billion_tokens_usd"}
    assert found["billion_tokens_s"].value == pytest.approx(0.5 * 1e9 / (8 * 32))


def test_more_steps_take_longer(recipe: Recipe, plan: Plan) -> None:
    totals = [
        whole_run(recipe, plan, KNOWN, steps)["total_time_s"].high for steps in (1, 12, 120, 1200)
    ]

    assert totals == sorted(totals)


def test_a_measured_disk_replaces_the_guess(recipe: Recipe, plan: Plan) -> None:
    measured = checkpoint_seconds(recipe, plan, Conditions(disk_bytes_per_s=100e6))

    assert measured.value == pytest.approx(300e6 / 100e6 + 300e6 / HASH_BYTES_PER_S)


def test_checkpoints_of_adapters_hold_adapters_alone(recipe: Recipe, plan: Plan) -> None:
    adapted = recipe.model_copy(update={"adapter": object()})
    tuned = dataclasses.replace(
        plan,
        memory_terms={
            "weights": 9_000_000_000,
            "adapters": 100_000_000,
            "optimizer states": 200_000_000,
        },
    )

    assert checkpoint_seconds(adapted, tuned, KNOWN) == checkpoint_seconds(recipe, plan, KNOWN)


def test_a_given_price_goes_before_the_catalogs_and_a_named_one_before_all() -> None:
    t4 = catalog.price_of("Tesla T4")

    assert conditions_of("Tesla T4").price == t4
    assert conditions_of("Tesla T4").power_w == 70
    assert conditions_of("Tesla T4", {"": 2.5}).price == Price(2.5, "2.5", "--price", "")
    named = conditions_of("Tesla T4", {"": 2.5, "Tesla T4": 0.1}).price
    assert named is not None
    assert named.usd_per_hour == 0.1
    assert conditions_of("a CPU") == Conditions()


def test_a_plan_is_costed_again_without_traces_of_the_last_time(recipe: Recipe, plan: Plan) -> None:
    once = costed(recipe, plan, KNOWN)

    assert {"step_time_s", "peak_memory_bytes", "total_time_s", "cost_usd"} <= once.predicted.keys()
    assert costed(recipe, once, KNOWN) == once
    assert "cost_usd" not in costed(recipe, once, dataclasses.replace(KNOWN, price=None)).predicted


def test_evaluations_that_would_cost_too_much_are_fewer_in_the_plan_and_in_its_prediction(
    tiny: MakeRecipe, plan: Plan, snapshot: SnapshotAssertion
) -> None:
    """Of 40 validation sequences, an evaluation takes as long as 1.7 of the 12 steps."""
    recipe = tiny("evaluation.every=auto")
    made = costed(recipe, plan, KNOWN)

    assert made.evaluate_every == 12
    assert made.predicted["evaluation_time_s"].basis.startswith("1 x ")
    assert made.predicted["checkpoint_time_s"].basis.startswith("1 of ")
    assert [choice.name for choice in made.choices].count("evaluation") == 1
    assert made.choices[-1].reason == snapshot
    assert costed(recipe, made, KNOWN) == made


def test_an_interval_is_not_settled_before_the_data_are_read(
    tiny: MakeRecipe, plan: Plan, snapshot: SnapshotAssertion
) -> None:
    unread = costed(tiny("evaluation.every=auto"), plan, Conditions())

    assert unread.evaluate_every is None
    assert unread.choices[-1].reason == snapshot


def test_a_run_that_goes_on_keeps_its_interval(tiny: MakeRecipe, plan: Plan) -> None:
    recipe = tiny("evaluation.every=auto")

    continued = dataclasses.replace(KNOWN, evaluate_every=2)
    assert costed(recipe, plan, continued).evaluate_every == 2
    assert costed(tiny("evaluation.every=3"), plan, continued).evaluate_every == 3


def test_without_a_step_time_evaluations_have_the_usual_interval(
    tiny: MakeRecipe, plan: Plan
) -> None:
    unknown = dataclasses.replace(plan, predicted={})

    assert costed(tiny("evaluation.every=auto"), unknown, KNOWN).evaluate_every == 1
