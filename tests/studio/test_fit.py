"""The answer of *Will it fit?* is that of `brimful plan`, device by device, and its recipe plans
alike.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DeviceError
from brimful.chains.plans import survey
from brimful.planning.remedies import Remedy
from brimful.planning.surveyed import Surveyed
from brimful.recipe import load, load_text
from brimful.studio.fit import Fit, assess, remedy_line
from brimful.studio.fit_request import FitRequest

TINY = """
name: tiny
sequence_length: 128
batch: {sequences: 4}
training: {steps: 50}
model: {architecture: llama, layers: 1, heads: 2, width: 32}
tokenizer: {kind: bpe, vocabulary: 300}
data: {path: "builtin:python-docs"}
optimizer: {learning_rate: 1e-3}
"""
L4 = "NVIDIA L4"


@pytest.fixture(scope="module")
def cache(new_cache: Callable[[], str]) -> str:
    return new_cache()


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, cache: str) -> None:
    monkeypatch.setenv("BRIMFUL_CACHE", cache)


def _ask(**changes: object) -> Fit:
    return assess(FitRequest(TINY, **{"devices": (L4,)} | changes))  # type: ignore[arg-type]


def test_terms_add_up_to_the_peak_and_numbers_have_intervals() -> None:
    (device,) = _ask().devices

    assert (device.device, device.verdict) == (L4, "fits")
    assert device.peak_bytes is not None
    assert (
        sum(size for _, size in device.terms)
        == round(device.peak_bytes.value)
        < device.capacity_bytes
    )
    assert device.micro_batch * device.accumulation == 4
    for prediction in (
        device.peak_bytes,
        device.step_time_s,
        device.total_time_s,
        device.cost_usd,
        device.energy_wh,
    ):
        assert prediction is not None
        assert prediction.low <= prediction.value <= prediction.high
    assert {"precision", "micro_batch"} <= {choice.name for choice in device.choices}


def test_the_recipe_of_the_answer_plans_alike(tmp_path: Path) -> None:
    found = _ask(sequence_length=256, effective_batch=6)
    file = tmp_path / "recipe.yaml"
    file.write_text(found.recipe_yaml, encoding="utf-8")

    (planned,) = survey(load(str(file)), L4)

    assert isinstance(planned, Surveyed)
    (device,) = found.devices
    assert (planned.verdict, planned.derived.plan.micro_batches[0]) == (
        device.verdict,
        device.micro_batch,
    )
    assert planned.derived.footprint.driver == device.peak_bytes
    assert planned.derived.plan.predicted["total_time_s"] == device.total_time_s
    assert found.parameters == planned.derived.footprint.parameters


def test_a_changed_number_changes_the_answer() -> None:
    before, after = _ask().devices[0], _ask(sequence_length=256).devices[0]

    assert before.peak_bytes is not None
    assert after.peak_bytes is not None
    assert before.peak_bytes.value < after.peak_bytes.value


def test_devices_come_in_their_order_once_and_this_machine_is_one() -> None:
    found = _ask(devices=("NVIDIA H200", L4, L4, "here"))

    assert [device.device for device in found.devices[:2]] == ["NVIDIA H200", L4]
    assert len(found.devices) == 3


def test_what_does_not_fit_says_so_and_closely_what_would() -> None:
    as_in_the_tests_of_reports = (
        TINY.replace("layers: 1, heads: 2, width: 32", "layers: 1, heads: 64, width: 65536")
        .replace("sequence_length: 128", "sequence_length: 2048")
        .replace("sequences: 4", "sequences: 6")
    )
    (device,) = assess(
        FitRequest(as_in_the_tests_of_reports, devices=("Tesla T4",)), with_remedies=True
    ).devices

    assert device.verdict == "does not fit"
    assert device.step_time_s is None
    assert "would take" in device.reason
    assert any(
        "8-bit optimizer (optimizer.kind=adamw_8bit)" in remedy for remedy in device.remedies
    )


def test_a_remedy_that_may_help_is_not_told_as_one_that_does_not(
    snapshot: SnapshotAssertion,
) -> None:
    (surveyed,) = survey(load_text(TINY, "a text"), L4)
    assert isinstance(surveyed, Surveyed)
    footprint = replace(surveyed.derived.footprint, verdict="does not fit")
    remedy = Remedy("fewer", "less", "a=b", footprint, 0)

    assert remedy_line(remedy) == snapshot
    assert (
        remedy_line(replace(remedy, footprint=replace(footprint, verdict="uncertain"))) == snapshot
    )
    assert remedy_line(replace(remedy, largest=1)) == snapshot


def test_a_device_that_cannot_run_the_recipe_is_unknown_and_the_others_are_told() -> None:
    text = TINY.replace("learning_rate: 1e-3", "learning_rate: 1e-3, kind: adamw_8bit")

    apple, nvidia = assess(FitRequest(text, devices=("Apple M1", L4))).devices

    assert (apple.verdict, apple.peak_bytes, nvidia.verdict) == ("unknown", None, "fits")
    assert "adamw_8bit" in apple.reason


def test_devices_are_named_exactly(refuses: Refuses) -> None:
    with refuses(DeviceError):
        _ask(devices=("NVIDIA L44",))
    with refuses(DeviceError, names=["no device"]):
        _ask(devices=())


def test_devices_that_share_the_job_are_planned_together() -> None:
    (together,), (alone,) = _ask(together=2).devices, _ask().devices

    assert together.device == f"2 x {L4}"
    assert together.micro_batch * together.accumulation == 2
    assert "devices" in [choice.name for choice in together.choices]
    assert alone.micro_batch * alone.accumulation == 4
    (entry,) = survey(load_text(_ask().recipe_yaml, "the answer"), f"2 x {L4}")
    assert isinstance(entry, Surveyed)
    assert together.step_time_s == entry.derived.plan.predicted["step_time_s"]


def test_a_device_that_cannot_share_a_job_says_so(snapshot: SnapshotAssertion) -> None:
    shared, alone = _ask(devices=(L4, "Apple M3 Max"), together=2).devices

    assert shared.verdict == "fits"
    assert alone.verdict == "unknown"
    assert alone.reason == snapshot
