"""What the memory of earlier runs says about that of the next one."""

from typing import Any

import pytest

from brimful.hardware.calibration import Described, note_run, path_of, stored
from brimful.hardware.residuals import (
    NO_RESIDUALS,
    MemoryCorrection,
    Residuals,
    residuals_of,
    tensors_bytes,
)

NAME = "Some CPU @ 3.0 GHz"
KIND = "adapters, rows of many lengths, bf16"
TERMS = {"weights": 600.0, "activations": 400.0, "allocator slack": 50.0, "process": 300.0}


def _note(*more_bytes: float, kind: str = KIND, **changes: Any) -> None:
    for more in more_bytes:
        note_run(
            NAME,
            measured={"peak_memory_bytes": 1350.0 + more},
            predicted={"peak_memory_bytes": 1350.0},
            key="r",
            described=Described(kind, TERMS),
            **changes,
        )


def test_tensors_are_what_is_neither_slack_nor_process() -> None:
    assert tensors_bytes(TERMS) == 1000.0


def _at(tensors: float = 1000.0, peak: float = 1350.0) -> MemoryCorrection | None:
    return residuals_of(NAME, KIND).at(tensors, peak)


def test_two_runs_that_agree_correct_and_one_does_not() -> None:
    _note(100.0)
    assert _at() is None
    _note(120.0)

    found = _at()

    assert found is not None
    assert found.runs == 2
    assert found.bytes_ == pytest.approx(110.0 * 2 / 3)
    assert (found.low, found.high) == pytest.approx((100.0 - 27.0, 120.0 + 27.0))


def test_runs_that_took_less_correct_downwards() -> None:
    _note(-50.0, -50.0, -50.0)

    found = _at()

    assert found is not None
    assert found.bytes_ == pytest.approx(-50.0 * 3 / 4)


def test_smaller_plans_are_corrected_by_less_and_larger_ones_by_no_more() -> None:
    runs = Residuals(((100.0, 1000.0), (100.0, 1000.0)))

    small, same, large = (runs.at(tensors, 5000.0) for tensors in (500.0, 1000.0, 4000.0))

    assert small is not None
    assert same == large is not None
    assert small.bytes_ == pytest.approx(same.bytes_ / 2)


def test_memory_grows_with_the_tensors_whatever_the_runs_took() -> None:
    for more in (-300.0, -40.0, 40.0, 300.0):
        runs = Residuals(((more, 500.0), (more, 700.0)))
        peaks = [(tensors, 400.0 + 1.1 * tensors) for tensors in range(50, 2000, 50)]
        found = [(peak, runs.at(tensors, peak)) for tensors, peak in peaks]
        values = [peak + (said.bytes_ if said else 0.0) for peak, said in found if said]
        assert values == sorted(values)
        assert len(values) > 10


def test_runs_that_do_not_agree_change_nothing() -> None:
    _note(-20.0, 200.0)

    assert _at() is None


def test_a_correction_is_bounded() -> None:
    _note(900.0, 900.0)

    assert _at(peak=1000.0) == MemoryCorrection(250.0, 250.0, 250.0, 2)


@pytest.mark.parametrize("kind", ["all weights, rows of one length, fp32", ""])
def test_runs_of_another_kind_say_nothing(kind: str) -> None:
    _note(100.0, 100.0, kind=kind)

    assert residuals_of(NAME, KIND) == NO_RESIDUALS
    assert residuals_of(NAME, "") == NO_RESIDUALS


def test_runs_with_another_torch_say_nothing() -> None:
    _note(100.0, 100.0, versions={"torch": "1.9.0"})

    assert residuals_of(NAME, KIND) == NO_RESIDUALS


def test_a_term_that_is_no_number_is_a_damaged_file() -> None:
    _note(100.0, 100.0)
    path = path_of(NAME)
    path.write_text(path.read_text().replace("600.0", "Infinity"))

    assert residuals_of(NAME, KIND) == Residuals(unread=stored(NAME).note)
    assert "ignored" in stored(NAME).note
