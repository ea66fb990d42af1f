"""The charts of a classifier hold the numbers of scores.json; none where these are missing."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.types import JsonDict
from brimful.report.chart import Chart, Matrix
from brimful.report.page.label_plots import PREFIX, curves_of, label_pictures, points_of
from brimful.runs.parsing import parse
from brimful.runs.scores import LabelScore

MakeScore = Callable[..., JsonDict]
Pictures = dict[str, Any]
MANY = tuple(f"intent {number}" for number in range(24))


def pictures_of(score: JsonDict, validation: JsonDict | None = None) -> Pictures:
    """The charts of a classifier's test split, scored on validation before, by key."""
    scores = {} if validation is None else {"validation": validation}
    found = label_pictures(
        {split: parse(LabelScore, each) for split, each in {**scores, "test": score}.items()}
    )
    return {each.key.removeprefix(PREFIX): each for each in found}


@pytest.fixture(scope="module")
def spam(label_score: MakeScore) -> JsonDict:
    return label_score("ham", "spam", positive="spam")


@pytest.fixture(scope="module")
def drawn(spam: JsonDict, label_score: MakeScore) -> Pictures:
    return pictures_of(spam, label_score("ham", "spam", positive="spam", seed=1))


def test_two_labels_have_all_six_charts_with_named_axes_a_title_and_a_text_alternative(
    drawn: Pictures,
) -> None:
    assert {key: (each.x, each.y) for key, each in drawn.items() if isinstance(each, Chart)} == {
        "roc": ("false positive rate", "recall"),
        "pr": ("recall", "precision"),
        "sweep": ("threshold", "share"),
        "reliability": ("probability given", "share observed"),
        "histogram": ("probability", "texts, log scale"),
    }
    assert isinstance(drawn["confusion"], Matrix)
    assert all(each.title and each.note and len(each.about) >= 20 for each in drawn.values())


def test_charts_tell_the_numbers_they_are_about(
    spam: JsonDict, drawn: Pictures, snapshot: SnapshotAssertion
) -> None:
    assert drawn["confusion"].counts == tuple(map(tuple, spam["confusion"]))
    assert drawn["pr"].levels[0].value == spam["metrics"]["base_rate"]["value"]
    assert f"Area {spam['metrics']['pr_auc']['value']:.3f}" in drawn["pr"].note
    assert drawn["sweep"].uprights[0].name == f"chosen {spam['threshold']['value']:.3f}"
    names = ["precision", "recall", "F1", "F1, validation"]
    assert [each.name for each in drawn["sweep"].series] == names
    assert drawn["sweep"].note == snapshot
    assert f"{spam['metrics']['ece']['value']:.3f}" in drawn["reliability"].title
    bins = drawn["reliability"].series[2]
    assert len(bins.intervals) == len(bins.y) == len(spam["curves"]["reliability"])
    assert [each.name for each in drawn["histogram"].series] == ["ham", "spam"]
    assert all(len(each.x) == len(each.y) + 1 for each in drawn["histogram"].series)


def test_a_threshold_that_gives_nothing_has_no_precision_and_the_rest_is_drawn(
    spam: JsonDict, drawn: Pictures
) -> None:
    assert spam["curves"]["sweep"][-1][1] is None
    precision, recall, *_ = drawn["sweep"].series
    assert precision.y[-1] is None
    assert recall.y[-1] is not None


def test_the_floors_curve_is_drawn_where_it_is_known(
    drawn: Pictures, label_score: MakeScore
) -> None:
    alone = pictures_of(label_score("ham", "spam", positive="spam", floor=False))
    assert [key for key, each in drawn.items() if "Dashed: the floor." in each.note] == [
        "roc",
        "pr",
    ]
    assert not any("Dashed" in each.note for each in alone.values())


def test_more_labels_have_no_threshold_and_a_curve_each_while_they_can_be_told_apart(
    label_score: MakeScore,
) -> None:
    five = pictures_of(label_score("a", "b", "c", "d", "e"))
    assert list(five) == ["confusion", "roc", "pr", "reliability", "histogram"]
    assert {"a", "b", "c", "d", "e"} <= {each.name for each in five["roc"].series}
    assert five["histogram"].uprights == ()
    points = [[0.0, 0.0], [1.0, 1.0]]
    for count in (12, 13):
        by_label = {str(number): {"roc": points} for number in range(count)}
        score = parse(LabelScore, {"curves": {"by_label": by_label}})
        assert len(curves_of(score, "roc")) == count * (count == 12)


def test_long_names_are_cut_and_of_many_labels_no_matrix_is_drawn(label_score: MakeScore) -> None:
    names = tuple(f"a label with a long name {number}" for number in range(8))
    eight = pictures_of(label_score(*names, floor=False))
    assert eight["confusion"].names[0] == "a label with a l..."
    many = pictures_of(label_score(*MANY, floor=False, sharpness=4.0))
    assert list(many) == ["reliability", "histogram"]


def test_several_labels_per_text_have_curves_and_no_matrix(
    label_score: MakeScore, snapshot: SnapshotAssertion
) -> None:
    pictures = pictures_of(label_score("sport", "tax", "war", multiple=True))
    assert list(pictures) == ["roc", "pr", "reliability", "histogram"]
    assert pictures["reliability"].note == snapshot


@pytest.mark.parametrize(
    "curves",
    [
        None,
        {},
        {
            "roc": [],
            "pr": [[0.5, None]],
            "sweep": [[1]],
            "reliability": [{"low": None}],
            "histogram": {"edges": [0]},
        },
    ],
)
def test_missing_numbers_leave_charts_out_and_break_nothing(
    label_score: MakeScore, curves: object
) -> None:
    score = label_score("ham", "spam", positive="spam") | {
        "curves": curves,
        "metrics": None,
        "confusion": None,
        "threshold": None,
    }
    assert pictures_of(score) == {}


def test_counts_and_shares_that_cannot_be_are_left_out(label_score: MakeScore) -> None:
    score = label_score("ham", "spam", positive="spam")
    score["confusion"][0][0] = -5
    for place, odd in enumerate(({"share": 7.0}, {"share": -1.0}, {"count": 1e308}, {"count": 0})):
        score["curves"]["reliability"][place] |= odd
    found = pictures_of(score)
    assert "confusion" not in found
    assert f"in {len(score['curves']['reliability']) - 4} bins" in found["reliability"].note


def test_points_need_two_rows_of_the_same_length_and_keep_what_is_not_known_as_nan() -> None:
    assert points_of([(0.0, 1.0)], 2) is points_of([(0.0,), (1.0,)], 2) is None
    points = points_of([(0.0, None), (1.0, 2.0)], 2)
    assert points is not None
    assert np.isnan(points[0, 1])
