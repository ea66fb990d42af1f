"""Curves of classifiers for the report: ROC, precision and recall, threshold sweep, reliability,
histograms. Small enough for a page, true to the eye.

Shapes: E examples, C labels, N promises (see `label_metrics.calibration_bins`), P points.
"""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.data.labels import Labels
from brimful.evaluation.label_metrics import Floats, calibration_bins

MAX_POINTS = 200
MAX_LABELS_WITH_CURVES = 12
"""More lines cannot be told apart."""
SWEEP = 101
HISTOGRAM_BINS = 20
DIGITS = 5
"""Of what is drawn."""

Points = list[list[float]]


def curves_of(true_EC: NDArray[np.bool_], probability_EC: Floats, labels: Labels) -> dict[str, Any]:
    """Everything the report draws.

    Args:
        true_EC: Which labels each example has.
        probability_EC: Calibrated.
        labels: Names, kind, positive.

    Returns:
        roc, pr and sweep of the positive of two labels (empty lists otherwise); by_label: roc and
        pr of each label against the rest where there is no positive one and at most
        `MAX_LABELS_WITH_CURVES`; reliability; histogram.
    """
    positive = labels.positive
    curves = ranking_curves(true_EC, probability_EC, labels)
    curves["sweep"] = (
        [] if positive is None else sweep(true_EC[:, positive], probability_EC[:, positive])
    )
    return curves | {
        "reliability": reliability(true_EC, probability_EC, labels),
        "histogram": histogram(true_EC, probability_EC, labels),
    }


def ranking_curves(
    true_EC: NDArray[np.bool_], probability_EC: Floats, labels: Labels
) -> dict[str, Any]:
    """roc, pr and by_label of `curves_of`."""
    if labels.positive is not None:
        return {
            **_both(true_EC[:, labels.positive], probability_EC[:, labels.positive]),
            "by_label": {},
        }
    told = labels.names if len(labels.names) <= MAX_LABELS_WITH_CURVES else ()
    return {
        "roc": [],
        "pr": [],
        "by_label": {
            name: _both(true_EC[:, label], probability_EC[:, label])
            for label, name in enumerate(told)
        },
    }


def _both(has_E: NDArray[np.bool_], scores_E: Floats) -> dict[str, Points]:
    return {"roc": roc_curve(has_E, scores_E), "pr": pr_curve(has_E, scores_E)}


def roc_curve(has_E: NDArray[np.bool_], scores_E: Floats) -> Points:
    """[false positive rate, recall] from (0, 0) to (1, 1); empty where all or no examples have the
    label.
    """
    if not has_E.any() or has_E.all():
        return []
    hits_G, given_G = _counts(has_E, scores_E)
    rates = np.column_stack([(given_G - hits_G) / (~has_E).sum(), hits_G / has_E.sum()])
    return _thinned(np.concatenate([np.zeros((1, 2)), rates]))


def pr_curve(has_E: NDArray[np.bool_], scores_E: Floats) -> Points:
    """[recall, precision] of every threshold, from the highest down, starting at recall 0 with the
    first one's precision; empty where none has the label.
    """
    if not has_E.any():
        return []
    hits_G, given_G = _counts(has_E, scores_E)
    pairs = np.column_stack([hits_G / has_E.sum(), hits_G / given_G])
    return _thinned(np.concatenate([[[0.0, pairs[0, 1]]], pairs]))


def sweep(has_E: NDArray[np.bool_], scores_E: Floats) -> list[list[float | None]]:
    """[threshold, precision, recall, F1] at 0, 0.01 .. 1; None where undefined (see
    `label_metrics`).
    """
    thresholds = np.linspace(0, 1, SWEEP)
    given = len(scores_E) - np.searchsorted(np.sort(scores_E), thresholds)
    hits = has_E.sum() - np.searchsorted(np.sort(scores_E[has_E]), thresholds)
    have = int(has_E.sum())
    return [
        [round(float(t), 2), _share(hit, say), _share(hit, have), _share(2 * hit, say + have)]
        for t, hit, say in zip(thresholds, hits.tolist(), given.tolist(), strict=True)
    ]


def reliability(
    true_EC: NDArray[np.bool_], probability_EC: Floats, labels: Labels
) -> list[dict[str, float]]:
    """The bins of the calibration error: lowest and highest probability, mean probability, share
    that happened, count.
    """
    guess_N, outcome_N, bin_N = calibration_bins(true_EC, probability_EC, labels)
    chosen_per_bin = [bin_N == each for each in np.unique(bin_N)]
    return [
        {
            "low": _rounded(guess_N[chosen].min()),
            "high": _rounded(guess_N[chosen].max()),
            "probability": _rounded(guess_N[chosen].mean()),
            "share": _rounded(outcome_N[chosen].mean()),
            "count": int(chosen.sum()),
        }
        for chosen in chosen_per_bin
    ]


def histogram(true_EC: NDArray[np.bool_], probability_EC: Floats, labels: Labels) -> dict[str, Any]:
    """Counts of probabilities in equal bins by the label an example has: of the positive label (two
    labels), else of the label itself.
    """
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)
    by_label = {
        name: np.histogram(
            probability_EC[
                true_EC[:, label], label if labels.positive is None else labels.positive
            ],
            edges,
        )[0].tolist()
        for label, name in enumerate(labels.names)
    }
    return {"edges": edges.round(DIGITS).tolist(), "by_label": by_label}


def thin(points_P2: Floats, limit: int = MAX_POINTS) -> NDArray[np.int64]:
    """Which points to keep so that the line through them stays nearest: the ends, then always the
    point farthest from the line so far.

    This is Douglas and Peucker's (1973) algorithm with a number of points in place of a tolerance:
    corners are kept, straight runs are not.

    Args:
        points_P2: In order along the curve.
        limit: At most so many, at least 2.

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
        place_N = np.clip(away_N2 @ along_2 / length2, 0, 1) if length2 else np.zeros(len(away_N2))
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


def _counts(
    has_E: NDArray[np.bool_], scores_E: Floats
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """At each distinct probability from the highest down: examples that have and get the label, and
    examples that get it.
    """
    order_E = np.argsort(-scores_E, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores_E[order_E])), len(order_E) - 1)
    return np.cumsum(has_E[order_E])[ends], ends + 1


def _share(part: int, whole: int) -> float | None:
    return _rounded(part / whole) if whole else None


def _rounded(value: Any) -> float:
    return round(float(value), DIGITS)
