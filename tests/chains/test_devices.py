"""Rates of this machine: measured once, kept, and measured again where they were disturbed or a run
contradicts them. Nothing is timed here.
"""

import dataclasses
from typing import Any

import pytest
import torch
from fixture_types import MakePlan
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.chains import devices
from brimful.chains.outcome import contradictions
from brimful.hardware import catalog, kept_rates
from brimful.hardware.contention import CoreTimes
from brimful.hardware.device import Device
from brimful.hardware.probe import cpu_device
from brimful.planning.plan import Plan, Prediction
from brimful.planning.step import StepSpec
from brimful.planning.timed import StepTimer, TimedPasses

SPEC = StepSpec("{}", 32, cuda=False)
SOUND = TimedPasses(4, 0.5, 0.6, 0.1, 1.05, 0.01, 5, (3, 12), 1_000_000.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000_000.0]
    monkeypatch.setattr("brimful.hardware.kept_rates.time.time", lambda: now[0])
    return now


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> list[TimedPasses]:
    """Passes that timing will find, the next one first; each is used once."""
    todo: list[TimedPasses] = []

    def time_passes(*_: Any) -> TimedPasses:
        clock[0] += 10
        return dataclasses.replace(todo.pop(0), made=clock[0] - 1)

    monkeypatch.setattr("brimful.rehearsal.timed_steps.time_passes", time_passes)
    return todo


def _timer(*, measures: bool = True) -> StepTimer:
    timer = devices.step_timer(cpu_device(), measures=measures)
    assert timer is not None
    return timer


def test_passes_are_timed_once_and_kept(measured: list[TimedPasses]) -> None:
    measured.append(SOUND)

    first = _timer()(SPEC, 4, 2.0, 1.0)
    second = _timer()(SPEC, 4, 2.0, 1.0)
    only_kept = _timer(measures=False)(SPEC, 4, 2.0, 1.0)

    assert first is not None
    assert first.passes.first_s == 0.5
    assert first == second == only_kept
    assert not measured


def test_another_step_is_not_the_kept_one_and_nothing_is_timed_unasked(
    measured: list[TimedPasses],
) -> None:
    measured.append(SOUND)
    _timer()(SPEC, 4, 2.0, 1.0)

    assert _timer(measures=False)(SPEC, 8, 2.0, 1.0) is None
    assert _timer(measures=False)(dataclasses.replace(SPEC, clips=False), 4, 2.0, 1.0) is None
    assert _timer()(SPEC, 8, 0.01, 1.0) is None  # a run too short to be worth it


def test_disturbed_passes_are_timed_again_at_the_next_start(measured: list[TimedPasses]) -> None:
    measured += [dataclasses.replace(SOUND, first_s=2.0, lost_share=0.5), SOUND]

    busy, idle, kept = (_timer()(SPEC, 4, 2.0, 1.0) for _ in range(3))

    assert busy is not None
    assert idle is not None
    assert (busy.passes.first_s, idle.passes.first_s) == (2.0, 0.5)
    assert busy.passes.share[1] / busy.passes.share[0] > 3 * idle.passes.share[1]
    assert kept == idle


def test_rows_of_one_length_are_timed_again_once_there_is_time_for_two(
    measured: list[TimedPasses],
) -> None:
    short = dataclasses.replace(SOUND, first_s=2.0, positions=(64, 512), lengths=1)
    measured += [short, SOUND]

    first, again, longer = (_timer()(SPEC, 4, seconds, 1.0) for seconds in (0.5, 0.5, 2.0))

    assert first == again
    assert first is not None
    assert longer is not None
    assert (first.passes.first_s, longer.passes.first_s) == (2.0, 0.5)


