"""What earlier runs change in a plan: its memory, its interval, and the line that says so."""

from dataclasses import replace

import pytest
from fixture_types import Make, MakeRecipe
from syrupy.assertion import SnapshotAssertion

from brimful.base.units import GIB, MIB
from brimful.hardware import catalog
from brimful.hardware.calibration import Correction
from brimful.hardware.residuals import Residuals
from brimful.planning.derive import Facts, derive
from brimful.planning.earlier_runs import NAME, corrected, earlier_runs_choice, memory_kind
from brimful.planning.plan import Plan, Prediction
from brimful.planning.survey import Memory, Tracer
from brimful.planning.target import Target

RUNS = Residuals(((40 * MIB, 400 * MIB),) * 3)
"""Three runs that took 40 MiB more than predicted, with 400 MiB of tensors."""


def test_memory_is_corrected_and_its_interval_holds_the_runs(snapshot: SnapshotAssertion) -> None:
    before = Prediction(500.0, 450.0, 510.0, "traced")
    runs = Residuals(((40.0, 400.0), (48.0, 400.0), (44.0, 400.0)))

    after = corrected(before, 400.0, 400.0, runs)

    assert after.value == pytest.approx(500.0 + 44.0 * 3 / 4)
    assert (after.low, after.high) == pytest.approx((450.0, 500.0 + 48.0 + 10.0))
    assert after.basis == snapshot


def test_memory_is_never_below_its_least() -> None:
    before = Prediction(102.0, 101.0, 110.0, "traced")

    assert corrected(before, 100.0, 100.0, Residuals(((-20.0, 100.0),) * 2)).value == 100.0


def test_without_runs_nothing_changes() -> None:
    before = Prediction(120.0, 100.0, 130.0, "traced")

    assert corrected(before, 100.0, 100.0, Residuals()) is before


@pytest.mark.parametrize("more_mib", [40, -15])
@pytest.mark.parametrize("kind", ["cuda", "mps", "cpu"])
def test_every_kind_of_device_is_corrected_and_terms_still_add_up(
    by_hand: Make, kind: str, more_mib: int
) -> None:
    target = Target(kind, 10 * GIB, 100 * MIB, 60 * MIB)
    runs = Residuals(((more_mib * MIB, 400 * MIB),) * 3)
    plain, after = (
        Memory(by_hand(), each).at(4) for each in (target, replace(target, residuals=runs))
    )

    more = after.driver.value - plain.driver.value
    assert after.correction_bytes == pytest.approx(more)
    assert more == pytest.approx(more_mib * MIB * 3 / 4, rel=0.01) or (kind, more_mib < 0) == (
        "cuda",
        True,
    )
    assert sum(after.terms.values()) == pytest.approx(after.driver.value, abs=2)
    assert after.allocated == plain.allocated


def test_a_cpu_counts_on_what_runs_took_more(by_hand: Make) -> None:
    target = Target("cpu", 2 * GIB)
    runs = Residuals(((100 * MIB, 400 * MIB),) * 3)
    plain = Memory(by_hand(), target).at(1)
    found = Memory(by_hand(), replace(target, residuals=runs)).at(1)

    assert found.driver.value == plain.driver.value + 75 * MIB
    assert found.driver.high >= plain.driver.high


def test_runs_are_told_apart_by_what_trains_lengths_and_precision(
    adapted: MakeRecipe,
) -> None:
    assert memory_kind(adapted("method=sft"), "bf16") == "adapters, rows of many lengths, bf16"
    four_bits = adapted("method=sft", "quantize=nf4")
    assert memory_kind(four_bits, "bf16") == "adapters on nf4, rows of many lengths, bf16"


def test_the_line_says_what_was_changed_and_by_how_many_runs(snapshot: SnapshotAssertion) -> None:
    choice = earlier_runs_choice(RUNS, 300 * MIB, Correction(1.25, 1.0, 1.5, 1, 1.3))

    assert choice is not None
    assert choice.reason == snapshot
    assert earlier_runs_choice(Residuals(), 0.0, Correction()) is None
    damaged = earlier_runs_choice(Residuals(unread="it is damaged"), 0.0, Correction())
    assert damaged is not None
    assert (damaged.value, damaged.reason) == (False, "it is damaged")


def test_a_plan_shows_the_correction_and_can_do_without(
    adapted: MakeRecipe, cheap_tracer: Tracer
) -> None:
    device = catalog.get("NVIDIA H200")
    facts = Facts(residuals_of=lambda kind: RUNS, correction=Correction(2.0, 1.0, 3.0, 4, 2.0))

    def planned(*changes: str) -> Plan:
        return derive(adapted("method=sft", *changes), device, cheap_tracer, facts)

    after, without = planned(), planned("plan.earlier_runs=false")

    assert NAME in {choice.name for choice in after.choices}
    assert NAME not in {choice.name for choice in without.choices}
    assert without.memory_correction_bytes == 0.0 < after.memory_correction_bytes
    assert without.correction == 1.0
    assert after.correction == 2.0
