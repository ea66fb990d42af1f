"""What is told about a classifier is what scikit-learn finds on the examples that count, beside a
floor and without repeated texts.
"""

import json
from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses
from scipy.special import expit, softmax
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    log_loss,
    multilabel_confusion_matrix,
    precision_score,
    recall_score,
    roc_auc_score,
)

from brimful.base.arrays import Array, Floats
from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.classification.calibration import LabelCalibration, choose_calibration
from brimful.data.labelled import LabelledSplit
from brimful.data.labels import Labels
from brimful.evaluation.label_scores import (
    Rival,
    objective,
    quick_metrics,
    score_labels,
)

BINARY = Labels(("ham", "spam"), False, 1)
FOUR = Labels(("a", "b", "c", "d"), False, None)
SEVERAL = Labels(("a", "b", "c"), True, None)
KINDS = pytest.mark.parametrize(
    "labels", [BINARY, FOUR, SEVERAL], ids=["two labels", "four", "several per text"]
)


def _split(
    labels: Labels, num: int = 200, *, repeated: int = 0, seed: int = 0
) -> tuple[Floats, LabelledSplit]:
    """Logits and a split whose first texts repeat training texts."""
    generator = np.random.default_rng(seed)
    count = len(labels.names)
    targets: Array = (
        (generator.random((num, count)) < 0.4).astype(np.float32)
        if labels.multiple
        else generator.integers(count, size=num)
    )
    true_EC = targets if labels.multiple else np.eye(count)[targets]
    logits_EC = 3 * true_EC - 1.5 + 2 * generator.normal(size=(num, count))
    texts, wheres = (
        tuple(f"text {number}" for number in range(num)),
        tuple(f"test.csv:{number + 2}" for number in range(num)),
    )
    return logits_EC, LabelledSplit(texts, targets, wheres, np.arange(num) < repeated)


def _scored(
    labels: Labels, *, repeated: int = 0, policy: str = "best_f1", floor: Rival | None = None
) -> tuple[JsonDict, Floats, LabelledSplit]:
    """The record, calibrated probabilities and the split."""
    calibration = choose_calibration(*_validation(labels), labels, policy)
    logits_EC, split = _split(labels, repeated=repeated)
    scores, _ = score_labels(
        logits_EC, split, labels=labels, calibration=calibration, seconds=1.5, floor=floor
    )
    return scores, calibration.probabilities(logits_EC, multiple=labels.multiple), split


def _validation(labels: Labels) -> tuple[Floats, Array]:
    logits_EC, split = _split(labels, seed=1)
    return logits_EC, split.targets


def test_two_labels_score_as_in_scikit_learn_at_the_threshold() -> None:
    scores, probability_EC, split = _scored(BINARY, policy="recall>=0.9")
    threshold = scores["threshold"]["value"]
    true_E, given_E, positive_E = (
        split.targets,
        (probability_EC[:, 1] >= threshold).astype(int),
        probability_EC[:, 1],
    )

    expected = {
        "accuracy": accuracy_score(true_E, given_E),
        "macro_f1": f1_score(true_E, given_E, average="macro"),
        "f1": f1_score(true_E, given_E),
        "precision": precision_score(true_E, given_E),
        "recall": recall_score(true_E, given_E),
        "roc_auc": roc_auc_score(true_E, positive_E),
        "pr_auc": average_precision_score(true_E, positive_E),
        "base_rate": true_E.mean(),
        "brier": brier_score_loss(true_E, positive_E),
    }
    assert {name: scores["metrics"][name]["value"] for name in expected} == pytest.approx(expected)
    assert scores["metrics_at_half"]["f1"]["value"] == pytest.approx(
        f1_score(true_E, positive_E > 0.5)
    )
    assert scores["metrics_at_half"]["f1"]["value"] != scores["metrics"]["f1"]["value"]
    assert scores["loss"] == pytest.approx(log_loss(true_E, probability_EC))
    assert scores["confusion"] == confusion_matrix(true_E, given_E).tolist()
    assert [scores["by_label"][name]["support"] for name in BINARY.names] == [
        (true_E == number).sum() for number in (0, 1)
    ]
    assert scores["by_label"]["ham"]["precision"]["value"] == pytest.approx(
        precision_score(true_E, given_E, pos_label=0)
    )


