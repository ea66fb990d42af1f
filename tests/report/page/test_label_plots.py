"""The figures of a classifier: every one valid, themable SVG with axes that say what they are; none
where its numbers are missing.
"""

import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.report.drawing import VARIABLES
from brimful.report.page.label_axes import PREFIX, Picture, short
from brimful.report.page.label_plots import label_pictures
from brimful.runs.parsing import parse
from brimful.runs.scores import LabelScore

MakeScore = Callable[..., dict[str, Any]]
HOSTILE = '<b>$\\frac"'
MANY = tuple(f"intent {number}" for number in range(24))


def texts(picture: Picture) -> list[str]:
    return [
        "".join(element.itertext()).strip()
        # Drawn here.
        for element in Xml.fromstring(picture.drawing.wide).iter()  # noqa: S314
        if element.tag.endswith("}text")
    ]


def key_of(picture: Picture) -> str:
    return picture.drawing.key.removeprefix(PREFIX)


def pictures_of(score: dict[str, Any], validation: dict[str, Any] | None = None) -> list[Picture]:
    """The figures of a classifier's test split, scored on validation before."""
    scores = {} if validation is None else {"validation": validation}
    return label_pictures(
        {split: parse(LabelScore, each) for split, each in {**scores, "test": score}.items()}
    )


def keys(pictures: list[Picture]) -> list[str]:
    return [key_of(picture) for picture in pictures]


@pytest.fixture(scope="module")
def spam(label_score: MakeScore) -> dict[str, Any]:
    return label_score("ham", "spam", positive="spam")


@pytest.fixture(scope="module")
def drawn(spam: dict[str, Any], label_score: MakeScore) -> dict[str, Picture]:
    return {
        key_of(picture): picture
        for picture in pictures_of(spam, label_score("ham", "spam", positive="spam", seed=1))
    }


@pytest.fixture(scope="module")
def hostile(label_score: MakeScore) -> dict[str, Picture]:
    """Figures of a label that would be a tag or a formula, without a floor."""
    return {
        key_of(picture): picture
        for picture in pictures_of(label_score("ham", HOSTILE, positive=HOSTILE, floor=False))
    }


def test_two_labels_have_all_six_figures_with_named_axes_a_title_and_a_text_alternative(
    drawn: dict[str, Picture],
) -> None:
    axes = {
        "confusion": ("label given", "true label"),
        "roc": ("false positive rate", "recall"),
        "pr": ("recall", "precision"),
        "sweep": ("threshold", "share"),
        "reliability": ("probability given", "share observed"),
        "histogram": ("probability", "texts, log scale"),
    }
    assert list(drawn) == list(axes)
    for key, picture in drawn.items():
        assert set(axes[key]) <= set(texts(picture)), key
        assert re.search(r'role="img" aria-label="[^"]{20,}"', picture.drawing.wide), key
        assert picture.drawing.title
        assert picture.about
        assert not picture.is_wide


def test_figures_tell_the_numbers_they_are_about(
    spam: dict[str, Any], drawn: dict[str, Picture], snapshot: SnapshotAssertion
) -> None:
    counts = [f"{count:,}" for row in spam["confusion"] for count in row]
    assert set(counts) <= set(texts(drawn["confusion"]))
    assert f"base rate {spam['metrics']['base_rate']['value']:.3f}" in texts(drawn["pr"])
    assert f"Area {spam['metrics']['pr_auc']['value']:.3f}" in drawn["pr"].about
    assert f"chosen {spam['threshold']['value']:.3f}" in texts(drawn["sweep"])
    assert "F1, validation" in texts(drawn["sweep"])
    assert drawn["sweep"].about == snapshot
    assert f"{spam['metrics']['ece']['value']:.3f}" in drawn["reliability"].drawing.title
    assert f"in {len(spam['curves']['reliability'])} bins of " in drawn["reliability"].about
    assert {"ham", "spam"} <= set(texts(drawn["histogram"]))


