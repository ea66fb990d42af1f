"""What is remembered of a device: calibrations, runs beside their predictions, and what follows
from them.
"""

import dataclasses
import json
import math
from typing import Any

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json
from brimful.hardware import calibration
from brimful.hardware.calibration import (
    Calibration,
    Correction,
    basis_of,
    correction,
    current_versions,
    load,
    note_run,
    reason,
    reset,
    save,
    stored,
)
from brimful.hardware.device import Device, abilities_of
from brimful.hardware.rates import Rates

NAME = "Some CPU @ 3.0 GHz"
DEVICE = Device(
    name=NAME,
    kind="cpu",
    memory_bytes=1 << 30,
    free_memory_bytes=1 << 29,
    abilities=abilities_of("cpu", None),
    threads=2,
    source="test",
)
MEASURED = Calibration(
    NAME,
    Rates({"matrix": {"fp32": 1e11}}, {"matrix": 1e10}, source="test"),
    2,
    {"disk_bytes_per_s": 1e9},
    current_versions(),
    made=0.0,
    points=1,
)
BASIS = "test, 2 threads"


def _note(*ratios: float, name: str = "step_time_s", **changes: Any) -> None:
    for ratio in ratios:
        note_run(
            NAME,
            measured={name: 2.0 * ratio},
            predicted={name: 2.0},
            key="r",
            **{"basis": BASIS, **changes},
        )


def test_a_saved_calibration_comes_back() -> None:
    save(MEASURED)

    assert load(DEVICE) == MEASURED
    assert load(DEVICE).rates.to_json() == MEASURED.rates.to_json()  # type: ignore[union-attr]
    assert reason(DEVICE) == ""


def test_nothing_is_known_of_a_device_that_was_never_calibrated(
    snapshot: SnapshotAssertion,
) -> None:
    assert load(DEVICE) is None
    assert reason(DEVICE) == snapshot
    assert correction(NAME, "step_time_s", basis=BASIS) == Correction()


def test_a_calibration_of_another_torch_is_not_used(snapshot: SnapshotAssertion) -> None:
    save(dataclasses.replace(MEASURED, versions={"torch": "1.9.0"}))

    assert load(DEVICE) is None
    assert reason(DEVICE) == snapshot


def test_another_patch_release_of_torch_is_the_same() -> None:
    minor = ".".join(current_versions()["torch"].split(".")[:2])
    save(dataclasses.replace(MEASURED, versions={"torch": f"{minor}.99+other"}))

    assert load(DEVICE) is not None


def test_a_calibration_with_other_threads_is_not_used(snapshot: SnapshotAssertion) -> None:
    save(MEASURED)

    assert load(DEVICE, threads=1) is None
    assert reason(DEVICE, threads=1) == snapshot


def test_devices_do_not_share_a_file() -> None:
    names = ["RTX 3080", "RTX-3080", "rtx 3080", "装置", "../../x", ""]

    assert len({calibration.path_of(name) for name in names}) == len(names)
    assert len({calibration.path_of(name).parent for name in names}) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": 99}',
        '{"schema": 1, "calibration": {}, "runs": []}',
        '{"schema": 1, "calibration": null, "runs": [{}]}',
    ],
)
def test_a_damaged_file_is_ignored_with_a_note_and_written_anew(text: str) -> None:
    save(MEASURED)
    path = calibration.path_of(NAME)
    path.write_text(text)

    assert load(DEVICE) is None
    assert str(path) in stored(NAME).note
    assert str(path) in reason(DEVICE)
    _note(1.0)
    assert stored(NAME).note == ""
    assert len(stored(NAME).runs) == 1


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf])
def test_a_rate_that_cannot_be_is_a_damaged_file(rate: float) -> None:
    save(MEASURED)
    path = calibration.path_of(NAME)
    values = read_json(path)
    values["calibration"]["rates"]["bytes_per_s"]["matrix"] = rate
    path.write_text(json.dumps(values))

    assert load(DEVICE) is None
    assert "ignored" in stored(NAME).note


def test_a_new_calibration_keeps_the_runs() -> None:
    _note(1.0)
    save(MEASURED)

    assert len(stored(NAME).runs) == 1


def test_forgetting_forgets_all() -> None:
    save(MEASURED)
    _note(1.0)

    assert reset(NAME)
    assert stored(NAME) == calibration.Stored()
    assert not reset(NAME)


def test_few_runs_move_little_and_many_move_all() -> None:
    _note(2.0)
    assert correction(NAME, "step_time_s", basis=BASIS).factor == pytest.approx(2 ** (1 / 4))
    _note(2.0, 2.0)
    assert correction(NAME, "step_time_s", basis=BASIS).factor == pytest.approx(2 ** (3 / 6))
    _note(*[2.0] * 30)
    assert correction(NAME, "step_time_s", basis=BASIS).factor == pytest.approx(2 ** (20 / 23))


def test_one_wild_run_does_not_move_the_median() -> None:
    _note(1.1, 1.1, 50.0)

    assert correction(NAME, "step_time_s", basis=BASIS).factor == pytest.approx(1.1 ** (3 / 6))


def test_the_interval_is_around_the_factor_and_narrows_with_runs_that_agree() -> None:
    _note(1.2)
    once = correction(NAME, "step_time_s", basis=BASIS)
    _note(*[1.2] * 19)
    often = correction(NAME, "step_time_s", basis=BASIS)

    assert once.low < once.factor < once.high
    assert often.high / often.low < once.high / once.low
    assert often.runs == 20


