"""A step's time from timed passes: sums by hand, wider where other programs took the processor."""

import dataclasses
from collections.abc import Callable

import pytest
from fixture_types import Make, MakeDevice, MakePlan, MakeRates, MakeRecipe, Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.hardware.calibration import Correction
from brimful.planning.choices import EXAMPLE_S
from brimful.planning.plan import Plan
from brimful.planning.step import StepSpec
from brimful.planning.timed import LEAST_SPREAD, MEASURE_S, UNEVEN, TimedPasses, TimedStep
from brimful.planning.timing import StepParts

PlanAndAsked = tuple[Plan, list[tuple[int, bool, float]]]

PlanAndAsk = Callable[..., PlanAndAsked]

QUIET = TimedPasses(
    micro_batch=4,
    first_s=0.5,
    further_s=0.6,
    update_s=0.1,
    spread=1.0,
    lost_share=0.01,
    tries=5,
    blocks=(3, 12),
    made=1_000_000_000.0,
)

UNCORRECTED = Correction()


def _evenly(micro_batch: int) -> StepParts:
    """Every sequence takes as long as the other."""
    return StepParts(micro_batch * 1.0, micro_batch * 1.0)


@pytest.mark.parametrize(
    ("micro_batches", "seconds"),
    [((4,), 0.6), ((4, 4), 1.2), ((8, 8, 2), 0.1 + 1.0 + 1.2 + 0.3), ((1,), 0.225)],
)
def test_a_step_is_its_passes_and_its_update(
    micro_batches: tuple[int, ...], seconds: float
) -> None:
    assert QUIET.seconds(_evenly, micro_batches) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("micro_batches", "fill", "seconds"),
    [
        ((4,), 1.0, 0.1 + 0.5),
        ((2, 2), 1.0, 0.1 + (0.2 + 0.15) + (0.2 + 0.2)),
        ((8,), 1.0, 0.1 + (0.2 + 0.6)),
        ((4,), 0.5, 0.1 + (0.2 + 0.15)),
    ],
)
def test_what_a_pass_takes_whatever_its_size_counts_once_a_pass(
    micro_batches: tuple[int, ...], fill: float, seconds: float
) -> None:
    timed = dataclasses.replace(QUIET, fixed_s=0.2)

    assert timed.seconds(_evenly, micro_batches, fill=fill) == pytest.approx(seconds)


def test_a_pass_of_a_new_length_takes_longer() -> None:
    timed = dataclasses.replace(QUIET, new_length_s=0.05)

    often, seldom = (
        timed.seconds(_evenly, (4, 4, 4), has_many_lengths=many) for many in (True, False)
    )

    assert often == pytest.approx(seldom + 3 * 0.05)


def test_rows_that_are_not_full_take_less_where_one_size_was_timed() -> None:
    assert QUIET.seconds(_evenly, (4,), fill=0.75) == pytest.approx(0.75 * 0.5 + 0.1)


def test_the_interval_widens_with_what_other_programs_took() -> None:
    busy = dataclasses.replace(QUIET, lost_share=0.5, spread=2.0)
    busier = dataclasses.replace(busy, lost_share=0.9, spread=9.0)

    widths = [each.share[1] / each.share[0] for each in (QUIET, busy, busier)]

    assert QUIET.share == pytest.approx(LEAST_SPREAD, rel=0.02)
    assert widths[1] > 4 * widths[0]
    assert widths[2] > widths[1]
    assert [QUIET.was_disturbed, busy.was_disturbed] == [False, True]
    assert "50%" in busy.describe()
    assert "timed again" in busy.describe()


def test_the_interval_widens_with_what_passes_at_rest_differed_by() -> None:
    differing = dataclasses.replace(QUIET, spread=1.44)

    assert not differing.was_disturbed
    assert [differing.share[0] * 1.2, differing.share[1] / 1.2] == pytest.approx(QUIET.share)


def test_the_interval_widens_with_what_was_not_timed(snapshot: SnapshotAssertion) -> None:
    shorter = dataclasses.replace(QUIET, positions=(256, 1024))
    once = dataclasses.replace(shorter, tries=1)
    uneven = dataclasses.replace(QUIET, positions=(1024 - UNEVEN, 1024))

    few = dataclasses.replace(once, tries=4)
    widths = [each.share[1] / each.share[0] for each in (QUIET, shorter, once)]

    assert widths[0] < widths[1] < widths[2]
    assert few.share == once.share
    assert uneven.share == QUIET.share
    assert shorter.describe() == snapshot


def test_passes_survive_json_and_nonsense_is_refused(refuses: Refuses) -> None:
    assert TimedPasses.from_json(QUIET.to_json()) == QUIET
    older = {key: value for key, value in QUIET.to_json().items() if key != "positions"}
    assert TimedPasses.from_json(older) == QUIET
    with refuses(ValueError):
        TimedPasses.from_json(QUIET.to_json() | {"first_s": 0.0})
    with pytest.raises(KeyError):
        TimedPasses.from_json({})


def test_rows_of_one_length_say_little_of_longer_ones() -> None:
    two = dataclasses.replace(QUIET, positions=(64, 512))
    one = dataclasses.replace(two, lengths=1)

    assert one.share[0] < two.share[0] / 2
    assert one.share[1] == two.share[1]
    assert dataclasses.replace(QUIET, lengths=1).share == QUIET.share


