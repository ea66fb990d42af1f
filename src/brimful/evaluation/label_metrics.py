"""Metrics of classifiers under weights of examples, so that one formula gives the value (all
weights 1) and every bootstrap resample.

Shapes: E examples, C labels, R resamples (rows of weights), B calibration bins, G groups of equal
probability that hold an example with the label. Where a metric is undefined it is NaN, not 0:
precision of a label that is never given, recall of one that no example has, F1 of one that neither
has nor gets, areas where all or no examples have the label. Averages over labels leave such labels
out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.base.arrays import Array, Bools, Floats, Ints
from brimful.data.labels import Labels

Real = NDArray[np.floating[Any]]
Values = dict[str, Floats]
"""Values by name: [R], or [R, C] for one value per label."""
Statistic = Callable[[Real], Values]
"""Weights [R, E] to values."""

CALIBRATION_BINS = 15


def as_indicators(numbers: Array, labels: Labels) -> Bools:
    """Targets or decisions as yes or no per label, [E, C]."""
    if labels.multiple:
        return np.asarray(numbers > 0.5, np.bool_)
    return np.asarray(numbers[:, None] == np.arange(len(labels.names)), np.bool_)


def decision_statistic(true_EC: Bools, given_EC: Bools) -> Statistic:
    """Accuracy (all labels of a text right) and macro-F1 [R]; by label [R, C] precision, recall, f1
    and base_rate.

    The sums behind them are there, too: right and examples [R]; hits, given and true [R, C].
    """
    right_E = (true_EC == given_EC).all(1)
    columns = np.column_stack([true_EC & given_EC, given_EC, true_EC, right_E])
    count = true_EC.shape[1]

    def statistic(weights_RE: Real) -> Values:
        sums = (weights_RE @ columns.astype(weights_RE.dtype)).astype(np.float64)
        hits_RC, given_RC, true_RC, right_R = (
            sums[:, :count],
            sums[:, count : 2 * count],
            sums[:, 2 * count : 3 * count],
            sums[:, -1],
        )
        total_R = weights_RE.sum(1, dtype=np.float64)
        f1_RC = _ratio(2 * hits_RC, given_RC + true_RC)
        return {
            "accuracy": _ratio(right_R, total_R),
            "macro_f1": _mean_of_defined(f1_RC),
            "precision": _ratio(hits_RC, given_RC),
            "recall": _ratio(hits_RC, true_RC),
            "f1": f1_RC,
            "base_rate": _ratio(true_RC, np.broadcast_to(total_R[:, None], true_RC.shape)),
            "right": right_R,
            "examples": total_R,
            "hits": hits_RC,
            "given": given_RC,
            "true": true_RC,
        }

    return statistic


def probability_statistic(
    true_EC: Bools, probability_EC: Floats, nats_E: Floats, labels: Labels
) -> Statistic:
    """Loss (nats per example), Brier score and expected calibration error.

    Brier (1950): of two labels the mean square of p(positive) - 1 or 0; of more, summed over
    labels; with several labels per text the mean over labels. ECE: see `calibration_bins`.
    """
    square_EC = (probability_EC - true_EC) ** 2
    if labels.multiple:
        brier_E = square_EC.mean(1)
    elif labels.positive is not None:
        brier_E = square_EC[:, labels.positive]
    else:
        brier_E = square_EC.sum(1)
    predicted_N, outcome_N, bin_N = calibration_bins(true_EC, probability_EC, labels)
    decisions = labels.decisions_per_text
    gap_EB = np.zeros((len(nats_E), CALIBRATION_BINS))
    example_N = np.repeat(np.arange(len(nats_E)), decisions)
    np.add.at(gap_EB, (example_N, bin_N), predicted_N - outcome_N)
    columns = np.column_stack([nats_E, brier_E, gap_EB])

    def statistic(weights_RE: Real) -> Values:
        total_R = weights_RE.sum(1, dtype=np.float64)
        sums = (weights_RE @ columns.astype(weights_RE.dtype)).astype(np.float64)
        sums = _ratio(sums, np.broadcast_to(total_R[:, None], sums.shape))
        return {
            "loss": sums[:, 0],
            "brier": sums[:, 1],
            "ece": abs(sums[:, 2:]).sum(1) / decisions,
        }

    return statistic


def calibration_bins(
    true_EC: Bools, probability_EC: Floats, labels: Labels
) -> tuple[Floats, Floats, Ints]:
    """Return predicted probabilities, outcomes (0 or 1) and the bin of each prediction: [N] each,
    N = E, or E x C with several labels per text (example after example).

    The prediction is the positive label's probability (two labels), the likeliest label's (more;
    Naeini et al. 2015 and Guo et al. 2017), or every label's (several per text). Bins hold equal
    numbers of examples, because equal widths leave most bins nearly empty (Nixon et al. 2019,
    section 3.3); equal probabilities share a bin. The error is the mean over examples of |mean
    prediction - mean outcome| of their bin; it is above 0 by chance alone, the more so the fewer
    examples. (scikit-learn's `calibration_curve` splits equal probabilities between bins.)
    """
    if labels.is_multiclass:
        rows_E, likeliest_E = np.arange(len(true_EC)), probability_EC.argmax(1)
        predicted_N, true_N = probability_EC[rows_E, likeliest_E], true_EC[rows_E, likeliest_E]
    else:
        predicted_N = probability_EC[:, labels.with_threshold].ravel()
        true_N = true_EC[:, labels.with_threshold].ravel()
    outcome_N = true_N.astype(np.float64)
    if not len(predicted_N):
        return predicted_N, outcome_N, np.zeros(0, np.int64)
    starts = np.arange(1, CALIBRATION_BINS) * len(predicted_N) // CALIBRATION_BINS
    bin_N = np.searchsorted(np.unique(np.sort(predicted_N)[starts]), predicted_N, side="right")
    return predicted_N, outcome_N, bin_N


def area_statistic(true_EC: Bools, probability_EC: Floats, positive: int | None) -> Statistic:
    """ROC-AUC and PR-AUC (average precision, no interpolation): of the positive label, else the
    mean over labels of each against the rest.
    """
    chosen = [positive]
    if positive is None:
        chosen = [*range(true_EC.shape[1])]
    rankings = [_Ranking.of(true_EC[:, label], probability_EC[:, label]) for label in chosen]

    def statistic(weights_RE: Real) -> Values:
        areas = [ranking.areas(weights_RE) for ranking in rankings]
        return {
            name: _mean_of_defined(np.stack([each[place] for each in areas], 1))
            for place, name in enumerate(("roc_auc", "pr_auc"))
        }

    return statistic


@dataclass(frozen=True)
class _Ranking:
    """Examples from the highest probability down. Only groups of equal probability that hold an
    example with the label add to either area.

    Written here because scikit-learn computes one area at a time: all resamples at once are a
    hundred times faster.

    Attributes:
        order_E: Example numbers.
        positives_P: Those of them with the label, in that order.
        ends_G: One past a group's last place among all.
        starts_G: A group's first place among all.
        positive_ends_G: One past a group's last place among those with the label.
    """

    order_E: Ints
    positives_P: Ints
    ends_G: Ints
    starts_G: Ints
    positive_ends_G: Ints

    @classmethod
    def of(cls, has_E: Bools, scores_E: Floats) -> "_Ranking":
        order_E = np.argsort(-scores_E, kind="stable")
        sorted_E, sorted_has_E = scores_E[order_E], has_E[order_E]
        ends = np.append(np.flatnonzero(np.diff(sorted_E)) + 1, len(sorted_E))
        positive_ends = np.append(0, np.cumsum(sorted_has_E))[ends]
        holds = np.diff(positive_ends, prepend=0) > 0
        starts = np.append(0, ends[:-1])
        return cls(order_E, order_E[sorted_has_E], ends[holds], starts[holds], positive_ends[holds])

    def areas(self, weights_RE: Real) -> tuple[Floats, Floats]:
        """ROC-AUC [R] (ties count half) and average precision [R]."""
        empty = np.full(len(weights_RE), np.nan)
        if not len(self.positives_P):
            return empty, empty
        upto_RE = _sums_upto(weights_RE[:, self.order_E])
        hits_RG = _sums_upto(weights_RE[:, self.positives_P])[:, self.positive_ends_G]
        given_RG, before_RG = upto_RE[:, self.ends_G], upto_RE[:, self.starts_G]
        new_hits_RG = np.diff(hits_RG, axis=1, prepend=0)
        hits_R = hits_RG[:, -1].astype(np.float64)
        others_R = upto_RE[:, -1] - hits_R
        precision_RG = np.divide(hits_RG, given_RG, out=np.zeros_like(hits_RG), where=given_RG > 0)
        average_precision_R = _ratio(
            np.einsum("rg,rg->r", new_hits_RG, precision_RG, dtype=np.float64), hits_R
        )
        others_above_RG = ((given_RG - hits_RG) + (before_RG - (hits_RG - new_hits_RG))) / 2
        lost_R = np.einsum("rg,rg->r", new_hits_RG, others_above_RG, dtype=np.float64)
        return 1 - _ratio(lost_R, hits_R * others_R), average_precision_R


def _sums_upto(weights_RN: Real) -> Real:
    """Running sums with a leading 0, [R, N + 1]; whole numbers below 2^24 are exact in fp32."""
    sums = np.zeros((weights_RN.shape[0], weights_RN.shape[1] + 1), weights_RN.dtype)
    np.cumsum(weights_RN, axis=1, out=sums[:, 1:])
    return sums


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    ratio = np.full(np.shape(numerator), np.nan)
    np.divide(numerator, denominator, out=ratio, where=denominator > 0)
    return ratio


def _mean_of_defined(values_RC: Floats) -> Floats:
    defined_RC = np.isfinite(values_RC)
    return _ratio(np.where(defined_RC, values_RC, 0.0).sum(1), defined_RC.sum(1).astype(np.float64))
