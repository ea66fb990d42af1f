"""Metrics under weights are scikit-learn's metrics on examples repeated as often."""

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    brier_score_loss,
    f1_score,
    log_loss,
    precision_score,
    recall_score,
    roc_auc_score,
)

from brimful.base.arrays import Bools, Floats, Floats32
from brimful.data.labels import Labels
from brimful.evaluation.label_metrics import (
    CALIBRATION_BINS,
    area_statistic,
    as_indicators,
    calibration_bins,
    decision_statistic,
    probability_statistic,
)

BINARY = Labels(("ham", "spam"), False, 1)
FOUR = Labels(("a", "b", "c", "d"), False, None)
SEVERAL = Labels(("a", "b", "c"), True, None)


def _answers(labels: Labels, num: int = 150, seed: int = 0) -> tuple[Bools, Floats]:
    """True labels and probabilities with ties, [E, C] both."""
    generator = np.random.default_rng(seed)
    count = len(labels.names)
    if labels.multiple:
        true_EC = generator.random((num, count)) < 0.3
        return true_EC, np.clip(0.3 * true_EC + generator.random((num, count)), 0.01, 0.99).round(2)
    true_EC = np.eye(count, dtype=bool)[generator.integers(count, size=num)]
    return true_EC, softmax(
        (2 * true_EC + 2 * generator.normal(size=(num, count))).round(0), axis=1
    )


def _weights(num: int, rows: int = 3, seed: int = 1) -> Floats32:
    """Ones, then bootstrap weights."""
    generator = np.random.default_rng(seed)
    drawn = [np.bincount(generator.integers(num, size=num), minlength=num) for _ in range(rows)]
    return np.stack([np.ones(num), *drawn]).astype(np.float32)


@pytest.mark.parametrize(
    "labels", [BINARY, FOUR, SEVERAL], ids=["two labels", "four", "several per text"]
)
def test_decisions_score_as_in_scikit_learn(labels: Labels) -> None:
    true_EC, probability_EC = _answers(labels)
    given_EC = (
        probability_EC >= 0.5
        if labels.multiple
        else as_indicators(probability_EC.argmax(1), labels)
    )
    weights_RE = _weights(len(true_EC))

    found = decision_statistic(true_EC, given_EC)(weights_RE)

    for row, weights_E in enumerate(weights_RE.astype(int)):
        true, given = np.repeat(true_EC, weights_E, 0), np.repeat(given_EC, weights_E, 0)
        assert found["accuracy"][row] == pytest.approx(accuracy_score(true, given))
        assert found["macro_f1"][row] == pytest.approx(f1_score(true, given, average="macro"))
        for name, score in (
            ("precision", precision_score),
            ("recall", recall_score),
            ("f1", f1_score),
        ):
            assert found[name][row] == pytest.approx(score(true, given, average=None))
        assert found["base_rate"][row] == pytest.approx(true.mean(0))


@pytest.mark.parametrize("label", [0, 1])
def test_areas_of_the_positive_label_are_those_of_scikit_learn(label: int) -> None:
    true_EC, probability_EC = _answers(BINARY)
    weights_RE = _weights(len(true_EC))

    found = area_statistic(true_EC, probability_EC, label)(weights_RE)

    for row, weights_E in enumerate(weights_RE):
        has_E, scores_E = true_EC[:, label], probability_EC[:, label]
        assert found["roc_auc"][row] == pytest.approx(
            roc_auc_score(has_E, scores_E, sample_weight=weights_E)
        )
        assert found["pr_auc"][row] == pytest.approx(
            average_precision_score(has_E, scores_E, sample_weight=weights_E)
        )


@pytest.mark.parametrize("labels", [FOUR, SEVERAL], ids=["four", "several per text"])
def test_areas_of_more_labels_are_means_of_each_against_the_rest(labels: Labels) -> None:
    true_EC, probability_EC = _answers(labels)
    ones = np.ones((1, len(true_EC)))

    found = area_statistic(true_EC, probability_EC, None)(ones)

    assert found["roc_auc"][0] == pytest.approx(
        roc_auc_score(true_EC, probability_EC, average="macro")
    )
    assert found["pr_auc"][0] == pytest.approx(
        average_precision_score(true_EC, probability_EC, average="macro")
    )


@pytest.mark.parametrize("labels", [BINARY, FOUR], ids=["two labels", "four"])
def test_loss_and_brier_score_are_those_of_scikit_learn(labels: Labels) -> None:
    true_EC, probability_EC = _answers(labels)
    targets = true_EC.argmax(1)
    nats_E = -np.log(probability_EC[true_EC])
    weights_RE = _weights(len(true_EC))

    found = probability_statistic(true_EC, probability_EC, nats_E, labels)(weights_RE)

    chosen_EC = probability_EC[:, 1] if labels is BINARY else probability_EC
    for row, weights_E in enumerate(weights_RE):
        assert found["loss"][row] == pytest.approx(
            log_loss(targets, probability_EC, sample_weight=weights_E), rel=1e-5
        )
        assert found["brier"][row] == pytest.approx(
            brier_score_loss(targets, chosen_EC, sample_weight=weights_E), rel=1e-5
        )


