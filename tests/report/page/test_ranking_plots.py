"""Curves of a ranking are drawn while they can be told apart."""

from brimful.report.page.ranking_plots import curves_of
from brimful.runs.parsing import parse
from brimful.runs.scores import LabelScore


def test_curves_of_more_labels_than_can_be_told_apart_are_not_drawn() -> None:
    points = [[0.0, 0.0], [1.0, 1.0]]
    assert (
        len(
            curves_of(
                parse(
                    LabelScore,
                    {
                        "curves": {
                            "by_label": {str(number): {"roc": points} for number in range(12)}
                        }
                    },
                ),
                "roc",
            )
        )
        == 12
    )
    assert (
        curves_of(
            parse(
                LabelScore,
                {"curves": {"by_label": {str(number): {"roc": points} for number in range(13)}}},
            ),
            "roc",
        )
        == []
    )