def test_only_the_last_runs_count() -> None:
    _note(*[3.0] * 20, *[1.0] * 20)

    assert correction(NAME, "step_time_s", basis=BASIS).factor == pytest.approx(1.0)


@pytest.mark.parametrize("share", [(0.4, 2.5), (0.8, 1.25), (1.0, 1.0)])
@pytest.mark.parametrize("runs", [1, 5, 20])
@pytest.mark.parametrize("ratio", [2.0, 0.5])
def test_a_machine_that_is_steadily_slower_or_faster_is_inside_the_interval(
    ratio: float, runs: int, share: tuple[float, float]
) -> None:
    _note(*[ratio] * runs)
    found = correction(NAME, "step_time_s", basis=BASIS, share=share)

    assert found.low < ratio < found.high
    assert found.low < found.factor < found.high
    assert found.median == pytest.approx(ratio)


def test_the_interval_by_hand() -> None:
    """One run that took twice as long: log(factor) = log(2) / 4; h = log(2.5) sqrt(3/4) below it
    and above log(2).
    """
    _note(2.0)
    found = correction(NAME, "step_time_s", basis=BASIS, share=(0.4, 2.5))

    h = math.log(2.5) * math.sqrt(3 / 4)
    assert (found.low, found.high) == pytest.approx((2**0.25 * math.exp(-h), 2 * math.exp(h)))


def test_guessed_rates_leave_a_wider_interval_than_measured_ones_which_narrows_with_runs() -> None:
    _note(1.0)
    guessed, measured = (
        correction(NAME, "step_time_s", basis=BASIS, share=share)
        for share in ((0.4, 2.5), (0.9, 1.1))
    )
    _note(*[1.0] * 19)
    later = correction(NAME, "step_time_s", basis=BASIS, share=(0.4, 2.5))

    assert guessed.high > 1.5 * measured.high
    assert measured.high == pytest.approx(math.exp(0.2 * math.sqrt(3 / 4)))
    assert 1 < later.high < guessed.high


def test_runs_with_other_rates_or_threads_say_nothing_about_times_but_about_memory() -> None:
    _note(2.0, 2.0, basis="assumed, 1 thread")
    _note(1.5, name="peak_memory_bytes", basis="assumed, 1 thread")

    assert correction(NAME, "step_time_s", basis=BASIS) == Correction()
    assert correction(NAME, "step_time_s", basis="assumed, 1 thread").runs == 2
    assert correction(NAME, "peak_memory_bytes", basis=BASIS).runs == 1
    assert list(calibration.corrections(NAME)) == [
        ("peak_memory_bytes", ""),
        ("step_time_s", "assumed, 1 thread"),
    ]


def test_the_basis_names_rates_and_threads() -> None:
    assert basis_of(MEASURED.rates, DEVICE) == BASIS
    assert basis_of(MEASURED.rates, dataclasses.replace(DEVICE, threads=1)) == "test, 1 thread"
    assert basis_of(MEASURED.rates, dataclasses.replace(DEVICE, threads=None)) == "test"


def test_runs_noted_by_an_earlier_version_are_read_and_correct_no_times() -> None:
    _note(2.0)
    path = calibration.path_of(NAME)
    values = read_json(path)
    del values["runs"][0]["basis"]
    path.write_text(json.dumps(values))

    assert stored(NAME).runs[0].basis == ""
    assert correction(NAME, "step_time_s", basis=BASIS) == Correction()


def test_times_from_before_the_calibration_say_nothing_and_memory_does() -> None:
    _note(2.0)
    _note(2.0, name="peak_memory_bytes")
    save(dataclasses.replace(MEASURED, made=stored(NAME).runs[-1].made + 1))

    assert correction(NAME, "step_time_s", basis=BASIS).runs == 0
    assert correction(NAME, "peak_memory_bytes", basis=BASIS).runs == 1
    assert list(calibration.corrections(NAME)) == [("peak_memory_bytes", "")]


def test_runs_with_another_torch_say_nothing() -> None:
    _note(2.0, versions={"torch": "1.9.0"})

    assert correction(NAME, "step_time_s", basis=BASIS).runs == 0


def test_a_correction_that_was_applied_is_taken_out() -> None:
    _note(1.0, applied={"step_time_s": 1.5})

    assert stored(NAME).runs[0].predicted == {"step_time_s": pytest.approx(2.0 / 1.5)}


def test_values_that_cannot_be_compared_are_left_out() -> None:
    note_run(
        NAME,
        measured={"a": 1.0, "b": math.nan, "c": 1.0, "d": 0.0},
        predicted={"a": 2.0, "b": 1.0, "d": 1.0},
        key="r",
    )
    note_run(NAME, measured={"a": 1.0}, predicted={}, key="r")

    assert [dict(run.measured) for run in stored(NAME).runs] == [{"a": 1.0}]


def test_the_file_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "KEPT_RUNS", 3)
    _note(1.0, 2.0, 3.0, 4.0)

    assert [run.measured["step_time_s"] for run in stored(NAME).runs] == [4.0, 6.0, 8.0]


def test_a_folder_that_cannot_be_made_is_told(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "file"))

    with refuses(RunFolderError):
        save(MEASURED)
