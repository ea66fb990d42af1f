"""A plan of several devices: one rank's share, and nothing that is not predicted."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from brimful.base.errors import RequestError
from brimful.planning.plan import Plan, Prediction, plan_from_json
from brimful.planning.spread import RANK_STEP, refuse_too_many, share_of, spread_plan
from brimful.recipe import Recipe

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


def test_the_largest_share_is_planned_and_the_steps_stay(tiny: Callable[..., Recipe]) -> None:
    recipe = tiny("batch.sequences=7", "training={epochs: 2}")

    share = share_of(recipe, 2, 70)

    assert (share.effective_batch, share.training.steps) == (4, 20)


def test_more_devices_than_sequences_are_refused(
    tiny: Callable[..., Recipe], refuses: Callable[..., object]
) -> None:
    refuse_too_many(tiny("batch.sequences=3"), 3)
    with refuses(RequestError, names=["3 sequences", "4 devices"]):  # type: ignore[attr-defined]
        refuse_too_many(tiny("batch.sequences=3"), 4)


def test_only_what_holds_for_one_rank_is_predicted(tiny: Callable[..., Recipe]) -> None:
    spread = spread_plan(PLAN, tiny("batch.sequences=7"), 2, ("replicated", "it fits"))

    assert set(spread.predicted) == {"peak_memory_bytes", RANK_STEP}
    assert "waiting for the others is not predicted" in spread.predicted[RANK_STEP].basis
    assert (spread.effective_batch, spread.time_terms) == (7, {})
    assert spread.passes() == "2 passes of 2 on each of 2 devices"
    assert spread.to_json()["remainder"] == 0
    assert plan_from_json(spread.to_json()) == spread


@pytest.mark.parametrize("field", ["devices", "whole_batch"])
def test_a_plan_of_an_earlier_version_is_one_of_one_device(field: str) -> None:
    values = PLAN.to_json()
    del values[field]

    assert plan_from_json(values) == replace(PLAN)
