"""What was chosen on validation is kept and used again as it was."""

import json
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.types import JsonDict
from brimful.classification.calibration import (
    LabelCalibration,
    choose_calibration,
    choose_thresholds,
)
from brimful.data.labels import Labels

BINARY = Labels(("ham", "spam"), False, 1)
THREE = Labels(("a", "b", "c"), False, None)
SEVERAL = Labels(("a", "b", "c"), True, None)


def _validation(labels: Labels, num: int = 300) -> tuple[Any, Any]:
    generator = np.random.default_rng(5)
    count = len(labels.names)
    targets = (
        (generator.random((num, count)) < 0.4).astype(np.float32)
        if labels.multiple
        else generator.integers(count, size=num)
    )
    true_EC = targets if labels.multiple else np.eye(count)[targets]
    return 4 * true_EC - 2 + 2 * generator.normal(size=(num, count)), targets


@pytest.mark.parametrize(
    ("labels", "thresholds"),
    [(BINARY, 1), (THREE, 0), (SEVERAL, 3)],
    ids=["two labels", "three", "several per text"],
)
def test_there_is_a_threshold_for_each_decision_and_it_survives_json(
    labels: Labels, thresholds: int
) -> None:
    logits_EC, targets = _validation(labels)
    chosen = choose_calibration(
        logits_EC, targets, labels, "recall>=0.9", np.log(np.arange(1.0, len(labels.names) + 1))
    )

    assert len(chosen.thresholds) == thresholds
    assert all(
        threshold.recall is not None and threshold.recall >= 0.9 for threshold in chosen.thresholds
    )
    assert (
        LabelCalibration.from_json(json.loads(json.dumps(chosen.to_json(), allow_nan=False)))
        == chosen
    )


def test_thresholds_are_told_with_what_they_do_on_validation_ten_at_most(
    snapshot: SnapshotAssertion,
) -> None:
    many = Labels(tuple(f"label {number}" for number in range(12)), True, None)
    one, twelve = (
        choose_calibration(*_validation(labels), labels, "recall>=0.9") for labels in (BINARY, many)
    )
    (threshold,) = one.thresholds

    assert one.lines(BINARY) == [
        f"spam from a probability of {threshold.value:.3g} on: recall>=0.9; on validation precision"
        f" {threshold.precision:.3f}, recall {threshold.recall:.3f}"
    ]
    assert len(twelve.lines(many)) == 11
    assert twelve.lines(many)[-1] == snapshot
    assert choose_calibration(*_validation(THREE), THREE, "best_f1").lines(THREE) == []


def test_weights_are_taken_off_before_the_temperature_is_fitted() -> None:
    logits_EC, targets = _validation(BINARY)
    log_weights_C = np.array([0.0, 1.5])

    plain = choose_calibration(logits_EC, targets, BINARY, "best_f1", np.zeros(2))
    weighted = choose_calibration(
        logits_EC + log_weights_C, targets, BINARY, "best_f1", log_weights_C
    )

    assert weighted.temperature == pytest.approx(plain.temperature, rel=1e-4)
    assert weighted.probabilities(logits_EC + log_weights_C, multiple=False) == pytest.approx(
        plain.probabilities(logits_EC, multiple=False), abs=1e-4
    )
    assert weighted.bias == pytest.approx(plain.bias, abs=1e-3)
    assert LabelCalibration.from_json(weighted.to_json()) == weighted
    assert weighted.thresholds[0].value == pytest.approx(plain.thresholds[0].value, abs=1e-4)


def test_calibrated_probabilities_match_the_share_that_happens() -> None:
    logits_EC, targets = _validation(BINARY, 4000)
    chosen = choose_calibration(3 * logits_EC, targets, BINARY, "best_f1")

    given_E = chosen.probabilities(3 * logits_EC, multiple=False)[:, 1]
    for low, high in ((0.1, 0.3), (0.4, 0.6), (0.7, 0.9)):
        inside_E = (given_E >= low) & (given_E < high)
        assert (targets[inside_E] == 1).mean() == pytest.approx(given_E[inside_E].mean(), abs=0.1)


def test_decisions_follow_the_thresholds() -> None:
    logits_EC, targets = _validation(BINARY)
    chosen = choose_calibration(logits_EC, targets, BINARY, "precision>=0.95")
    given_EC = chosen.probabilities(logits_EC, multiple=False)

    assert (chosen.decide(given_EC, BINARY) == (given_EC[:, 1] >= chosen.thresholds[0].value)).all()
    assert choose_thresholds("precision>=0.95", given_EC, targets, BINARY) == chosen.thresholds


def test_what_was_not_reached_is_told_by_label(snapshot: SnapshotAssertion) -> None:
    targets = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
    chosen = choose_calibration(np.zeros((2, 3)), targets, SEVERAL, "precision>=0.9")

    notes = chosen.notes(SEVERAL)

    assert [note.partition(":")[0] for note in notes] == ["a", "b", "c"]
    assert notes[0] == snapshot
    assert notes[2] == snapshot


def test_no_validation_examples_leave_everything_as_the_model_says() -> None:
    chosen = choose_calibration(np.zeros((0, 2)), np.zeros(0, np.int64), BINARY, "best_f1")

    assert (chosen.temperature, chosen.thresholds[0].value, chosen.thresholds[0].reached) == (
        1.0,
        0.5,
        False,
    )


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"temperature": None},
        {"thresholds": [{"value": 1}]},
        {"log_weights": [None]},
    ],
)
def test_a_damaged_record_is_an_error_that_says_so(change: JsonDict) -> None:
    logits_EC, targets = _validation(BINARY)
    record = choose_calibration(logits_EC, targets, BINARY, "best_f1").to_json()

    with pytest.raises(RunFolderError, match=r"calibration of this classifier.*[Tt]rain again"):
        LabelCalibration.from_json(record | change)