def test_more_labels_take_the_likeliest_and_several_each_by_its_own_threshold() -> None:
    four, probability_EC, split = _scored(FOUR)
    several, several_EC, several_split = _scored(SEVERAL)
    given_EC = several_EC >= several["threshold"]["value"]

    assert four["metrics"]["macro_f1"]["value"] == pytest.approx(
        f1_score(split.targets, probability_EC.argmax(1), average="macro")
    )
    assert four["metrics"]["roc_auc"]["value"] == pytest.approx(
        roc_auc_score(split.targets, probability_EC, multi_class="ovr")
    )
    assert four["confusion"] == confusion_matrix(split.targets, probability_EC.argmax(1)).tolist()
    assert several["metrics"]["accuracy"]["value"] == pytest.approx(
        accuracy_score(several_split.targets, given_EC)
    )
    assert several["metrics"]["pr_auc"]["value"] == pytest.approx(
        average_precision_score(several_split.targets, several_EC)
    )
    assert (
        list(several["confusion"].values())
        == multilabel_confusion_matrix(several_split.targets, given_EC).tolist()
    )
    assert several["metrics_at_half"]["macro_f1"]["value"] == pytest.approx(
        f1_score(several_split.targets, several_EC >= 0.5, average="macro")
    )
    assert "f1" not in four["metrics"]
    assert "base_rate" not in several["metrics"]


@KINDS
def test_every_interval_holds_its_value_and_everything_is_json(labels: Labels) -> None:
    scores, *_ = _scored(labels, repeated=40)
    value = json.loads(json.dumps(scores, allow_nan=False))

    every = [
        *value["metrics"].values(),
        *value["metrics_at_half"].values(),
        *value["metrics_with_repeated"].values(),
    ]
    every += [
        value["by_label"][name][metric]
        for name in labels.names
        for metric in ("precision", "recall", "f1")
    ]
    assert all(score["low"] <= score["value"] <= score["high"] for score in every)
    assert value["loss_interval"]["low"] < value["loss"] < value["loss_interval"]["high"]
    assert (value["kind"], value["labels"], value["multiple"], value["seconds"]) == (
        "labels",
        list(labels.names),
        labels.multiple,
        1.5,
    )
    assert value["positive"] == ("spam" if labels is BINARY else None)
    calibration = choose_calibration(*_validation(labels), labels, "best_f1")
    assert value["temperature"] == calibration.temperature
    assert isinstance(
        value["threshold"] and value["threshold"]["value"],
        {BINARY: float, FOUR: type(None), SEVERAL: list}[labels],
    )
    assert value["floor"] is None


def test_texts_that_repeat_training_texts_count_only_where_it_is_said() -> None:
    scores, _, split = _scored(BINARY, repeated=60)
    logits_EC, _ = _split(BINARY)
    calibration = choose_calibration(*_validation(BINARY), BINARY, "best_f1")
    rest = LabelledSplit(
        split.texts[60:], split.targets[60:], split.wheres[60:], np.zeros(140, bool)
    )
    alone, nats_E = score_labels(
        logits_EC[60:], rest, labels=BINARY, calibration=calibration, seconds=1.5
    )
    everything, *_ = _scored(BINARY)

    assert scores["loss"] == pytest.approx(nats_E.mean())
    assert scores["metrics_with_repeated"] == everything["metrics"]
    assert scores == alone | {
        "repeated": 60,
        "metrics_with_repeated": scores["metrics_with_repeated"],
    }
    assert (scores["examples"], alone["metrics_with_repeated"]) == (140, None)


