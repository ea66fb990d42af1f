"""The page shows predicted beside measured, and does not compare different devices."""

import re

import pytest

from brimful.integrations.hf_trainer.measuring import MeasuredTraining
from brimful.integrations.hf_trainer.page import (
    Predicted,
    Trained,
    comparisons,
    training_view,
)
from brimful.planning.memory import Footprint, Tensor
from brimful.planning.plan import Prediction
from brimful.report.page.html import render_view
from brimful.report.terminal import told_of

GIB = 2**30


def _prediction(value: float) -> Prediction:
    return Prediction(value, 0.9 * value, 1.1 * value, "traced")


def _predicted(device: str = "Tesla T4", kind: str = "cuda") -> Predicted:
    footprint = Footprint(
        micro_batch=4,
        terms={"weights": GIB, "activations": 3 * GIB},
        allocated=_prediction(3.5 * GIB),
        reserved=_prediction(4 * GIB),
        driver=_prediction(4.2 * GIB),
        usable_bytes=15 * GIB,
        verdict="fits",
        peak_phase="backward",
        parameters=1000,
        trainable=100,
        largest=(Tensor(GIB, "weights", "embed"),),
    )
    return Predicted(device, kind, footprint, _prediction(0.5), "Because.")


def _trained(on: str = "Tesla T4") -> Trained:
    measured = MeasuredTraining(
        step_times_s=(2.0, 0.5, 0.5, 0.5),
        peak_bytes=4 * GIB,
        tensors_bytes=int(3.4 * GIB),
        looks=((0.0, GIB), (1.0, 4 * GIB)),
        device="cuda",
    )
    return Trained("Net<1>", "Trainer", on, 1000, 100, (4, 2), 8, measured)


def test_memory_of_the_allocator_and_of_tensors_and_step_time_are_compared() -> None:
    found = {
        each.key: each for each in comparisons(_trained().measured, _predicted(), is_same=True)
    }

    assert found["peak_memory_bytes"].predicted == found["peak_memory_bytes"].measured == 4 * GIB
    assert found["allocated_memory_bytes"].error == pytest.approx(3.5 / 3.4 - 1)
    assert found["step_time_s"].measured == 0.5


def test_on_a_cpu_the_process_is_compared() -> None:
    found = comparisons(_trained().measured, _predicted(kind="cpu"), is_same=True)

    assert [each.key for each in found] == ["peak_memory_bytes", "step_time_s"]
    assert found[0].predicted == 4.2 * GIB


def test_a_page_says_what_happened_and_escapes_it() -> None:
    page = render_view(training_view(_trained(), _predicted()))

    assert "3 predictions: 3 within 10 %" in page
    assert "2 micro-batches of 4. Because." in page
    assert "Net&lt;1&gt;" in page
    assert "Net<1>" not in page
    assert "100 of them trained" in page
    assert page.count("data-chart=") == 2


def test_another_device_than_the_planned_one_is_not_compared() -> None:
    page = render_view(training_view(_trained("CPU"), _predicted()))

    assert "Planned for Tesla T4 and trained on another device" in page
    assert "within 10 %" not in page
    assert not re.search(r"error-(close|off|far)\"", page.partition("<main")[2])


def test_without_a_prediction_the_reason_is_given() -> None:
    assert "No loss." in told_of(training_view(_trained(), None, "No loss."))
    assert "only measured" in told_of(training_view(_trained(), None))
