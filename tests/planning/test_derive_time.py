"""How long a plan expects its step and its run to take: worked out by hand from operators, rates
and earlier runs.
"""

from typing import Any

import pytest
from fixture_types import Devices, Make, MakeDevice, MakePlan, MakeRates, MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict, Numbers
from brimful.hardware import catalog
from brimful.hardware.calibration import Correction
from brimful.hardware.device import Abilities
from brimful.hardware.guessed import guessed_rates
from brimful.hardware.rates import CLASSES, Rates
from brimful.planning.choices import NEW_PRODUCT_S
from brimful.planning.derive import BEST_MFU, REACHED, Facts, derive_with_memory, total_steps_of
from brimful.planning.plan import Plan
from brimful.planning.timing import BY_EXAMPLES, NEW_LENGTHS, PRODUCTS_WITHIN


@pytest.mark.parametrize(
    ("overrides", "train_sequences", "steps"),
    [
        (["training.steps=7"], None, 7),
        (["training.tokens=25600"], None, 100),  # 8 sequences of 32 tokens a step
        (["training.tokens=1"], None, 1),
        (["training.epochs=2"], 100, 25),
        (["training.epochs=0.5"], 100, 6),
        (["training.epochs=0.001"], 100, 1),
        (["training.epochs=2"], None, None),
    ],
)
def test_the_length_of_training_is_counted_in_optimizer_steps(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    overrides: list[str],
    train_sequences: int | None,
    steps: int | None,
    planned: MakePlan,
    rates: MakeRates,
) -> None:
    recipe = tiny("plan={}", *overrides)

    assert total_steps_of(recipe, train_sequences) == steps
    plan = planned(recipe, cpu(), train_sequences=train_sequences, rates=rates())
    assert plan.total_steps == steps


@pytest.fixture
def timed(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    by_hand: Make,
    planned: MakePlan,
) -> MakePlan:
    """`timed(rates, "key=value", correction=..., ...)` plans one pass over 8 sequences of 32 tokens
    in fp32 for the CPU by hand; `traces` are fields of those by hand.
    """

    def plan(
        rates: Rates | None, *overrides: str, traces: JsonDict | None = None, **facts: Any
    ) -> Plan:
        recipe = tiny(
            "plan={precision: fp32, compile: false, recompute: false, micro_batch: 8}", *overrides
        )
        return planned(
            recipe,
            cpu(),
            lambda spec: by_hand(recomputed=spec.recompute, **traces or {}),
            rates=rates,
            **facts,
        )

    return plan


def test_a_step_by_hand_takes_its_arithmetic_its_bytes_and_its_operators(
    timed: MakePlan, rates: MakeRates, snapshot: SnapshotAssertion
) -> None:
    """8 x 300 MFLOP at 100 GFLOP/s, 8 x 10 and 100 MB at 100 GB/s, 51 operators of 0.1 ms; believed
    to 0.8 to 1.25 of it.
    """
    plan = timed(rates())

    assert plan.time_terms == pytest.approx(
        {
            "matrix products": 0.024,
            "element-wise and norms": 0.0008,
            "optimizer update": 0.001,
            "issuing operators": 0.0051,
        }
    )
    step = plan.predicted["step_time_s"]
    assert (step.value, step.high) == pytest.approx((0.0309, 1.25 * 0.0309))
    assert step.low == pytest.approx(0.8 * 0.0309)
    assert step.basis == snapshot


def test_a_program_that_may_be_slower_widens_the_time_that_it_decides(
    timed: MakePlan, rates: MakeRates, snapshot: SnapshotAssertion
) -> None:
    """51 operators of 10 ms, or 40, beside 26 ms of the device."""
    slow = {"overlaps": True, "host_s": 0.01, "host_slowest": 4.0}

    step = timed(rates(**slow)).predicted["step_time_s"]

    assert step.high == pytest.approx(4 * step.value, rel=0.01)
    assert step.low == pytest.approx(0.8 * step.value)
    assert step.basis == snapshot
    quick = timed(rates(**slow | {"host_s": 1e-6})).predicted["step_time_s"]
    assert quick.high == pytest.approx(1.25 * quick.value)


def test_tokens_per_second_and_mfu_follow_from_the_step_time(
    timed: MakePlan, rates: MakeRates
) -> None:
    """256 tokens and 2.4 GFLOP a step, of 100 GFLOP/s."""
    predicted = timed(rates()).predicted

    for bound, other in (("value", "value"), ("low", "high"), ("high", "low")):
        step_s = getattr(predicted["step_time_s"], other)
        assert getattr(predicted["tokens_per_s"], bound) == pytest.approx(256 / step_s)
        assert getattr(predicted["mfu"], bound) == pytest.approx(0.024 / step_s)