def test_where_every_text_is_repeated_nothing_is_left_to_be_said_but_the_metrics_with_them() -> (
    None
):
    scores, *_ = _scored(BINARY, repeated=200)

    value = json.loads(json.dumps(scores, allow_nan=False))

    assert value["examples"] == 0
    assert value["metrics"]["f1"] == {"value": None, "low": None, "high": None}
    assert value["metrics_with_repeated"]["f1"]["value"] > 0.5


def test_the_floor_is_scored_on_the_same_examples_and_compared_pair_by_pair() -> None:
    logits_EC, split = _split(BINARY, repeated=20)
    worse_EC = logits_EC + 3 * np.random.default_rng(9).normal(size=logits_EC.shape)
    calibration = choose_calibration(*_validation(BINARY), BINARY, "best_f1")
    floor = Rival("a noisy copy", worse_EC, calibration, {"noise": 3})

    with_floor, *_ = _scored(BINARY, repeated=20, floor=floor)
    alone, _ = score_labels(worse_EC, split, labels=BINARY, calibration=calibration, seconds=0)

    told = with_floor["floor"]
    assert told["metrics"] == alone["metrics"]
    assert told["curves"] == {name: alone["curves"][name] for name in ("roc", "pr", "by_label")}
    assert told["curves"]["pr"]
    assert (told["name"], told["settings"], set(told["difference"])) == (
        "a noisy copy",
        {"noise": 3},
        {"f1", "macro_f1", "accuracy", "pr_auc"},
    )
    for name, difference in told["difference"].items():
        assert difference["value"] == pytest.approx(
            with_floor["metrics"][name]["value"] - alone["metrics"][name]["value"]
        )
        assert 0 < difference["low"] < difference["value"] < difference["high"]


def test_mistakes_are_told_from_the_most_confident_down() -> None:
    scores, probability_EC, split = _scored(BINARY)
    given_E = (probability_EC[:, 1] >= scores["threshold"]["value"]).astype(int)
    wrong = [number for number in range(200) if given_E[number] != split.targets[number]]
    wrong.sort(key=lambda number: -probability_EC[number, given_E[number]])

    assert [mistake["where"] for mistake in scores["mistakes"]] == [
        split.wheres[number] for number in wrong[:20]
    ]
    first = scores["mistakes"][0]
    assert first["text"] == split.texts[wrong[0]]
    assert (first["label"], first["predicted"]) == tuple(
        BINARY.names[number] for number in (split.targets[wrong[0]], given_E[wrong[0]])
    )
    assert first["probability"] == pytest.approx(probability_EC[wrong[0], given_E[wrong[0]]])


def test_mistakes_of_several_labels_name_them_all_and_long_texts_are_cut() -> None:
    split = LabelledSplit(
        ("x" * 600, "fine"),
        np.array([[1, 1, 0], [0, 0, 1]], np.float32),
        ("a:1", "a:2"),
        np.zeros(2, bool),
    )
    unset = LabelCalibration(
        1.0,
        None,
        "0.5",
        choose_calibration(np.zeros((0, 3)), np.zeros((0, 3)), SEVERAL, "0.5").thresholds,
    )
    logits_EC = np.array([[-4.0, -1.0, -3.0], [-3.0, -3.0, 3.0]])

    scores, _ = score_labels(logits_EC, split, labels=SEVERAL, calibration=unset, seconds=0)
    (mistake,) = scores["mistakes"]

    assert (mistake["label"], mistake["predicted"], mistake["where"]) == ("a, b", "(none)", "a:1")
    assert mistake["probability"] == pytest.approx(expit(4.0))
    assert mistake["text"] == "x" * 499 + "…"


def test_a_split_without_the_positive_label_tells_what_is_undefined() -> None:
    logits_EC, split = _split(BINARY, 30)
    none = LabelledSplit(split.texts, np.zeros(30, np.int64), split.wheres, split.is_repeated_E)

    value, _ = score_labels(
        logits_EC,
        none,
        labels=BINARY,
        calibration=LabelCalibration(1.0, None, "0.5", _half()),
        seconds=0,
    )

    assert [value["metrics"][name]["value"] for name in ("recall", "roc_auc", "pr_auc")] == [
        None,
        None,
        None,
    ]
    assert value["metrics"]["base_rate"]["value"] == 0
    assert value["curves"]["roc"] == value["curves"]["pr"] == []