def test_a_threshold_that_gives_nothing_has_no_precision_and_the_rest_is_drawn(
    spam: dict[str, Any], drawn: dict[str, Picture]
) -> None:
    assert spam["curves"]["sweep"][-1][1] is None
    assert "recall" in texts(drawn["sweep"])


def test_colours_are_css_variables_and_ids_differ_between_figures(
    drawn: dict[str, Picture],
) -> None:
    ids = [
        found
        for picture in drawn.values()
        for found in re.findall(r'\bid="([^"]*)"', picture.drawing.wide)
    ]
    assert len(ids) == len(set(ids))
    for picture in drawn.values():
        without_variables = re.sub(r"var\(--\w+, #\w{6}\)", "", picture.drawing.wide)
        assert not any(colour in without_variables for colour in VARIABLES)
        assert "var(--" in picture.drawing.wide
        assert "<script" not in picture.drawing.wide


def test_a_hostile_label_is_plain_text(hostile: dict[str, Picture]) -> None:
    for picture in hostile.values():
        assert "<b>" not in picture.drawing.wide
        assert Xml.fromstring(picture.drawing.wide).tag.endswith("svg")  # noqa: S314 - drawn here
    assert HOSTILE in texts(hostile["confusion"])


def test_the_floors_curve_is_drawn_where_it_is_known(
    hostile: dict[str, Picture], drawn: dict[str, Picture]
) -> None:
    assert [key for key, picture in drawn.items() if "Dashed: the floor." in picture.about] == [
        "roc",
        "pr",
    ]
    assert not any("Dashed" in picture.about for picture in hostile.values())


def test_more_labels_have_no_threshold_and_a_curve_each_while_they_can_be_told_apart(
    label_score: MakeScore,
) -> None:
    five = pictures_of(label_score("a", "b", "c", "d", "e"))
    assert keys(five) == ["confusion", "roc", "pr", "reliability", "histogram"]
    assert {"a", "b", "c", "d", "e"} <= set(texts(five[1]))
    assert "chosen" not in "".join(texts(five[-1]))


def test_a_matrix_of_many_labels_is_a_wide_figure_and_of_more_none(label_score: MakeScore) -> None:
    eight = pictures_of(
        label_score(*(f"a label with a long name {number}" for number in range(8)), floor=False)
    )
    many = pictures_of(label_score(*MANY, floor=False, sharpness=4.0))
    assert eight[0].is_wide
    assert short("a label with a long name 7") in texts(eight[0])
    assert keys(many) == ["reliability", "histogram"]


def test_several_labels_per_text_have_curves_and_no_matrix(
    label_score: MakeScore, snapshot: SnapshotAssertion
) -> None:
    pictures = pictures_of(label_score("sport", "tax", "war", multiple=True))
    assert keys(pictures) == ["roc", "pr", "reliability", "histogram"]
    assert pictures[2].about == snapshot


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
def test_missing_numbers_leave_figures_out_and_break_nothing(
    label_score: MakeScore, curves: object
) -> None:
    score = label_score("ham", "spam", positive="spam") | {
        "curves": curves,
        "metrics": None,
        "confusion": None,
        "threshold": None,
    }
    assert pictures_of(score) == []


def test_the_same_scores_draw_the_same_bytes(label_score: MakeScore) -> None:
    score = label_score(*MANY, floor=False, sharpness=4.0)
    assert [each.drawing.wide for each in pictures_of(score)] == [
        each.drawing.wide for each in pictures_of(score)
    ]


def test_counts_and_shares_that_cannot_be_are_left_out(label_score: MakeScore) -> None:
    score = label_score("ham", "spam", positive="spam")
    score["confusion"][0][0] = -5
    for place, odd in enumerate(({"share": 7.0}, {"share": -1.0}, {"count": 1e308}, {"count": 0})):
        score["curves"]["reliability"][place] |= odd
    drawn = {key_of(picture): picture for picture in pictures_of(score)}
    assert "confusion" not in drawn
    assert f"in {len(score['curves']['reliability']) - 4} bins" in drawn["reliability"].about