def test_rows_that_are_not_full_take_less_time_and_count_their_tokens(
    timed: MakePlan, rates: MakeRates
) -> None:
    full, half = timed(rates()), timed(rates(), fill=0.5, tokens_per_step=120)

    for term in ("matrix products", "element-wise and norms"):
        assert half.time_terms[term] == pytest.approx(full.time_terms[term] / 2)
    for term in ("optimizer update", "issuing operators"):
        assert half.time_terms[term] == pytest.approx(full.time_terms[term])
    step_s = half.predicted["step_time_s"].value
    assert half.predicted["tokens_per_s"].value == pytest.approx(120 / step_s)
    assert half.predicted["mfu"].value == pytest.approx(0.012 / step_s)


@pytest.mark.parametrize(
    ("precision", "overrides", "each_s"),
    [("fp32", (), 0.09e-3), ("bf16", (), 0.3e-3), ("fp32", ("plan.packing=padded",), 0.0)],
)
def test_each_further_example_of_a_packed_row_takes_a_cpu_time(
    tuning: MakeRecipe,
    cpu: MakeDevice,
    by_hand: Make,
    planned: MakePlan,
    rates: MakeRates,
    precision: str,
    overrides: tuple[str, ...],
    each_s: float,
) -> None:
    """Of two blocks."""
    fixed = f"plan={{precision: {precision}, compile: false, recompute: false}}"
    recipe = tuning(fixed, *overrides)
    every = rates(flop_per_s={"matrix": {"fp32": 1e11, "bf16": 1e11}})

    def time_terms(examples: int) -> Numbers:
        plan = planned(recipe, cpu(), lambda spec: by_hand(layer=1), rates=every, examples=examples)
        return plan.time_terms

    assert time_terms(9).get(BY_EXAMPLES, 0.0) == pytest.approx(2 * 8 * each_s)
    assert BY_EXAMPLES not in time_terms(1)


@pytest.mark.parametrize(("steps", "passes"), [(2, 2), (200, 200)])
def test_kernels_of_full_rows_are_made_in_the_first_step_only(
    timed: MakePlan, rates: MakeRates, steps: int, passes: int
) -> None:
    fast = rates(flop_per_s={"matrix": {"fp32": 1e11, "bf16": 1e11}})

    plan = timed(fast, "plan.precision=bf16", f"training.steps={steps}")

    kernels = plan.time_terms[NEW_LENGTHS] * passes
    assert kernels == pytest.approx(PRODUCTS_WITHIN * NEW_PRODUCT_S)
    changes = ("plan.precision=bf16", f"training.steps={steps}")
    here = timed(fast, *changes, new_product_s=0.1 * NEW_PRODUCT_S)
    assert here.time_terms[NEW_LENGTHS] * passes == pytest.approx(0.1 * kernels)
    assert NEW_LENGTHS not in timed(fast, f"training.steps={steps}").time_terms


@pytest.mark.parametrize(
    ("fp32", "has_many_lengths", "precision"),
    [(1e13, True, "fp32"), (1e13, False, "bf16"), (1e10, True, "bf16")],
)
def test_short_examples_of_ever_new_lengths_are_planned_in_fp32(
    tuning: MakeRecipe,
    cpu: MakeDevice,
    by_hand: Make,
    planned: MakePlan,
    rates: MakeRates,
    fp32: float,
    has_many_lengths: bool,
    precision: str,
) -> None:
    """Products in bf16 are twice as fast, which pays once they take long."""
    device = cpu(abilities=Abilities(bf16=True), dense_flop_per_s={"fp32": fp32, "bf16": 2 * fp32})
    measured = rates(flop_per_s={"matrix": {"fp32": fp32, "bf16": 2 * fp32}})

    plan = planned(
        tuning("plan={}"),
        device,
        lambda spec: by_hand(layer=1),
        rates=measured,
        has_many_lengths=has_many_lengths,
    )

    assert plan.precision == precision
    assert (NEW_LENGTHS in plan.time_terms) == (precision == "bf16")
    (chosen,) = [choice for choice in plan.choices if choice.name == "precision"]
    assert ("wait" in chosen.reason) == (precision == "fp32")


def test_computing_twice_costs_time_and_is_no_use_of_the_device(
    timed: MakePlan, rates: MakeRates
) -> None:
    once, twice = timed(rates()).predicted, timed(rates(), "plan.recompute=true").predicted

    assert twice["step_time_s"].value - once["step_time_s"].value == pytest.approx(0.008 + 0.001)
    assert twice["mfu"].value == pytest.approx(0.024 / twice["step_time_s"].value)


