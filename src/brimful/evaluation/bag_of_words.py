"""The baseline ("floor") that a fine-tuned classifier has to beat: logistic regression on words and
pairs of words, tuned on validation.

Shapes: E texts, C labels, F features.
"""

import itertools
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from brimful.base.arrays import Array, Bools, Floats, Ints
from brimful.base.errors import DataError
from brimful.base.types import Counts, JsonDict
from brimful.classification.calibration import LabelCalibration, choose_calibration
from brimful.data.bins import spread_evenly
from brimful.data.labels import Labels
from brimful.evaluation.label_metrics import area_statistic, as_indicators, decision_statistic
from brimful.evaluation.label_scores import Rival

if TYPE_CHECKING:
    from brimful.data.labelled import LabelledSplit

NAME = "bag of words with logistic regression"
WORDS_AND_MARKS = r"(?u)\w+|[^\w\s]"
"""Words of any length, and every mark by itself: scikit-learn's own pattern drops marks and words
of one letter, which lowers the average precision on SMS spam by 0.01 (measured).
"""
INVERSE_PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)
"""C of scikit-learn. Rows of TF-IDF have length 1, so that its default of 1 is too strong."""
INVERSE_PENALTY_UNTUNED = 10.0
LARGE = 100_000
"""Texts times regressions (labels, but one for two labels) above which nothing is tuned and rare
features are left out.
"""
MAX_TEXTS, MAX_WEIGHTS, FEWEST_FEATURES = 500_000, 5_000_000, 20_000
ITERATIONS = 1000
ABSENT = -30.0
"""Logit of a label that no training text has."""
CLASS_WEIGHTS = {False: None, True: "balanced"}
"""scikit-learn's name by whether labels weigh by rarity."""


@dataclass(frozen=True)
class RegressionCandidate:
    """A setting that was tried, and what it reached on validation (PR-AUC; macro-F1 where the
    likeliest of more than two labels is given).
    """

    inverse_penalty: float
    is_balanced: bool
    score: float


@dataclass(frozen=True)
class Floor:
    """A fitted floor.

    Attributes:
        vectorizer: Texts to TF-IDF features.
        weights_FC: Weights of the features for the logits; of two labels the first one's are 0.
        bias_C: Bias of the logits.
        calibration: Temperature and thresholds, chosen on validation as the model's are.
        candidates: Settings tried, in order; none where nothing was tuned.
        settings: The chosen setting, how it was chosen, and the seconds it took.
    """

    vectorizer: TfidfVectorizer
    weights_FC: Floats
    bias_C: Floats
    calibration: LabelCalibration
    candidates: tuple[RegressionCandidate, ...]
    settings: JsonDict

    def logits(self, texts: Sequence[str]) -> Floats:
        """[E, C]."""
        return np.asarray(
            self.vectorizer.transform(texts) @ self.weights_FC + self.bias_C, np.float64
        )

    def on(self, split: "LabelledSplit") -> Rival:
        """Its answers on a split, for `score_labels`."""
        return Rival(NAME, self.logits(split.texts), self.calibration, self.settings)


