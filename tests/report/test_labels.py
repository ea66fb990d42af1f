"""What a classifier's scores tell as text: nothing is invented where a value is not known, and luck
is called luck.
"""

import copy
from collections.abc import Callable

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.labels import (
    calibration_sentence,
    choice_sentences,
    confused_pairs,
    confusion,
    confusion_table,
    count_sentence,
    floor_sentence,
    label_table,
    main_split,
    metric_table,
    metrics_of,
    mistake_table,
    names_in_words,
    threshold_sentence,
    verdict,
)
from brimful.runs.parsing import parse
from brimful.runs.scores import LabelScore, read_scores

MakeScore = Callable[..., JsonDict]
MANY = tuple(f"intent {number}" for number in range(24))


def typed(score: JsonDict) -> LabelScore:
    return parse(LabelScore, score)


@pytest.fixture
def spam(label_score: MakeScore) -> JsonDict:
    return copy.deepcopy(label_score("ham", "spam", positive="spam"))


def test_test_is_the_split_that_counts_and_splits_of_other_kinds_are_left_aside(
    spam: JsonDict,
) -> None:
    scores = {"test": spam, "validation": spam, "held out": {"loss": 2.0}, "broken": 3}
    assert list(read_scores(scores).labels) == ["validation", "test"]
    assert main_split(read_scores(scores)) == "test"
    assert main_split(read_scores({"validation": spam})) == "validation"
    assert main_split(read_scores({"validation": {"loss": 2.0}})) is None


def test_every_metric_stands_beside_the_floors_with_intervals_and_the_paired_difference(
    spam: JsonDict,
) -> None:
    spam["metrics"]["f1"] = {"value": 0.9421, "low": 0.91, "high": 0.968}
    spam["floor"]["metrics"]["f1"] = {"value": 0.9205, "low": 0.88, "high": 0.95}
    spam["floor"]["difference"]["f1"] = {"value": 0.0216, "low": 0.0008, "high": 0.044}
    spam["metrics_with_repeated"]["f1"] = {"value": 0.95, "low": 0.9, "high": 1.0}

    row = metrics_of(typed(spam))[0]

    assert (row.key, row.name) == ("f1", "F1 of spam")
    assert [str(each) for each in (row.value, row.floor, row.difference, row.repeated)] == [
        "94.2% [91.0%, 96.8%]",
        "92.0% [88.0%, 95.0%]",
        "+2.2 points [+0.1, +4.4]",
        "95.0%",
    ]


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (0.001, 0.05, "better"),
        (-0.05, -0.001, "worse"),
        (-0.01, 0.05, "within chance"),
        (0.0, 0.05, "within chance"),
    ],
)
def test_a_difference_is_real_where_its_interval_leaves_out_0(
    spam: JsonDict, low: float, high: float, told: str
) -> None:
    spam["floor"]["difference"] = {"pr_auc": {"value": (low + high) / 2, "low": low, "high": high}}
    found = {row.key: row.difference.note for row in metrics_of(typed(spam))}
    assert found["pr_auc"] == told
    assert found["f1"] == ""


def test_the_area_under_precision_and_recall_names_the_base_rate_and_areas_are_no_percentages(
    spam: JsonDict,
) -> None:
    spam["metrics"] |= {
        "base_rate": {"value": 0.134, "low": 0.1, "high": 0.2},
        "pr_auc": {"value": 0.9785, "low": 0.95, "high": 0.99},
    }
    rows = {row.key: row for row in metrics_of(typed(spam))}
    assert (rows["pr_auc"].name, str(rows["pr_auc"].value)) == (
        "PR-AUC (base rate 0.134)",
        "0.979 [0.950, 0.990]",
    )
    assert "base_rate" not in rows


@pytest.mark.parametrize("nothing", [None, {"value": None, "low": None, "high": None}])
def test_a_metric_that_is_not_known_is_left_out_and_one_without_an_interval_stands_alone(
    spam: JsonDict, nothing: object
) -> None:
    spam["metrics"] |= {"f1": nothing, "accuracy": {"value": 0.5, "low": None, "high": None}}
    spam |= {"floor": None, "metrics_with_repeated": None}
    rows = {row.key: row for row in metrics_of(typed(spam))}
    assert "f1" not in rows
    accuracy = rows["accuracy"]
    assert [str(each) for each in (accuracy.value, accuracy.floor, accuracy.repeated)] == [
        "50.0%",
        "",
        "",
    ]


def test_scores_without_anything_in_them_break_nothing() -> None:
    empty: JsonDict = {"kind": "labels", "labels": ["a", "b"]}
    assert metrics_of(typed(empty)) == []
    assert metric_table(typed(empty)) is mistake_table(typed(empty), 9) is None
    assert (
        label_table(typed(empty)),
        confusion_table(typed(empty)),
        confused_pairs(typed(empty)),
    ) == (None, None, None)
    assert (
        threshold_sentence(typed(empty))
        == calibration_sentence(typed(empty))
        == floor_sentence(typed(empty))
        == verdict(read_scores({"test": empty}))
        == ""
    )
    assert count_sentence(typed(empty)) == "texts"