def test_the_brier_score_of_several_labels_is_the_mean_of_theirs() -> None:
    true_EC, probability_EC = _answers(SEVERAL)

    found = probability_statistic(true_EC, probability_EC, np.zeros(len(true_EC)), SEVERAL)(
        np.ones((1, len(true_EC)))
    )

    assert found["brier"][0] == pytest.approx(
        np.mean(
            [brier_score_loss(true_EC[:, label], probability_EC[:, label]) for label in range(3)]
        )
    )


@pytest.mark.parametrize(
    "labels", [BINARY, FOUR, SEVERAL], ids=["two labels", "four", "several per text"]
)
def test_the_calibration_error_is_the_mean_gap_of_the_bins(labels: Labels) -> None:
    true_EC, probability_EC = _answers(labels, 600)
    guess_N, outcome_N, bin_N = calibration_bins(true_EC, probability_EC, labels)

    gaps = [
        abs(guess_N[bin_N == each].mean() - outcome_N[bin_N == each].mean())
        * (bin_N == each).mean()
        for each in np.unique(bin_N)
    ]
    found = probability_statistic(true_EC, probability_EC, np.zeros(len(true_EC)), labels)(
        np.ones((1, len(true_EC)))
    )

    assert found["ece"][0] == pytest.approx(sum(gaps))
    assert all(len(np.unique(bin_N[guess_N == value])) == 1 for value in np.unique(guess_N))


def test_distinct_probabilities_fill_the_bins_equally() -> None:
    given_E = np.random.default_rng(0).random(1000)
    true_EC = np.eye(2, dtype=bool)[(given_E > 0.4).astype(int)]

    _, _, bin_N = calibration_bins(true_EC, np.column_stack([1 - given_E, given_E]), BINARY)

    assert np.bincount(bin_N).tolist() == pytest.approx(
        [1000 / CALIBRATION_BINS] * CALIBRATION_BINS, abs=1
    )


def test_promises_that_are_kept_have_a_small_calibration_error_and_inflated_ones_a_large_one() -> (
    None
):
    generator = np.random.default_rng(3)
    given_E = generator.random(20_000)
    true_EC = np.eye(2, dtype=bool)[(generator.random(20_000) < given_E).astype(int)]
    sharper_E = given_E**4 / (given_E**4 + (1 - given_E) ** 4)

    honest, inflated = (
        probability_statistic(true_EC, np.column_stack([1 - p, p]), np.zeros(20_000), BINARY)(
            np.ones((1, 20_000))
        )["ece"][0]
        for p in (given_E, sharper_E)
    )

    assert honest < 0.015
    assert inflated == pytest.approx(abs(sharper_E - given_E).mean(), abs=0.02)


def test_what_is_undefined_is_not_a_number_and_left_out_of_means() -> None:
    """Label 2 is neither there nor given, label 1 is given but not there: scikit-learn's macro-F1
    leaves out the former, too.
    """
    true_EC = as_indicators(np.array([0, 0, 0, 3]), FOUR)
    given_EC = as_indicators(np.array([0, 0, 1, 0]), FOUR)
    found = decision_statistic(true_EC, given_EC)(np.ones((1, 4)))
    areas = area_statistic(true_EC, given_EC.astype(float), None)(np.ones((1, 4)))

    assert np.isnan(found["precision"][0]).tolist() == [False, False, True, True]
    assert np.isnan(found["recall"][0]).tolist() == [False, True, True, False]
    assert np.isnan(found["f1"][0]).tolist() == [False, False, True, False]
    assert found["macro_f1"][0] == pytest.approx(
        f1_score([0, 0, 0, 3], [0, 0, 1, 0], average="macro")
    )
    assert areas["roc_auc"][0] == pytest.approx(
        np.mean([roc_auc_score(true_EC[:, label], given_EC[:, label]) for label in (0, 3)])
    )


@pytest.mark.parametrize("has", [True, False])
def test_areas_need_examples_with_and_without_the_label(has: bool) -> None:
    true_EC = np.column_stack([np.full(5, not has), np.full(5, has)])
    found = area_statistic(true_EC, np.random.default_rng(0).random((5, 2)), 1)(np.ones((1, 5)))

    assert np.isnan(found["roc_auc"][0])
    assert found["pr_auc"][0] == pytest.approx(1.0) if has else np.isnan(found["pr_auc"][0])


def test_no_examples_give_no_numbers() -> None:
    nothing_EC, none_EC = np.zeros((0, 2), bool), np.zeros((0, 2))
    statistics = [
        decision_statistic(nothing_EC, nothing_EC),
        area_statistic(nothing_EC, none_EC, 1),
        probability_statistic(nothing_EC, none_EC, np.zeros(0), BINARY),
    ]
    found = {
        name: value
        for statistic in statistics
        for name, value in statistic(np.ones((1, 0))).items()
    }

    assert all(
        np.isnan(found[name]).all()
        for name in (
            "accuracy",
            "f1",
            "macro_f1",
            "roc_auc",
            "pr_auc",
            "loss",
            "brier",
            "base_rate",
        )
    )