def bag_of_words(
    train: "LabelledSplit", validation: "LabelledSplit", labels: Labels, policy: str
) -> Floor:
    """Fit the floor on training texts; choose penalty, weighting of labels, temperature and
    thresholds on validation.

    TF-IDF with logarithmic counts of single tokens and neighbouring pairs (bigrams: Wang and
    Manning 2012), lower case. The penalty is one of `INVERSE_PENALTIES`, labels weigh equally or by
    rarity ("balanced"); chosen is the best area under precision and recall, with more than two
    labels and one per text the best macro-F1 of the likeliest label. Balanced weights are taken off
    again for two labels and for several per text, where the threshold decides (see
    `temperature.probabilities`); where the likeliest label is given they stay, since that is what
    they are for. Validation texts that repeat training texts choose nothing. Several labels per
    text: a regression each.

    Args:
        train: Texts and targets.
        validation: Theirs; without any, nothing is tuned.
        labels: Names, kind, positive.
        policy: Policy of the thresholds, the same as the model's.

    Raises:
        DataError: no training text holds a word or a mark.
        RequestError: the policy is unknown.
    """
    started_s = time.perf_counter()
    kept = np.flatnonzero(~validation.is_repeated_E)
    texts, targets = [validation.texts[number] for number in kept], validation.targets[kept]
    chosen = spread_evenly(len(train.texts), MAX_TEXTS)
    regressions = len(labels.names)
    if labels.positive is not None:
        regressions = 1
    is_large, limits = len(train.texts) * regressions > LARGE, {}
    if is_large and len(chosen) > 1:
        limits = {"min_df": 2, "max_features": max(FEWEST_FEATURES, MAX_WEIGHTS // regressions)}
    vectorizer, features_EF = _features([train.texts[number] for number in chosen], limits)
    validation_EF = None
    if texts:
        validation_EF = vectorizer.transform(texts)
    fitting = _ClassifierFit(
        features_EF, as_indicators(train.targets[chosen], labels), validation_EF, targets, labels
    )
    grid, chosen_by = [(INVERSE_PENALTY_UNTUNED, False)], "nothing"
    is_tuned = bool(texts) and not is_large
    if is_tuned:
        grid = list(itertools.product(INVERSE_PENALTIES, (False, True)))
        chosen_by = f"{fitting.criterion} on validation, of {len(grid)} candidates"
    # Handing vectors this small between threads takes longer than computing with them: 19 s of CPU
    # time in place of 1.
    with threadpool_limits(1):
        tried = [fitting.fitted(*setting) for setting in grid]
    # Of equal scores `max` takes the first: the stronger penalty, without weights.
    best = max(tried, key=lambda fit: fit.setting.score)
    settings: JsonDict = {
        "features": "TF-IDF of tokens and neighbouring pairs, logarithmic counts, lower case",
        "num_features": features_EF.shape[1],
        "training_texts": len(chosen),
        "inverse_penalty": best.setting.inverse_penalty,
        "class_weight": CLASS_WEIGHTS[best.setting.is_balanced] or "equal",
        "chosen_by": chosen_by,
        "converged": best.has_converged,
        "seconds": round(time.perf_counter() - started_s, 2),
    }
    if note := _note(len(train.texts), len(chosen), is_large, bool(texts)):
        settings["note"] = note
    candidates: tuple[RegressionCandidate, ...] = ()
    if is_tuned:
        candidates = tuple(fit.setting for fit in tried)
    logits_EC = fitting.validation_logits(best)
    calibration = choose_calibration(logits_EC, targets, labels, policy, best.log_weights_C)
    return Floor(vectorizer, best.weights_FC, best.bias_C, calibration, candidates, settings)


@dataclass(frozen=True)
class _Fit:
    setting: RegressionCandidate
    weights_FC: Floats
    bias_C: Floats
    log_weights_C: Floats | None
    has_converged: bool


@dataclass(frozen=True)
class _ClassifierFit:
    """The data that the candidates are fitted to and chosen by. The features are sparse matrices of
    SciPy; those of validation are None without validation texts.
    """

    train_EF: Any
    true_EC: Bools
    validation_EF: Any
    targets: Array
    labels: Labels

    @property
    def criterion(self) -> str:
        if self.labels.is_multiclass:
            return "macro_f1"
        return "pr_auc"

    def fitted(self, penalty: float, is_balanced: bool) -> _Fit:
        fit = self._one_regression
        if self.labels.multiple:
            fit = self._regression_per_label
        weights_FC, bias_C, log_weights_C, has_converged = fit(penalty, is_balanced)
        if self.labels.is_multiclass or not is_balanced:
            log_weights_C = None
        setting = RegressionCandidate(penalty, is_balanced, 0.0)
        found = _Fit(setting, weights_FC, bias_C, log_weights_C, has_converged)
        return replace(found, setting=replace(setting, score=self._score(found)))

    def _one_regression(
        self, penalty: float, is_balanced: bool
    ) -> tuple[Floats, Floats, Floats | None, bool]:
        """Weights [F, C], biases [C], logarithms of the label weights [C], whether it converged."""
        count = self.true_EC.shape[1]
        weights_FC, bias_C = np.zeros((self.train_EF.shape[1], count)), np.full(count, ABSENT)
        classes, weights, biases, has_converged = _regression(
            self.train_EF, self.true_EC.argmax(1), penalty, is_balanced
        )
        weights_FC[:, classes], bias_C[classes] = weights, biases
        log_weights_C = -np.log(np.maximum(self.true_EC.sum(0), 1))
        return weights_FC, bias_C, log_weights_C, has_converged

    def _regression_per_label(
        self, penalty: float, is_balanced: bool
    ) -> tuple[Floats, Floats, Floats | None, bool]:
        """Fit a regression for each label, of which a text may have several."""
        count = self.true_EC.shape[1]
        weights_FC, bias_C = np.zeros((self.train_EF.shape[1], count)), np.full(count, ABSENT)
        log_weights_C, has_converged = np.zeros(count), True
        for label in range(count):
            has_E = self.true_EC[:, label]
            classes, weights, biases, converged = _regression(
                self.train_EF, has_E.astype(np.int64), penalty, is_balanced
            )
            has_converged &= converged
            if len(classes) == 2:
                weights_FC[:, label], bias_C[label] = weights[:, 1], biases[1]
            elif 1 in classes:
                bias_C[label] = -ABSENT
            log_weights_C[label] = np.log(max(1, int((~has_E).sum())) / max(1, int(has_E.sum())))
        return weights_FC, bias_C, log_weights_C, has_converged

    def validation_logits(self, fit: _Fit) -> Floats:
        """[E, C]; no rows without validation texts."""
        if self.validation_EF is None:
            return np.zeros((0, len(self.labels.names)))
        return np.asarray(self.validation_EF @ fit.weights_FC + fit.bias_C)

    def _score(self, fit: _Fit) -> float:
        """The criterion on validation; 0 where it is undefined. The logits rank the texts as the
        probabilities do.
        """
        if self.validation_EF is None:
            return 0.0
        logits_EC = self.validation_logits(fit)
        true_EC, ones = as_indicators(self.targets, self.labels), np.ones((1, len(logits_EC)))
        if self.labels.is_multiclass:
            likeliest_EC = as_indicators(logits_EC.argmax(1), self.labels)
            values = decision_statistic(true_EC, likeliest_EC)(ones)
        else:
            values = area_statistic(true_EC, logits_EC, self.labels.positive)(ones)
        return float(np.nan_to_num(values[self.criterion][0]))


def _features(texts: list[str], limits: Counts) -> tuple[TfidfVectorizer, Any]:
    """Return a fitted vectorizer and the features of its texts.

    Args:
        limits: `min_df` and `max_features` of the vectorizer; empty: all features.
    """
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2),
        sublinear_tf=True,
        token_pattern=WORDS_AND_MARKS,
        dtype=np.float32,
        **limits,
    )
    if not any(text.strip() for text in texts):
        raise DataError(
            "the training texts hold no word and no mark, so there is nothing to count. Look at"
            " data.text_column."
        )
    return vectorizer, vectorizer.fit_transform(texts)


