"""Curves of classifiers for the report: ROC, precision and recall, threshold sweep, reliability,
histograms. Curves keep the few points that the eye needs.

Shapes: E examples, C labels, N predictions (see `label_metrics.calibration_bins`), P points.
"""

import heapq
from typing import Any

import numpy as np

from brimful.base.arrays import Bools, Floats, Ints
from brimful.base.types import JsonDict
from brimful.data.labels import Labels
from brimful.evaluation.label_metrics import calibration_bins

MAX_POINTS = 200
MAX_LABELS_WITH_CURVES = 12
"""Most labels that get curves: lines of more cannot be told apart."""
SWEEP_POINTS = 101
HISTOGRAM_BINS = 20
DIGITS = 5
"""Digits of every coordinate after the decimal point."""

Points = list[list[float]]


def curves_of(true_EC: Bools, probability_EC: Floats, labels: Labels) -> JsonDict:
    """Return all curves that the report draws.

    Args:
        true_EC: Which labels each example has.
        probability_EC: Calibrated.
        labels: Names, kind, positive.

    Returns:
        roc, pr and sweep of the positive of two labels (empty lists otherwise); by_label: roc and
        pr of each label against the rest where there is no positive one and at most
        `MAX_LABELS_WITH_CURVES`; reliability; histogram.
    """
    curves = ranking_curves(true_EC, probability_EC, labels)
    curves["sweep"] = []
    if labels.positive is not None:
        curves["sweep"] = sweep(true_EC[:, labels.positive], probability_EC[:, labels.positive])
    curves["reliability"] = reliability(true_EC, probability_EC, labels)
    curves["histogram"] = histogram(true_EC, probability_EC, labels)
    return curves


def ranking_curves(true_EC: Bools, probability_EC: Floats, labels: Labels) -> JsonDict:
    """roc, pr and by_label of `curves_of`."""

    def curves_of_label(label: int) -> JsonDict:
        has_E, scores_E = true_EC[:, label], probability_EC[:, label]
        return {"roc": roc_curve(has_E, scores_E), "pr": pr_curve(has_E, scores_E)}

    if labels.positive is not None:
        return curves_of_label(labels.positive) | {"by_label": {}}
    by_label = {}
    if len(labels.names) <= MAX_LABELS_WITH_CURVES:
        by_label = {name: curves_of_label(label) for label, name in enumerate(labels.names)}
    return {"roc": [], "pr": [], "by_label": by_label}


def roc_curve(has_E: Bools, scores_E: Floats) -> Points:
    """[false positive rate, recall] from (0, 0) to (1, 1); empty where all or no examples have the
    label.
    """
    from sklearn import metrics  # noqa: PLC0415 - most of a second that only scores need

    if not has_E.any() or has_E.all():
        return []
    false_P, recall_P, _ = metrics.roc_curve(has_E, scores_E, drop_intermediate=False)
    return _thinned(np.column_stack([false_P, recall_P]))


def pr_curve(has_E: Bools, scores_E: Floats) -> Points:
    """[recall, precision] of every threshold, from the highest down, starting at recall 0 with the
    first one's precision; empty where none has the label.
    """
    from sklearn import metrics  # noqa: PLC0415 - most of a second that only scores need

    if not has_E.any():
        return []
    precision_P, recall_P, _ = metrics.precision_recall_curve(has_E, scores_E)
    # scikit-learn begins with the lowest threshold and ends at recall 0 with a precision of 1.
    precision_P[-1] = precision_P[-2]
    return _thinned(np.column_stack([recall_P, precision_P])[::-1])


def sweep(has_E: Bools, scores_E: Floats) -> list[list[float | None]]:
    """[threshold, precision, recall, F1] at 0, 0.01 .. 1; None where undefined (see
    `label_metrics`).
    """
    thresholds = np.linspace(0, 1, SWEEP_POINTS)
    given = len(scores_E) - np.searchsorted(np.sort(scores_E), thresholds)
    hits = has_E.sum() - np.searchsorted(np.sort(scores_E[has_E]), thresholds)
    have = int(has_E.sum())
    return [
        [round(float(t), 2), _share(hit, say), _share(hit, have), _share(2 * hit, say + have)]
        for t, hit, say in zip(thresholds, hits.tolist(), given.tolist(), strict=True)
    ]


def reliability(true_EC: Bools, probability_EC: Floats, labels: Labels) -> list[dict[str, float]]:
    """The bins of the calibration error: lowest, highest and mean predicted probability, the share
    of correct ones, and the count. (scikit-learn's `calibration_curve` tells neither the bounds nor
    the counts.)
    """
    predicted_N, outcome_N, bin_N = calibration_bins(true_EC, probability_EC, labels)
    rows = []
    for number in np.unique(bin_N):
        predicted, outcome = predicted_N[bin_N == number], outcome_N[bin_N == number]
        rows.append(
            {
                "low": _rounded(predicted.min()),
                "high": _rounded(predicted.max()),
                "probability": _rounded(predicted.mean()),
                "share": _rounded(outcome.mean()),
                "count": len(predicted),
            }
        )
    return rows


def histogram(true_EC: Bools, probability_EC: Floats, labels: Labels) -> JsonDict:
    """Counts of probabilities in equal bins by the label an example has: of the positive label (two
    labels), else of the label itself.
    """
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    by_label = {}
    for label, name in enumerate(labels.names):
        column = label
        if labels.positive is not None:
            column = labels.positive
        counts, _ = np.histogram(probability_EC[true_EC[:, label], column], edges)
        by_label[name] = counts.tolist()
    return {"edges": edges.round(DIGITS).tolist(), "by_label": by_label}


def thin(points_P2: Floats, limit: int = MAX_POINTS) -> Ints:
    """Which points to keep so that the line through them stays nearest: the ends, then always the
    point farthest from the line so far.

    This is Douglas and Peucker's (1973) algorithm with a number of points in place of a tolerance:
    corners are kept, straight runs are not.

    Args:
        points_P2: Points in order along the curve.
        limit: Most points that are kept, at least 2.

    Returns:
        Their numbers in order; fewer than `limit` where they already give the curve exactly.
    """
    kept = {0, len(points_P2) - 1}
    waiting: list[tuple[float, int, int, int]] = []

    def consider(first: int, last: int) -> None:
        if last - first < 2:
            return
        start_2, along_2 = points_P2[first], points_P2[last] - points_P2[first]
        away_N2 = points_P2[first + 1 : last] - start_2
        length2 = float(along_2 @ along_2)
        place_N = np.zeros(len(away_N2))
        if length2:
            place_N = np.clip(away_N2 @ along_2 / length2, 0, 1)
        distance_N = np.hypot(*(away_N2 - place_N[:, None] * along_2).T)
        farthest = int(distance_N.argmax())
        if distance_N[farthest] > 1e-9:
            heapq.heappush(
                waiting, (-float(distance_N[farthest]), first, first + 1 + farthest, last)
            )

    consider(0, len(points_P2) - 1)
    while waiting and len(kept) < limit:
        _, first, middle, last = heapq.heappop(waiting)
        kept.add(middle)
        consider(first, middle)
        consider(middle, last)
    return np.array(sorted(kept))


def _thinned(points_P2: Floats) -> Points:
    chosen: Points = points_P2[thin(points_P2)].round(DIGITS).tolist()
    return chosen


def _share(part: int, whole: int) -> float | None:
    if not whole:
        return None
    return _rounded(part / whole)


def _rounded(value: Any) -> float:
    return round(float(value), DIGITS)