def test_the_threshold_tells_its_policy_where_it_was_chosen_and_what_even_odds_would_give(
    spam: JsonDict,
    snapshot: SnapshotAssertion,
) -> None:
    spam["threshold"] = {
        "policy": "precision>=0.95",
        "value": 0.4321,
        "chosen_on": "validation",
        "notes": ["spam: 0.95 is not reached"],
    }
    spam["metrics_at_half"] = {
        "f1": {"value": 0.9, "low": 0.8, "high": 1.0},
        "macro_f1": 0.8,
        "precision": None,
    }
    assert threshold_sentence(typed(spam)) == snapshot
    assert choice_sentences(typed(spam), "test")[1] == snapshot
    spam["threshold"]["policy"] = "0.25"
    assert threshold_sentence(typed(spam)) == snapshot
    assert threshold_sentence(typed(spam | {"threshold": None})) == ""


@pytest.mark.parametrize(
    ("temperature", "told"),
    [(1.31, "too sure of itself before"), (0.5, "too unsure before"), (1.01, "hardly needed")],
)
def test_the_temperature_says_which_way_probabilities_were_off(
    temperature: float, told: str
) -> None:
    assert (
        calibration_sentence(typed({"temperature": temperature}))
        == f"Probabilities are calibrated with temperature {temperature:.2f}, fitted on validation"
        f" ({told})."
    )


def test_settings_of_the_floor_read_as_words(snapshot: SnapshotAssertion) -> None:
    settings = {"num_features": 41655, "converged": True, "weights": None}
    assert (
        floor_sentence(typed({"floor": {"name": "bag of words", "settings": settings}})) == snapshot
    )


def test_of_many_labels_the_most_confused_pairs_and_the_worst_labels_come_first(
    label_score: MakeScore,
) -> None:
    score = copy.deepcopy(label_score(*MANY, floor=False, sharpness=4.0))
    for row in score["confusion"]:
        row[:] = [0] * len(row)
    (
        score["confusion"][3][7],
        score["confusion"][7][7],
        score["confusion"][5][0],
        score["confusion"][3][3],
    ) = (
        6,
        9,
        2,
        4,
    )
    pairs, labels = confused_pairs(typed(score)), label_table(typed(score))
    assert confusion_table(typed(score)) is None
    assert pairs is not None
    assert pairs.text_rows == (
        ("intent 3", "intent 7", "6", "60.0% of 10"),
        ("intent 5", "intent 0", "2", "100.0% of 2"),
    )
    assert labels is not None
    worst = min(MANY, key=lambda name: score["by_label"][name]["f1"]["value"])
    assert labels.text_rows[0][0] == worst
    assert len(labels.text_rows) == len(MANY)


def test_a_label_without_texts_has_dashes(spam: JsonDict) -> None:
    spam["by_label"]["ham"] = {
        "precision": {"value": 0.0, "low": 0.0, "high": 0.2},
        "recall": {"value": None},
        "f1": None,
        "support": 0,
    }
    table = label_table(typed(spam))
    assert table is not None
    assert table.text_rows[0] == ("ham", "0.0% [0.0%, 20.0%]", "-", "-", "0")


def test_a_matrix_that_does_not_fit_the_labels_is_none(spam: JsonDict) -> None:
    for wrong in (None, [[1]], [[1, 2], [3]], [[1, 2], [3, None]], "x"):
        assert confusion(typed(spam | {"confusion": wrong})) is None


def test_mistakes_keep_their_order_and_lists_of_labels_are_joined() -> None:
    records = [
        {"text": "a", "label": ["x", "y"], "predicted": [], "probability": 0.99, "where": "f:1"},
        "broken",
        {"text": None},
    ]
    table = mistake_table(typed({"mistakes": records}), 9)
    assert table is not None
    assert table.text_rows == (("a", "x, y", "none", "0.990"), ("(empty)", "-", "-", "-"))


def test_the_verdict_tells_the_main_metric_of_test_and_how_far_it_is_from_the_floor(
    spam: JsonDict, label_score: MakeScore, snapshot: SnapshotAssertion
) -> None:
    spam["metrics"] |= {
        name: {"value": value, "low": value - 0.02, "high": value + 0.02}
        for name, value in (("f1", 0.9), ("accuracy", 0.97), ("pr_auc", 0.95), ("base_rate", 0.2))
    }
    spam["floor"]["difference"]["f1"] = {"value": -0.012, "low": -0.03, "high": 0.01}
    assert (
        verdict(
            read_scores(
                {"validation": label_score("ham", "spam", positive="spam", seed=1), "test": spam}
            )
        )
        == snapshot
    )
    assert verdict(read_scores({"test": label_score("a", "b", "c")})) == snapshot


def test_labels_are_named_while_they_are_few() -> None:
    assert [names_in_words(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"], MANY)] == [
        "labels",
        "a",
        "a and b",
        "a, b and c",
        "24 labels",
    ]