def _regression(
    features_EF: Any, numbers_E: Ints, penalty: float, is_balanced: bool
) -> tuple[Ints, Floats, Floats, bool]:
    """The classes there are, their weights [F, classes] and biases, and whether the fit
    converged.
    """
    classes = np.unique(numbers_E)
    if len(classes) == 1:
        return classes, np.zeros((features_EF.shape[1], 1)), np.zeros(1), True
    model = LogisticRegression(
        C=penalty, class_weight=CLASS_WEIGHTS[is_balanced], max_iter=ITERATIONS
    )
    with warnings.catch_warnings():
        # The settings record whether the fit converged.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features_EF, numbers_E)
    weights, biases = model.coef_.T, model.intercept_
    if len(classes) == 2:
        weights, biases = np.column_stack([np.zeros_like(weights), weights]), np.append(0.0, biases)
    return classes, weights, biases, bool(model.n_iter_.max() < ITERATIONS)


def _note(available: int, used: int, is_large: bool, has_validation: bool) -> str:
    parts = []
    if used < available:
        parts.append(f"{used} of {available} training texts, evenly taken")
    if is_large:
        parts.append(
            "a large set: nothing was tuned but the thresholds, features of one text left out"
        )
    if not has_validation:
        parts.append("no validation texts: nothing was tuned")
    return "; ".join(parts)
