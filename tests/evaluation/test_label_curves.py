"""Curves are scikit-learn's, with fewer points and the same look."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import auc, precision_recall_curve, roc_curve

from brimful.base.arrays import Bools, Floats
from brimful.data.labels import Labels
from brimful.evaluation import label_curves
from brimful.evaluation.label_curves import (
    MAX_POINTS,
    SWEEP_POINTS,
    curves_of,
    histogram,
    pr_curve,
    reliability,
    sweep,
    thin,
)
from brimful.evaluation.label_metrics import probability_statistic

BINARY = Labels(("ham", "spam"), False, 1)


def _scores(num: int, seed: int = 0) -> tuple[Bools, Floats]:
    generator = np.random.default_rng(seed)
    has_E = generator.random(num) < 0.2
    return has_E, 1 / (1 + np.exp(-(2 * has_E - 2 + generator.normal(size=num))))


def _distance(points_P2: Floats, line_K2: Floats) -> float:
    """The longest way from a point to a line through points."""
    start_K2, along_K2 = line_K2[:-1], np.diff(line_K2, axis=0)
    place_PK = ((points_P2[:, None] - start_K2) * along_K2).sum(2) / np.maximum(
        (along_K2**2).sum(1), 1e-30
    )
    nearest_PK2 = start_K2 + place_PK.clip(0, 1)[..., None] * along_K2
    return float(np.hypot(*(points_P2[:, None] - nearest_PK2).transpose(2, 0, 1)).min(1).max())


def test_few_examples_give_the_exact_roc_curve() -> None:
    has_E, scores_E = _scores(60)
    rates = np.column_stack(roc_curve(has_E, scores_E)[:2])

    found = np.array(label_curves.roc_curve(has_E, scores_E))

    assert len(found) < 20
    assert _distance(rates, found) < 1e-5
    assert _distance(found, rates) < 1e-5


@pytest.mark.parametrize("kind", ["roc", "pr"])
def test_many_examples_give_a_curve_of_at_most_200_points_that_stays_near(kind: str) -> None:
    has_E, scores_E = _scores(3000)
    if kind == "roc":
        exact, found = (
            np.column_stack(roc_curve(has_E, scores_E, drop_intermediate=False)[:2]),
            np.array(label_curves.roc_curve(has_E, scores_E)),
        )
    else:
        precision, recall, _ = precision_recall_curve(has_E, scores_E)
        exact, found = (
            np.column_stack([recall, precision])[-2::-1],
            np.array(pr_curve(has_E, scores_E)),
        )

    assert len(found) <= MAX_POINTS
    assert found[-1] == pytest.approx(exact[-1], abs=1e-5)
    assert _distance(exact, found) < 0.006
    assert abs(auc(*found.T) - auc(*exact.T)) < 0.002


def test_the_first_point_of_precision_is_that_of_the_highest_threshold() -> None:
    found = pr_curve(np.array([False, True, True, False]), np.array([0.9, 0.8, 0.7, 0.1]))

    assert found[0] == [0.0, 0.0]
    assert found[-1] == [1.0, 0.5]


def test_corners_are_kept_and_straight_runs_are_not() -> None:
    steps = np.array(
        [[0.0, 0.0], [0.0, 0.2], [0.0, 0.5], [0.3, 0.5], [0.5, 0.5], [0.5, 1.0], [1.0, 1.0]]
    )

    assert thin(steps).tolist() == [0, 2, 4, 5, 6]
    assert thin(steps, 3).tolist() == [0, 2, 6]


@pytest.mark.parametrize(
    "points", [[[0.0, 0.0]], [[0.0, 0.0], [1.0, 1.0]], [[0.5, 0.5], [0.5, 0.7], [0.5, 0.5]]]
)
def test_short_and_closed_lines_keep_all_their_points(points: list[list[float]]) -> None:
    assert thin(np.array(points)).tolist() == list(range(len(points)))


def test_the_sweep_is_precision_recall_and_f1_at_101_thresholds() -> None:
    has_E, scores_E = _scores(200)
    scores_E[:10] = 0.5

    found = sweep(has_E, scores_E)

    assert [row[0] for row in found] == [round(number / 100, 2) for number in range(SWEEP_POINTS)]
    for threshold, precision, recall, f1 in found:
        given_E = scores_E >= threshold
        hits = (given_E & has_E).sum()
        assert precision == (
            pytest.approx(hits / given_E.sum(), abs=1e-5) if given_E.any() else None
        )
        assert recall == pytest.approx(hits / has_E.sum(), abs=1e-5)
        assert f1 == pytest.approx(2 * hits / (given_E.sum() + has_E.sum()), abs=1e-5)


def test_the_bins_of_the_diagram_give_the_calibration_error_that_is_told() -> None:
    has_E, scores_E = _scores(500)
    true_EC, given_EC = np.column_stack([~has_E, has_E]), np.column_stack([1 - scores_E, scores_E])

    bins = reliability(true_EC, given_EC, BINARY)

    error = sum(each["count"] * abs(each["probability"] - each["share"]) for each in bins) / 500
    told = probability_statistic(true_EC, given_EC, np.zeros(500), BINARY)(np.ones((1, 500)))[
        "ece"
    ][0]
    assert error == pytest.approx(told, abs=1e-4)
    assert sum(each["count"] for each in bins) == 500
    assert all(before["high"] <= after["low"] for before, after in pairwise(bins))


def test_histograms_count_every_example_by_its_label() -> None:
    has_E, scores_E = _scores(300)
    scores_E[:2] = [0.0, 1.0]
    true_EC = np.column_stack([~has_E, has_E])

    found = histogram(true_EC, np.column_stack([1 - scores_E, scores_E]), BINARY)

    assert {name: sum(counts) for name, counts in found["by_label"].items()} == {
        "ham": (~has_E).sum(),
        "spam": has_E.sum(),
    }
    assert found["by_label"]["spam"] == np.histogram(scores_E[has_E], 20, (0, 1))[0].tolist()
    assert len(found["edges"]) == 21


@pytest.mark.parametrize("count", [3, 13])
def test_without_a_positive_label_there_are_curves_by_label_where_they_can_be_told_apart(
    count: int,
) -> None:
    labels = Labels(tuple(f"l{number}" for number in range(count)), False, None)
    true_EC = np.eye(count, dtype=bool)[np.arange(60) % count]
    given_EC = np.random.default_rng(0).dirichlet(np.ones(count), 60)

    found = curves_of(true_EC, given_EC, labels)

    assert (found["roc"], found["pr"], found["sweep"]) == ([], [], [])
    assert list(found["by_label"]) == (list(labels.names) if count == 3 else [])
    if count == 3:
        assert found["by_label"]["l1"] == {
            "roc": label_curves.roc_curve(true_EC[:, 1], given_EC[:, 1]),
            "pr": pr_curve(true_EC[:, 1], given_EC[:, 1]),
        }


@pytest.mark.parametrize(
    "has", [[], [False, False], [True, True]], ids=["no examples", "none has it", "all have it"]
)
def test_curves_that_cannot_be_drawn_are_empty(has: list[bool]) -> None:
    has_E = np.array(has, bool)
    scores_E = np.linspace(0.2, 0.8, len(has))
    found = curves_of(
        np.column_stack([~has_E, has_E]), np.column_stack([1 - scores_E, scores_E]), BINARY
    )

    assert found["roc"] == []
    assert bool(found["pr"]) is bool(has_E.any())
    assert len(found["sweep"]) == SWEEP_POINTS
    assert sum(each["count"] for each in found["reliability"]) == len(has)