def test_a_run_that_took_another_time_has_them_timed_again(
    measured: list[TimedPasses],
    clock: list[float],
    plan_of: MakePlan,
    snapshot: SnapshotAssertion,
) -> None:
    measured += [SOUND, dataclasses.replace(SOUND, first_s=0.7)]
    _timer()(SPEC, 4, 2.0, 1.0)

    assert contradictions(plan_of(), 1.1) == []
    assert _timer()(SPEC, 4, 2.0, 1.0) is not None
    notes = contradictions(plan_of(), 3.0)
    clock[0] += 10
    again = _timer()(SPEC, 4, 2.0, 1.0)

    assert len(notes) == 1
    assert notes[0] == snapshot
    assert again is not None
    assert again.passes.first_s == 0.7


def test_a_run_faster_than_the_kept_products_raises_their_rate(
    plan_of: MakePlan,
) -> None:
    name = cpu_device().name
    kept_rates.keep_matrix_rates(name, {"fp32": 5e10}, 0.0)

    notes = contradictions(plan_of(), 0.4)  # 0.6 x 1 s / 0.4 s of 100 GFLOP/s on two threads

    kept = kept_rates.read_kept(name).matrix
    assert kept is not None
    assert kept.flop_per_s["fp32"] == pytest.approx(7.5e10)
    assert any("150 GFLOP/s" in note for note in notes)


@pytest.fixture
def plan_of() -> MakePlan:
    """`plan_of()` predicts steps of 1 s, 0.8 to 1.3 s, at 60 % of 100 GFLOP/s."""

    def make(**changes: Any) -> Plan:
        device = dataclasses.replace(cpu_device(), dense_flop_per_s={"fp32": 1e11})
        values: JsonDict = {
            "recipe": "by hand",
            "device": device.to_json(),
            "choices": (),
            "micro_batches": (4,),
            "precision": "fp32",
            "attention": "sdpa",
            "recompute": False,
            "compile": False,
            "loss_chunk": 1024,
            "threads": 2,
            "parameters": 1,
            "sequence_length": 32,
            "total_steps": 10,
            "predicted": {
                "step_time_s": Prediction(1.0, 0.8, 1.3, ""),
                "mfu": Prediction(0.6, 0.5, 0.75, ""),
            },
            "memory_terms": {},
        }
        return Plan(**values | changes)

    return make


def test_only_the_cpu_of_this_machine_is_timed(plan_of: MakePlan) -> None:
    assert devices.step_timer(catalog.get("Tesla T4"), measures=True) is None
    away = dataclasses.replace(cpu_device(), free_memory_bytes=None)
    assert devices.step_timer(away, measures=True) is None
    assert contradictions(plan_of(device=catalog.get("Tesla T4").to_json()), 3.0) == []


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> list[tuple[float, float]]:
    """(FLOP/s of all threads, lost share) of the next measurements of products."""
    todo: list[tuple[float, float]] = []
    waited = [0.0]

    def measure(*_: Any) -> dict[str, float]:
        rate, lost = todo.pop(0)
        clock[0] += 10
        waited[0] += lost / (1 - lost)
        rate *= torch.get_num_threads()
        return {"fp32": rate, "bf16": 2 * rate}

    def times() -> CoreTimes:
        return CoreTimes(clock[0] / 10, waited[0], 0.0, 0.0, clock[0])

    monkeypatch.setattr("brimful.hardware.calibrate.measure_matrix_rates", measure)
    monkeypatch.setattr("brimful.hardware.contention.core_times", times)
    return todo


def _rate(device: Device) -> float:
    assert device.threads
    return device.flop_per_s("fp32") / device.threads


def test_products_are_measured_once_and_the_fastest_counts(
    products: list[tuple[float, float]],
    snapshot: SnapshotAssertion,
) -> None:
    products += [(1e11, 0.5), (3e11, 0.0)]

    busy, idle, kept = (devices.with_matrix_rates(cpu_device()) for _ in range(3))

    assert (_rate(busy), _rate(idle)) == (1e11, 3e11)
    assert busy.source == snapshot
    assert kept.source == idle.source
    assert kept.dense_flop_per_s == idle.dense_flop_per_s
