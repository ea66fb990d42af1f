"""Scores of a classifier on a split: metrics with intervals, beside a floor, with and without texts
that repeat training texts. Metrics during training.

Shapes: E examples, C labels, R resamples.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from brimful.base.arrays import Array, Bools, Floats, Ints
from brimful.base.errors import RequestError
from brimful.base.types import Json, JsonDict, Numbers
from brimful.classification.calibration import LabelCalibration
from brimful.classification.temperature import nats_per_example, probabilities
from brimful.classification.thresholds import choose_threshold
from brimful.data.labels import Labels
from brimful.evaluation.label_bootstrap import (
    BootstrapResult,
    MetricEstimate,
    measure,
    num_resamples,
)
from brimful.evaluation.label_curves import curves_of, ranking_curves
from brimful.evaluation.label_metrics import (
    Statistic,
    area_statistic,
    as_indicators,
    decision_statistic,
    probability_statistic,
)

if TYPE_CHECKING:
    from brimful.data.labelled import LabelledSplit

METRICS = (
    "accuracy",
    "macro_f1",
    "f1",
    "precision",
    "recall",
    "roc_auc",
    "pr_auc",
    "base_rate",
    "ece",
    "brier",
)
"""f1, precision, recall and base_rate are of the positive of two labels and absent without one."""
METRICS_AT_HALF = ("accuracy", "precision", "recall", "f1", "macro_f1")
COMPARED = ("f1", "macro_f1", "accuracy", "pr_auc")
"""Metrics that are compared with the floor."""
MOST_MISTAKES, MOST_CHARACTERS = 20, 500
"""Most mistakes that are shown, and most characters of the text of one."""
HALF, FLOOR = "half.", "floor."


@dataclass(frozen=True)
class Rival:
    """Another classifier on the same texts, to be compared with.

    Attributes:
        name: What it is, in words.
        logits_EC: One row per text of the split, repeated ones too.
        calibration: Its own, chosen on validation.
        settings: How it was made.
    """

    name: str
    logits_EC: Floats
    calibration: LabelCalibration
    settings: Json


def score_labels(
    logits_EC: ArrayLike,
    split: "LabelledSplit",
    *,
    labels: Labels,
    calibration: LabelCalibration,
    seconds: float,
    floor: Rival | None = None,
) -> tuple[JsonDict, Floats]:
    """Score a classifier's logits on a split.

    Texts that repeat training texts (of a test split: or validation texts) count in
    `metrics_with_repeated` alone. Intervals are 95 % over examples (see `BootstrapResult.score`).
    They do not hold the spread over training seeds, nor that of the choice of temperature and
    thresholds on validation. Drawing examples again can only add to the calibration error, so that
    its interval lies high.

    Args:
        logits_EC: Logits as the model gives them, one row per text of the split.
        split: Texts with their targets.
        labels: Names, kind, positive.
        calibration: Chosen on validation.
        seconds: The model took for the logits.
        floor: The simple model to compare with.

    Returns:
        record: Plain values for scores.json: metrics at the thresholds, and of the likeliest label
            (several labels per text: of those above 1/2); those of each label; counts of true and
            given labels, with several per text [[neither, given], [missed, right]] by name; curves
            (see `label_curves`), the most confident mistakes, and what the floor reaches on the
            same examples.
        nats_E: float64, of each scored example in the split's order, of the calibrated
            probabilities; with several labels per text the sum over labels.

    Raises:
        RequestError: a logit is not finite.
    """
    everything, kept_E = _Judged.of(logits_EC, split, labels, calibration), ~split.is_repeated_E
    kept, positive = everything.chosen(kept_E), labels.positive
    statistics = [
        *kept.statistics(),
        _prefixed(HALF, decision_statistic(kept.true_EC, _at_half(kept.probability_EC, labels))),
    ]
    areas = [kept.areas()]
    if floor is not None:
        rival = _Judged.of(floor.logits_EC, split, labels, floor.calibration).chosen(kept_E)
        statistics += [_prefixed(FLOOR, statistic) for statistic in rival.statistics()]
        areas.append(_prefixed(FLOOR, rival.areas()))
    measured = measure(kept.count, statistics, areas, num_rankings=kept.num_rankings * len(areas))
    with_repeated, floor_record = None, None
    if not kept_E.all():
        with_repeated = _as_json(everything.measured().scores(METRICS, positive=positive))
    if floor is not None:
        floor_record = {
            "name": floor.name,
            "metrics": _as_json(measured.scores(METRICS, positive=positive, prefix=FLOOR)),
            "difference": _as_json(measured.differences(COMPARED, positive=positive, other=FLOOR)),
            "curves": {}
            if positive is None
            else ranking_curves(rival.true_EC, rival.probability_EC, labels),
            "settings": dict(floor.settings),
        }
    loss, support = measured.score("loss").to_json(), kept.true_EC.sum(0).tolist()
    by_label = {
        name: {
            metric: measured.score(metric, label=label).to_json()
            for metric in ("precision", "recall", "f1")
        }
        | {"support": support[label]}
        for label, name in enumerate(labels.names)
    }
    record = {
        "kind": "labels",
        "labels": list(labels.names),
        "positive": labels.positive_name,
        "multiple": labels.multiple,
        "examples": kept.count,
        "repeated": int((~kept_E).sum()),
        "resamples": num_resamples(kept.count),
        "seconds": seconds,
        "loss": loss["value"],
        "loss_interval": {"low": loss["low"], "high": loss["high"]},
        "temperature": calibration.temperature,
        "threshold": _threshold_json(calibration, labels),
        "metrics": _as_json(measured.scores(METRICS, positive=positive)),
        "metrics_at_half": _as_json(
            measured.scores(METRICS_AT_HALF, positive=positive, prefix=HALF)
        ),
        "metrics_with_repeated": with_repeated,
        "floor": floor_record,
        "by_label": by_label,
        "confusion": _confusion(kept),
        "curves": curves_of(kept.true_EC, kept.probability_EC, labels),
        "mistakes": _mistakes(kept, split, np.flatnonzero(kept_E)),
    }
    return record, kept.nats_E


def quick_metrics(logits_EC: ArrayLike, targets: Array, labels: Labels) -> Numbers:
    """Metrics of the likeliest label (several per text: of those above 1/2), without calibration or
    intervals: what an evaluation record in training holds.

    Args:
        logits_EC: Logits of the validation split.
        targets: Targets, as in `LabelledSplit`.
        labels: Names, kind, positive.

    Returns:
        loss (nats per example), accuracy, macro_f1, roc_auc, pr_auc, of the positive of two labels
        f1, precision, recall, and best_f1: the highest F1 over thresholds (of two labels the
        positive's, of several per text the mean of each label's). What is undefined is left out,
        but the precision of a label that is never given is 0, as in scikit-learn. Only a loss that
        is not a number where a logit is not finite.
    """
    logits = np.asarray(logits_EC, np.float64)
    if not np.isfinite(logits).all():
        return {"loss": float("nan")}
    nats_E = nats_per_example(logits, targets, multiple=labels.multiple)
    probability_EC = probabilities(logits, temperature=1.0, multiple=labels.multiple)
    true_EC, ones = as_indicators(targets, labels), np.ones((1, len(logits)))
    values = decision_statistic(true_EC, _at_half(probability_EC, labels))(ones) | area_statistic(
        true_EC, probability_EC, labels.positive
    )(ones)
    found = {name: float(values[name][0]) for name in ("accuracy", "macro_f1", "roc_auc", "pr_auc")}
    if labels.positive is not None:
        found |= {
            name: float(values[name][0, labels.positive]) for name in ("f1", "precision", "recall")
        }
        if np.isnan(found["precision"]):
            found["precision"] = 0.0
    if not labels.is_multiclass:
        found["best_f1"] = _best_f1(true_EC, probability_EC, labels)
    defined = {name: value for name, value in found.items() if np.isfinite(value)}
    return {"loss": float(nats_E.mean())} | defined


def _best_f1(true_EC: Bools, probability_EC: Floats, labels: Labels) -> float:
    """Mean over the labels with a threshold of the highest F1."""
    best = [
        choose_threshold("best_f1", probability_EC[:, label], true_EC[:, label]).f1 or 0.0
        for label in labels.with_threshold
    ]
    return float(np.mean(best))


def metric_name(name: str, labels: Labels) -> str:
    """What `labels.metric` of a recipe means: `auto` is f1 of two labels, else macro_f1.

    Raises:
        RequestError: f1 without a positive label.
    """
    if name == "f1" and labels.positive is None:
        kind = f"{len(labels.names)} labels"
        if labels.multiple:
            kind = "several per text"
        raise RequestError(
            f"labels.metric=f1 is about the positive of two labels; here there are {kind}. Use"
            " macro_f1."
        )
    if name != "auto":
        return name
    if labels.positive is None:
        return "macro_f1"
    return "f1"


def objective(metrics: Numbers, name: str, labels: Labels) -> float:
    """Return the value that the best model minimises: the loss, or minus the metric; infinite where
    it is undefined or not a number, so that such a model is never the best.

    F1 of the positive, and macro-F1 of several labels per text, are taken at each one's best
    threshold: thresholds are chosen after training, and at even odds a rare label has an F1 of 0
    for the first half of it.

    Args:
        metrics: Metrics by name, from `quick_metrics`.
        name: Name of the metric, the recipe's `labels.metric`.
        labels: Names, kind, positive.

    Raises:
        RequestError: see `metric_name`.
    """
    chosen = metric_name(name, labels)
    if chosen == "f1" or (chosen == "macro_f1" and labels.multiple):
        chosen = "best_f1"
    value = metrics.get(chosen, float("nan"))
    if not np.isfinite(value):
        return float("inf")
    if chosen == "loss":
        return value
    return 0.0 - value


@dataclass(frozen=True)
class _Judged:
    """A classifier's answers on examples: what was true, promised, given (all [E, C]), and the nats
    [E].
    """

    labels: Labels
    true_EC: Bools
    probability_EC: Floats
    given_EC: Bools
    nats_E: Floats

    @classmethod
    def of(
        cls,
        logits_EC: ArrayLike,
        split: "LabelledSplit",
        labels: Labels,
        calibration: LabelCalibration,
    ) -> "_Judged":
        logits = np.asarray(logits_EC, np.float64)
        if (strange := np.flatnonzero(~np.isfinite(logits).all(1))).size:
            raise RequestError(
                f"the logits of {strange.size} of {len(logits)} texts are not finite (first:"
                f" {split.wheres[strange[0]]}), so nothing can be scored. Look at the loss in"
                " metrics.jsonl; a lower learning rate or plan.precision=fp32 may help."
            )
        probability_EC = calibration.probabilities(logits, multiple=labels.multiple)
        nats_E = nats_per_example(
            logits,
            split.targets,
            temperature=calibration.temperature,
            multiple=labels.multiple,
            log_weights_C=calibration.offsets,
        )
        given_EC = as_indicators(calibration.decide(probability_EC, labels), labels)
        return cls(labels, as_indicators(split.targets, labels), probability_EC, given_EC, nats_E)

    def chosen(self, kept_E: Bools) -> "_Judged":
        return _Judged(
            self.labels,
            self.true_EC[kept_E],
            self.probability_EC[kept_E],
            self.given_EC[kept_E],
            self.nats_E[kept_E],
        )

    @property
    def count(self) -> int:
        return len(self.nats_E)

    @property
    def num_rankings(self) -> int:
        if self.labels.positive is None:
            return len(self.labels.names)
        return 1

    def statistics(self) -> list[Statistic]:
        return [
            decision_statistic(self.true_EC, self.given_EC),
            probability_statistic(self.true_EC, self.probability_EC, self.nats_E, self.labels),
        ]

    def areas(self) -> Statistic:
        return area_statistic(self.true_EC, self.probability_EC, self.labels.positive)

    def measured(self) -> BootstrapResult:
        return measure(
            self.count, self.statistics(), [self.areas()], num_rankings=self.num_rankings
        )


def _at_half(probability_EC: Floats, labels: Labels) -> Bools:
    if labels.multiple:
        return np.asarray(probability_EC >= 0.5)
    return as_indicators(probability_EC.argmax(1), labels)


def _prefixed(prefix: str, statistic: Statistic) -> Statistic:
    return lambda weights_RE: {
        prefix + name: value for name, value in statistic(weights_RE).items()
    }


def _as_json(scores: Mapping[str, MetricEstimate]) -> JsonDict:
    return {name: score.to_json() for name, score in scores.items()}


def _threshold_json(calibration: LabelCalibration, labels: Labels) -> JsonDict | None:
    value: Any = [threshold.value for threshold in calibration.thresholds]
    if not value:
        return None
    if not labels.multiple:
        value = value[0]
    return {
        "policy": calibration.policy,
        "value": value,
        "chosen_on": "validation",
        "reached": all(threshold.reached for threshold in calibration.thresholds),
        "notes": calibration.notes(labels),
    }


def _confusion(judged: _Judged) -> list[list[int]] | dict[str, list[list[int]]]:
    true_EC, given_EC = judged.true_EC, judged.given_EC
    if not judged.labels.multiple:
        count = len(judged.labels.names)
        pairs_E = true_EC.argmax(1) * count + given_EC.argmax(1)
        table: list[list[int]] = (
            np.bincount(pairs_E, minlength=count * count).reshape(count, count).tolist()
        )
        return table
    cells = [[~true_EC & ~given_EC, ~true_EC & given_EC], [true_EC & ~given_EC, true_EC & given_EC]]
    counts = [[cell.sum(0).tolist() for cell in row] for row in cells]
    return {
        name: [[cell[label] for cell in row] for row in counts]
        for label, name in enumerate(judged.labels.names)
    }


def _mistakes(judged: _Judged, split: "LabelledSplit", numbers_E: Ints) -> list[JsonDict]:
    """Examples with a wrong label, the most confident first: by the probability of the label given
    wrongly; with several labels per text by the probability of the most confident wrong decision.
    """
    wrong_EC = judged.true_EC != judged.given_EC
    if not judged.labels.multiple:
        wrong_EC &= judged.given_EC
    confidence_E = np.where(
        wrong_EC, np.where(judged.given_EC, judged.probability_EC, 1 - judged.probability_EC), -1.0
    ).max(1)
    order_E = np.argsort(-confidence_E, kind="stable")
    chosen = [place for place in order_E[:MOST_MISTAKES] if confidence_E[place] >= 0]
    return [
        {
            "text": _cut(split.texts[numbers_E[place]]),
            "label": _names(judged.true_EC[place], judged.labels),
            "predicted": _names(judged.given_EC[place], judged.labels),
            "probability": float(confidence_E[place]),
            "where": split.wheres[numbers_E[place]],
        }
        for place in chosen
    ]


def _names(chosen_C: Bools, labels: Labels) -> str:
    chosen = [labels.names[label] for label in np.flatnonzero(chosen_C)]
    return ", ".join(chosen) or "(none)"


def _cut(text: str) -> str:
    if len(text) <= MOST_CHARACTERS:
        return text
    return text[: MOST_CHARACTERS - 1] + "…"