def _half() -> tuple[Any, ...]:
    return choose_calibration(np.zeros((0, 2)), np.zeros(0, np.int64), BINARY, "0.5").thresholds


def test_logits_that_are_not_finite_are_an_error_that_names_the_first_text(
    refuses: Refuses,
) -> None:
    logits_EC, split = _split(BINARY, 10)
    logits_EC[3, 0] = np.nan

    with refuses(RequestError, names=["10", "test.csv:5"]):
        score_labels(
            logits_EC,
            split,
            labels=BINARY,
            calibration=LabelCalibration(1.0, None, "0.5", _half()),
            seconds=0,
        )


@KINDS
def test_quick_metrics_are_those_of_the_likeliest_label(labels: Labels) -> None:
    logits_EC, split = _split(labels)
    probability_EC = expit(logits_EC) if labels.multiple else softmax(logits_EC, axis=1)
    given = (probability_EC >= 0.5) if labels.multiple else probability_EC.argmax(1)

    found = quick_metrics(logits_EC, split.targets, labels)

    assert found["accuracy"] == pytest.approx(accuracy_score(split.targets, given))
    assert found["macro_f1"] == pytest.approx(f1_score(split.targets, given, average="macro"))
    assert set(found) == {"loss", "accuracy", "macro_f1", "roc_auc", "pr_auc"} | (
        {"f1", "precision", "recall"} if labels is BINARY else set()
    ) | ({"best_f1"} if labels is BINARY or labels.multiple else set())
    if labels is BINARY:
        assert found["f1"] == pytest.approx(f1_score(split.targets, given))
        assert found["pr_auc"] == pytest.approx(
            average_precision_score(split.targets, probability_EC[:, 1])
        )
        assert found["loss"] == pytest.approx(log_loss(split.targets, probability_EC))


def test_quick_metrics_of_a_model_that_never_gives_the_positive_label() -> None:
    found = quick_metrics(np.tile([2.0, -2.0], (10, 1)), np.arange(10) % 2, BINARY)

    assert (found["f1"], found["precision"], found["recall"], found["roc_auc"]) == (
        0.0,
        0.0,
        0.0,
        0.5,
    )


def test_quick_metrics_leave_out_what_is_undefined_or_not_a_number() -> None:
    one_label = quick_metrics(np.tile([2.0, -2.0], (10, 1)), np.zeros(10, np.int64), BINARY)
    broken = quick_metrics(np.array([[np.nan, 0.0], [1.0, 0.0]]), np.array([0, 1]), BINARY)

    assert not {"f1", "recall", "roc_auc", "pr_auc"} & one_label.keys()
    assert one_label["accuracy"] == 1.0
    assert broken.keys() == {"loss"}
    assert [objective(broken, name, BINARY) for name in ("auto", "loss")] == [np.inf, np.inf]


def test_the_objective_falls_as_the_metric_improves() -> None:
    metrics = {"loss": 0.3, "f1": 0.0, "best_f1": 0.8, "macro_f1": 0.7, "accuracy": 0.9}

    assert objective(metrics, "auto", BINARY) == objective(metrics, "auto", SEVERAL) == -0.8
    assert objective(metrics, "auto", FOUR) == -0.7
    assert objective(metrics, "loss", BINARY) == 0.3
    assert objective(metrics, "roc_auc", BINARY) == np.inf


@pytest.mark.parametrize(("labels", "told"), [(FOUR, "4 labels"), (SEVERAL, "several per text")])
def test_f1_without_a_positive_label_is_an_error(
    labels: Labels, told: str, refuses: Refuses
) -> None:
    with refuses(RequestError, names=[told, "macro_f1"]):
        objective({}, "f1", labels)
