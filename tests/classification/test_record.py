"""What a classifier needs beside its weights: written and read back, and other thresholds out of
it.
"""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from drawn_labels import drawn_labels
from fixture_types import Refuses

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.rundir import write_json_atomically
from brimful.classification.calibration import choose_calibration
from brimful.classification.record import (
    RECORD_FILE,
    VALIDATION_FILE,
    ClassifierRecord,
    load_record,
    save_classifier,
)


def _record(
    *, names: tuple[str, ...] = ("ham", "spam"), multiple: bool = False, policy: str = "best_f1"
) -> ClassifierRecord:
    labels, logits_EC, targets = drawn_labels(names, multiple=multiple, count=200, seed=5, gain=1)
    weights = np.log(np.arange(1, len(names) + 1))
    return ClassifierRecord(
        labels,
        choose_calibration(logits_EC, targets, labels, policy, weights),
        ("nfc",),
        {"nfc": ""},
        192,
        logits_EC,
        targets,
    )


@pytest.mark.parametrize(
    "record",
    [_record(), _record(names=("a", "b", "c")), _record(names=("a", "b", "c"), multiple=True)],
    ids=["two", "three", "multiple"],
)
def test_a_record_comes_back_as_it_was_written(record: ClassifierRecord, tmp_path: Path) -> None:
    save_classifier(tmp_path, record)
    found = load_record(tmp_path)

    assert found.labels == record.labels
    assert found.calibration == record.calibration
    assert (found.preprocess, found.preprocess_identity, found.max_tokens) == (
        ("nfc",),
        {"nfc": ""},
        192,
    )
    np.testing.assert_array_equal(found.validation_logits_EC, record.validation_logits_EC)
    np.testing.assert_array_equal(found.validation_targets, record.validation_targets)
    assert found.validation_targets.dtype == record.validation_targets.dtype


def test_writing_again_replaces_both_files_and_leaves_nothing_else(tmp_path: Path) -> None:
    save_classifier(tmp_path, _record())
    save_classifier(tmp_path, _record(policy="recall>=0.9"))

    assert load_record(tmp_path).calibration.policy == "recall>=0.9"
    assert sorted(os.listdir(tmp_path)) == [RECORD_FILE, VALIDATION_FILE]


def test_another_threshold_is_chosen_on_the_kept_validation_texts(tmp_path: Path) -> None:
    save_classifier(tmp_path, _record())
    record = load_record(tmp_path)

    strict = record.with_threshold("precision >= 0.9").calibration
    loose = record.with_threshold("recall>=0.95").calibration
    fixed = record.with_threshold("0.4").calibration

    given_E = (
        strict.probabilities(record.validation_logits_EC, multiple=False)[:, 1]
        >= strict.thresholds[0].value
    )
    assert record.validation_targets[given_E].mean() >= 0.9
    assert strict.thresholds[0].value > loose.thresholds[0].value
    assert (fixed.policy, fixed.thresholds[0].value) == ("0.4", 0.4)
    assert strict.temperature == record.calibration.temperature


def test_the_recipes_own_policy_gives_the_stored_thresholds_again() -> None:
    for record in (_record(policy="recall>=0.9"), _record(names=("a", "b"), multiple=True)):
        assert record.with_threshold(record.calibration.policy) == record


def test_several_labels_get_a_threshold_each() -> None:
    assert (
        len(
            _record(names=("a", "b", "c"), multiple=True)
            .with_threshold("recall>=0.8")
            .calibration.thresholds
        )
        == 3
    )


def test_the_likeliest_of_three_labels_takes_no_threshold(refuses: Refuses) -> None:
    with refuses(RequestError, names=["3 labels"]):
        _record(names=("a", "b", "c")).with_threshold("0.7")


def test_an_unknown_policy_is_told_with_those_there_are(refuses: Refuses) -> None:
    with refuses(RequestError):
        _record().with_threshold("best")


def test_a_run_without_a_record_says_what_to_do(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError, names=["classifier.json"]):
        load_record(tmp_path)


def test_two_files_that_do_not_belong_together_are_refused(
    tmp_path: Path, refuses: Refuses
) -> None:
    save_classifier(tmp_path, _record())
    (tmp_path / "other").mkdir()
    save_classifier(tmp_path / "other", _record(names=("a", "b", "c")))
    os.replace(tmp_path / "other" / VALIDATION_FILE, tmp_path / VALIDATION_FILE)

    with refuses(RunFolderError):
        load_record(tmp_path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"schema": 99}, "another version"),
        ({"labels": None}, "damaged"),
        ({"temperature": "warm"}, "cannot be read"),
        ({"temperature": 0}, "must be above 0"),
        ({"max_tokens": "many"}, "damaged"),
        ({"labels": ["a", "b", "c"]}, "do not belong together"),
        ({"validation": {}}, "damaged"),
    ],
)
def test_a_damaged_record_is_an_error_that_says_to_train_again(
    change: dict[str, object], told: str, tmp_path: Path
) -> None:
    save_classifier(tmp_path, _record())
    path = tmp_path / RECORD_FILE
    values = json.loads(path.read_text()) | change
    path.write_text(json.dumps(values))
    with pytest.raises(RunFolderError, match="checksum") as raised:
        load_record(tmp_path)
    assert "train" in str(raised.value).lower()

    write_json_atomically(path, values, with_checksum=True)

    with pytest.raises(RunFolderError, match=told) as raised:
        load_record(tmp_path)
    assert "train" in str(raised.value).lower()


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError):
        save_classifier(tmp_path / "nowhere", _record())
