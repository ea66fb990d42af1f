"""A plan of several devices: one rank's share, and nothing that is not predicted."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fixture_types import Make, MakeRecipe, Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import PlanError, RequestError
from brimful.base.units import GIB
from brimful.hardware.groups import parse
from brimful.planning.derive import Facts
from brimful.planning.plan import Plan, Prediction, plan_from_json
from brimful.planning.spread import (
    RANK_STEP,
    derive_spread,
    enough,
    refuse_too_many,
    share_of,
    spread_of,
    spread_plan,
)
from brimful.planning.step import StepSpec

PLAN = Plan(
    recipe="tiny",
    device={"name": "a device", "kind": "cuda"},
    choices=(),
    micro_batches=(2, 2),
    precision="fp32",
    attention="sdpa",
    recompute=False,
    compile=False,
    loss_chunk=16,
    threads=None,
    parameters=10,
    sequence_length=32,
    total_steps=12,
    predicted={
        name: Prediction(1.0, 0.5, 2.0, "rates")
        for name in ("peak_memory_bytes", "step_time_s", "tokens_per_s", "total_time_s", "cost_usd")
    },
    memory_terms={},
    time_terms={"products": 1.0},
)


def test_the_largest_share_is_planned_and_the_steps_stay(tiny: MakeRecipe) -> None:
    recipe = tiny("batch.sequences=7", "training={epochs: 2}")

    share = share_of(recipe, 2, 70)

    assert (share.effective_batch, share.training.steps) == (4, 20)


def test_more_devices_than_sequences_are_refused(tiny: MakeRecipe, refuses: Refuses) -> None:
    refuse_too_many(tiny("batch.sequences=3"), 3)
    with refuses(RequestError, names=["3 sequences", "4 devices"]):  # type: ignore[attr-defined]
        refuse_too_many(tiny("batch.sequences=3"), 4)


def test_only_what_holds_for_one_rank_is_predicted(
    tiny: MakeRecipe, snapshot: SnapshotAssertion
) -> None:
    spread = spread_plan(PLAN, tiny("batch.sequences=7"), 2, ("replicated", "it fits"))

    assert set(spread.predicted) == {"peak_memory_bytes", RANK_STEP}
    assert spread.predicted[RANK_STEP].basis == snapshot
    assert (spread.effective_batch, spread.time_terms) == (7, {})
    assert spread.passes() == snapshot
    assert spread.to_json()["remainder"] == 0
    assert plan_from_json(spread.to_json()) == spread


Spreading = Callable[..., Any]


@pytest.fixture
def spreading(tiny: MakeRecipe, by_hand: Make, rates: Make) -> Spreading:
    """`spreading(14, "4 x T4")` plans a model whose weights, gradients and states take 14 GiB, a
    quarter of that on each of 4 devices that hold it in parts.
    """

    def plan(gib: float, on: str, *changes: str, does: Any = derive_spread, **sizes: int) -> Any:
        def trace(spec: StepSpec) -> Any:
            part = round(gib * GIB / 4 / spec.ranks)
            standing = {"weights_bytes": part, "gradients_bytes": part, "states_bytes": 2 * part}
            return by_hand(**standing, **sizes)

        recipe = tiny("plan={}", "batch.sequences=64", "plan.recompute=false", *changes)
        return does(recipe, parse(on), trace, Facts(rates=rates()))

    return plan


def test_a_model_lies_in_parts_where_the_whole_does_not_surely_fit(
    spreading: Spreading, snapshot: SnapshotAssertion
) -> None:
    small, large = spreading(1, "4 x T4"), spreading(20, "4 x T4")

    assert small.plan.spread == "replicated"
    assert large.plan.spread == "sharded"
    assert large.footprint.verdict == "fits"
    reason = large.plan.choices[-1].reason
    assert reason == snapshot


def test_a_model_in_parts_does_not_choose_what_blocks_keep(
    spreading: Spreading, snapshot: SnapshotAssertion
) -> None:
    selective = "plan.recompute=selective"

    assert spreading(1, "4 x T4", selective).plan.recompute == "selective"
    with pytest.raises(PlanError) as error_info:
        spreading(1, "4 x T4", selective, "plan.spread=sharded")
    assert str(error_info.value) == snapshot


def test_the_quicker_of_two_that_fit_is_taken(
    spreading: Spreading, snapshot: SnapshotAssertion
) -> None:
    """Whole, the model leaves room for one sequence at a time, in parts for many."""
    sizes = {"sequence_bytes": GIB, "update_bytes": 1}
    whole, parts = (
        spreading(10, "4 x T4", f"plan.spread={spread}", **sizes)
        for spread in ("replicated", "sharded")
    )

    chosen = spreading(10, "4 x T4", **sizes)

    steps = {each.plan.spread: each.plan.predicted["step_time_s"].value for each in (whole, parts)}
    assert len(whole.plan.micro_batches) > len(parts.plan.micro_batches)
    assert chosen.plan.spread == min(steps, key=lambda spread: steps[spread])
    assert chosen.plan.choices[-1].reason == snapshot


def test_machines_that_hold_all_parts_are_taken_where_the_network_between_them_is_slow(
    spreading: Spreading,
    refuses: Refuses,
    snapshot: SnapshotAssertion,
) -> None:
    on = "2 x 8 x V100-SXM2-16GB"
    chosen = spreading(20, on)

    parts, whole = (
        spreading(20, on, f"plan.spread={spread}") for spread in ("sharded", "replicated")
    )
    assert chosen.plan.spread == "hybrid"
    assert whole.footprint.verdict == "does not fit"
    steps = [each.plan.predicted["step_time_s"].value for each in (chosen, parts)]
    assert steps[0] < steps[1]
    choice = chosen.plan.choices[-1]
    assert choice.reason == snapshot
    assert choice.alternative == "sharded"
    # Where a machine does not hold all parts, or its own links are the slow ones, they lie in all.
    assert spreading(150, on).plan.spread == "sharded"
    assert spreading(20, "2 x 4 x T4").plan.choices[-1].alternative == "hybrid"
    with refuses(PlanError, names=["plan.spread=sharded"]):
        spreading(20, "4 x T4", "plan.spread=hybrid")


def test_what_is_gathered_counts_by_its_bytes(spreading: Spreading) -> None:
    """A base in 4 bits has as many weights as one in 16, and is gathered in less time."""
    few, many = (
        spreading(gib, "4 x T4", "plan.spread=sharded").plan.time_terms["communication"]
        for gib in (10, 20)
    )

    assert few < 0.6 * many


def test_ranks_that_run_choose_the_same_from_what_the_whole_model_needs(
    tiny: MakeRecipe, spreading: Spreading
) -> None:
    footprint = spreading(20, "8 x T4", "plan.spread=replicated").footprint

    spread, reason = spread_of("auto", footprint, 8, 2)
    assert (spread, "4 parts within each machine" in reason) == ("hybrid", True)
    assert spread_of("auto", footprint, 8, 1)[0] == "sharded"
    assert spread_of("auto", footprint, 2, 2)[0] == "sharded"  # one device holds no copy
    assert spread_of("sharded", footprint, 8, 2)[0] == "sharded"


def test_the_smallest_number_of_devices_that_holds_a_model_is_named(spreading: Spreading) -> None:
    assert spreading(40, "2 x T4", does=enough) == "4 x Tesla T4"
    assert spreading(80, "2 x T4", does=enough) == "8 x Tesla T4"
    assert spreading(10_000, "2 x T4", does=enough) is None


def test_where_none_fits_the_one_that_needs_less_is_shown(spreading: Spreading) -> None:
    assert spreading(200, "2 x T4").plan.spread == "sharded"


@pytest.mark.parametrize("field", ["devices", "whole_batch"])
def test_a_plan_of_an_earlier_version_is_one_of_one_device(field: str) -> None:
    values = PLAN.to_json()
    del values[field]

    assert plan_from_json(values) == replace(PLAN)