def test_a_step_faster_than_single_products_shows_that_those_were_slowed_down(
    timed: MakePlan, rates: MakeRates
) -> None:
    """Rates ten times those of the products that were timed alone: 2.4 + 1.8 ms for 2.4 GFLOP."""
    fast = rates(flop_per_s={"matrix": {"fp32": 1e12}}, host_s=0.0)

    plan = timed(fast)

    step, mfu = plan.predicted["step_time_s"], plan.predicted["mfu"]
    assert (step.value, step.high) == pytest.approx((0.0042, 1.25 * 0.0042))
    assert plan.device["dense_flop_per_s"]["fp32"] == pytest.approx(2.4e9 / 0.0042)
    assert mfu.low < mfu.high <= 1
    assert mfu.basis.endswith(REACHED)
    assert sum(plan.time_terms.values()) == pytest.approx(step.value)


def test_no_end_of_an_interval_beats_a_data_sheet_and_none_is_a_point(
    tiny: MakeRecipe,
    by_hand: Make,
    planned: MakePlan,
    rates: MakeRates,
) -> None:
    """Rates a hundred times a T4's own: 2.4 GFLOP at 8.1 TFLOP/s at best."""
    recipe = tiny("plan={precision: fp32, compile: false, recompute: false, micro_batch: 8}")
    device = catalog.get("Tesla T4")
    fast = rates(
        flop_per_s={"matrix": {"fp32": 1e15}}, bytes_per_s=dict.fromkeys(CLASSES, 1e15), host_s=0.0
    )

    plan = planned(recipe, device, lambda spec: by_hand(), rates=fast)

    step, mfu = plan.predicted["step_time_s"], plan.predicted["mfu"]
    least_s = 2.4e9 / device.dense_flop_per_s["fp32"]
    assert (step.low, step.value, mfu.high) == pytest.approx((least_s, least_s / BEST_MFU, 1.0))
    assert mfu.value == pytest.approx(BEST_MFU)
    assert step.high == pytest.approx(1.25 * least_s / BEST_MFU)


def test_earlier_runs_scale_the_time_and_replace_its_interval(
    timed: MakePlan, rates: MakeRates, snapshot: SnapshotAssertion
) -> None:
    plan, corrected = timed(rates()), timed(rates(), correction=Correction(1.5, 1.4, 1.7, runs=2))

    before_s, step = plan.predicted["step_time_s"].value, corrected.predicted["step_time_s"]
    assert (step.value, step.low, step.high) == pytest.approx(
        (1.5 * before_s, 1.4 * before_s, 1.7 * before_s)
    )
    assert step.basis == snapshot
    assert (corrected.correction, plan.correction) == (1.5, 1.0)
    assert plan.rates_basis == snapshot
    assert corrected.time_terms == pytest.approx(
        {name: 1.5 * seconds for name, seconds in plan.time_terms.items()}
    )


def test_time_is_not_guessed_where_no_rate_is_known(timed: MakePlan, rates: MakeRates) -> None:
    for unknown in (None, rates(flop_per_s={"matrix": {"bf16": 1e12}})):
        plan = timed(unknown)

        assert set(plan.predicted) == {"peak_memory_bytes"}
        assert plan.time_terms == {}


def test_without_a_dense_rate_there_is_a_time_but_no_share_of_it(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    planned: MakePlan,
    rates: MakeRates,
) -> None:
    predicted = planned(tiny("plan={}"), cpu(dense_flop_per_s={}), rates=rates()).predicted

    assert "step_time_s" in predicted
    assert "mfu" not in predicted


def test_a_faster_device_is_predicted_to_be_faster(
    tiny: MakeRecipe, devices: Devices, planned: MakePlan
) -> None:
    cards = [devices[name] for name in ("Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA H200")]
    times = [
        planned(
            tiny(
                "plan={}",
                "model={layers: 24, heads: 16, width: 1024}",
                "sequence_length=1024",
                "batch.sequences=64",
            ),
            card,
            rates=guessed_rates(card),
        )
        .predicted["step_time_s"]
        .value
        for card in cards
    ]

    assert times == sorted(times, reverse=True)


def test_no_time_is_predicted_where_the_recipe_cannot_run(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    by_hand: Make,
    rates: MakeRates,
) -> None:
    """It is not said how long a step takes that ends in out of memory."""
    recipe, facts = tiny("plan={precision: fp32, compile: false}"), Facts(rates=rates())

    derived = derive_with_memory(recipe, cpu(), lambda spec: by_hand(weights_bytes=1 << 50), facts)

    assert derived.footprint.verdict == "does not fit"
    assert derived.plan.predicted["peak_memory_bytes"].value > 1 << 50
    assert not {"step_time_s", "tokens_per_s", "mfu"} & derived.plan.predicted.keys()
    assert not derived.plan.time_terms
