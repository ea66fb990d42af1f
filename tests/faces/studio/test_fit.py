"""The answer of *Will it fit?* is that of `brimful plan`, device by device, and its recipe plans
alike.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import DeviceError
from brimful.chains.plans import survey
from brimful.faces.studio.fit import assess, surveyed_for
from brimful.faces.studio.fit_request import FitRequest
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import load, load_text
from brimful.report.plan.table import Entries, Entry
from brimful.report.terminal import told_of

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


def _ask(**changes: object) -> Entries:
    request = FitRequest(TINY, **{"devices": (L4,)} | changes)  # type: ignore[arg-type]
    return surveyed_for(request)[1]


def _planned(entry: Entry) -> Surveyed:
    assert isinstance(entry, Surveyed)
    return entry


def test_the_recipe_of_the_answer_plans_alike(tmp_path: Path) -> None:
    found, (entry,) = surveyed_for(
        FitRequest(TINY, devices=(L4,), sequence_length=256, effective_batch=6)
    )
    file = tmp_path / "recipe.yaml"
    file.write_text(found.to_yaml(), encoding="utf-8")

    (planned,) = survey(load(str(file)), L4)

    ours, theirs = _planned(entry).derived, _planned(planned).derived
    assert ours.footprint == theirs.footprint
    assert ours.plan.micro_batches == theirs.plan.micro_batches
    assert ours.plan.predicted["total_time_s"] == theirs.plan.predicted["total_time_s"]
    assert sum(ours.footprint.terms.values()) == round(ours.footprint.driver.value)


def test_a_changed_number_changes_the_answer() -> None:
    before, after = (_planned(_ask(**each)[0]) for each in ({}, {"sequence_length": 256}))

    assert before.memory < after.memory


def test_devices_come_in_their_order_once_and_this_machine_is_one() -> None:
    found = _ask(devices=("NVIDIA H200", L4, L4, "here"))

    assert [entry.device.name for entry in found[:2]] == ["NVIDIA H200", L4]
    assert len(found) == 3


def test_what_does_not_fit_says_so_and_closely_what_would() -> None:
    as_in_the_tests_of_reports = (
        TINY.replace("layers: 1, heads: 2, width: 32", "layers: 1, heads: 64, width: 65536")
        .replace("sequence_length: 128", "sequence_length: 2048")
        .replace("sequences: 4", "sequences: 6")
    )
    request = FitRequest(as_in_the_tests_of_reports, devices=("Tesla T4",))
    first, closely = assess(request), assess(request, with_remedies=True)
    told = told_of(closely.view).plain

    assert (first.looks, closely.looks) == (True, False)
    assert "would take about" in told
    assert "8-bit optimizer (optimizer.kind=adamw_8bit)" in told
    assert "8-bit optimizer" not in told_of(first.view).plain


def test_a_device_that_cannot_run_the_recipe_is_unknown_and_the_others_are_told() -> None:
    text = TINY.replace("learning_rate: 1e-3", "learning_rate: 1e-3, kind: adamw_8bit")

    _, (apple, nvidia) = surveyed_for(FitRequest(text, devices=("Apple M1", L4)))

    assert isinstance(apple, Unplanned)
    assert "adamw_8bit" in apple.reason
    assert _planned(nvidia).verdict == "fits"


def test_devices_are_named_exactly(refuses: Refuses) -> None:
    with refuses(DeviceError):
        _ask(devices=("NVIDIA L44",))
    with refuses(DeviceError, names=["no device"]):
        _ask(devices=())


def test_devices_that_share_the_job_are_planned_together() -> None:
    (together,) = _ask(together=2)
    (entry,) = survey(load_text(TINY, "a text"), f"2 x {L4}")

    assert together.device.name == f"2 x {L4}"
    plans = [_planned(each).derived.plan for each in (together, entry)]
    assert [sum(plan.micro_batches) for plan in plans] == [2, 2]
    assert plans[0].predicted["step_time_s"] == plans[1].predicted["step_time_s"]


def test_a_device_that_cannot_share_a_job_says_so(snapshot: SnapshotAssertion) -> None:
    shared, alone = _ask(devices=(L4, "Apple M3 Max"), together=2)

    assert _planned(shared).verdict == "fits"
    assert isinstance(alone, Unplanned)
    assert alone.reason == snapshot
