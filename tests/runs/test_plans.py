"""The plan of a run is read as it was written, and as far as it can be where it is damaged."""

import math

from brimful.planning.plan import Choice, Plan, Prediction, plan_from_json
from brimful.runs.plans import interval_of, read_plan

PLAN = Plan(
    recipe="quickstart",
    device={"name": "a CPU", "kind": "cpu", "threads": 2},
    choices=(
        Choice("micro_batch", 8, "it fits", 4),
        Choice("compile", False, "no compiler"),
        Choice("margin", 0.2, "as asked for", "tight"),
    ),
    micro_batches=(8, 8, 3),
    precision="bf16",
    attention="sdpa",
    recompute=False,
    compile=False,
    loss_chunk=128,
    threads=2,
    parameters=1000,
    sequence_length=16,
    total_steps=None,
    predicted={"step_time_s": Prediction(0.5, 0.4, 0.6, "measured")},
    memory_terms={"weights": 4000},
    time_terms={"matrix": 0.5},
    evaluation_share=0.3,
    correction=1.1,
    rates_basis="measured",
)


def test_a_whole_plan_is_the_one_that_was_written() -> None:
    assert read_plan(PLAN.to_json()) == plan_from_json(PLAN.to_json()) == PLAN


def test_a_plan_of_an_earlier_version_is_read() -> None:
    values = PLAN.to_json() | {"fused_optimizer": False}
    for name in ("optimizer", "packing", "loader_workers", "time_terms"):
        del values[name]
    assert read_plan(values) == plan_from_json(values)


def test_a_part_of_a_plan_is_read() -> None:
    values = {
        "predicted": {"parameters": 1000, "step_time_s": 0.5, "mfu": "high"},
        "micro_batch": 4,
        "accumulation": 2,
        "remainder": 1,
    }
    plan = read_plan(values)
    assert plan is not None
    assert (plan.parameters, plan.micro_batches, plan.threads) == (1000, (4, 4, 1), None)
    assert list(plan.predicted) == ["step_time_s"]
    assert math.isnan(plan.predicted["step_time_s"].low)
    assert interval_of(plan.predicted["step_time_s"]) is None


def test_no_plan_is_none() -> None:
    assert read_plan({}) is None