@pytest.fixture
def timed_plan(
    tiny: MakeRecipe,
    cpu: MakeDevice,
    by_hand: Make,
    planned: MakePlan,
    rates: MakeRates,
) -> PlanAndAsk:
    """`timed_plan(passes, correction, "key=value")` is a plan by hand with these timed passes, and
    what was asked of the timer: micro-batch, whether the step accumulates, seconds.
    """

    def plan(
        passes: TimedPasses | None, correction: Correction = UNCORRECTED, *overrides: str
    ) -> PlanAndAsked:
        asked = []

        def timer(
            spec: StepSpec, micro_batch: int, seconds: float, scored: float
        ) -> TimedStep | None:
            asked.append((micro_batch, spec.accumulates, seconds))
            return None if passes is None else TimedStep(passes, correction)

        recipe = tiny(
            "plan={precision: fp32, compile: false, recompute: false, micro_batch: 8}", *overrides
        )
        made = planned(
            recipe, cpu(), lambda spec: by_hand(), rates=rates(), timer=timer, train_sequences=100
        )
        return made, asked

    return plan


def test_timed_passes_decide_the_step_and_its_interval(
    timed_plan: PlanAndAsk,
    snapshot: SnapshotAssertion,
) -> None:
    plan, asked = timed_plan(
        dataclasses.replace(QUIET, micro_batch=8), Correction(), "training.steps=9000"
    )

    step, (low, high) = plan.predicted["step_time_s"], QUIET.share
    assert (step.value, step.low, step.high) == pytest.approx((0.6, 0.6 * low, 0.6 * high))
    assert sum(plan.time_terms.values()) == pytest.approx(0.6)
    assert plan.rates_basis == snapshot
    assert step.basis == snapshot
    assert asked == [(8, False, MEASURE_S[1])]


@pytest.mark.parametrize(("steps", "seconds"), [(200, MEASURE_S[0]), (3000, 0.015 * 3000 * 0.0309)])
def test_a_longer_run_is_timed_longer(
    steps: int,
    seconds: float,
    timed_plan: PlanAndAsk,
) -> None:
    _, asked = timed_plan(None, Correction(), f"training.steps={steps}")

    assert asked[0][2] == pytest.approx(seconds, rel=1e-3)


def test_attention_example_by_example_is_added_to_timed_passes(
    tuning: MakeRecipe,
    cpu: MakeDevice,
    by_hand: Make,
    planned: MakePlan,
    rates: MakeRates,
) -> None:
    """A full row is timed, which is one example."""
    passes = dataclasses.replace(QUIET, micro_batch=8)
    recipe = tuning("plan={precision: fp32, compile: false, recompute: false, micro_batch: 8}")

    def step_s(examples: int) -> float:
        plan = planned(
            recipe,
            cpu(),
            lambda spec: by_hand(layer=1),
            rates=rates(),
            timer=lambda *_: TimedStep(passes, Correction()),
            examples=examples,
        )
        return plan.predicted["step_time_s"].value

    assert step_s(101) - step_s(1) == pytest.approx(2 * 100 * EXAMPLE_S["fp32"])


def test_earlier_runs_correct_what_follows_from_timed_passes(
    timed_plan: PlanAndAsk,
) -> None:
    runs = Correction(factor=1.1, low=0.9, high=1.4, runs=3, median=1.15)

    plan, _ = timed_plan(dataclasses.replace(QUIET, micro_batch=8), runs)

    step = plan.predicted["step_time_s"]
    assert (step.value, step.low, step.high) == pytest.approx((0.66, 0.6 * 0.9, 0.6 * 1.4))
    assert plan.correction == pytest.approx(1.1)


@pytest.mark.parametrize(
    ("micro_batch", "fixed_s", "share"),
    [
        (8, 0.2, (0.1 + 0.2) / (0.1 + 0.5)),
        # Where passes of one size were timed: what operators are predicted to take without positions.
        (8, None, 0.3065),
        # With fewer positions the second pass is not needed.
        (4, 0.2, (0.1 + 0.2) / (0.1 + 0.5 + 0.6)),
    ],
)
def test_the_update_and_what_one_pass_takes_do_not_shrink(
    micro_batch: int, fixed_s: float | None, share: float, timed_plan: PlanAndAsk
) -> None:
    passes = dataclasses.replace(QUIET, micro_batch=micro_batch, fixed_s=fixed_s)
    plan, _ = timed_plan(passes, UNCORRECTED, f"plan.micro_batch={micro_batch}")

    assert plan.fixed_share == pytest.approx(share, rel=0.02)
    assert timed_plan(None)[0].fixed_share == 0


def test_runs_say_nothing_of_sound_passes_where_theirs_were_disturbed(
    timed_plan: PlanAndAsk,
) -> None:
    sound, _ = timed_plan(QUIET)
    disturbed, _ = timed_plan(dataclasses.replace(QUIET, lost_share=0.2))

    assert sound.rates_basis != disturbed.rates_basis


def test_without_timed_passes_operators_decide(
    timed_plan: PlanAndAsk,
    snapshot: SnapshotAssertion,
) -> None:
    plan, asked = timed_plan(None)

    assert plan.predicted["step_time_s"].value == pytest.approx(0.0309)
    assert asked[0][2] == pytest.approx(0.1 * 12 * 0.0309)  # a tenth of twelve steps, no more
    assert plan.rates_basis == snapshot
