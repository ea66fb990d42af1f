"""Probabilities mean what they say after one temperature, and the base rate comes back."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, softmax
from sklearn.metrics import log_loss

from brimful.base.arrays import Floats
from brimful.classification.temperature import (
    TEMPERATURE_BOUNDS,
    fit_temperature,
    fit_temperature_and_bias,
    log_probabilities,
    nats_per_example,
    probabilities,
)


def _drawn(
    num: int, labels: int, temperature: float, *, multiple: bool = False, seed: int = 0
) -> tuple[Floats, NDArray[np.generic]]:
    """Logits and targets drawn from them at a temperature."""
    generator = np.random.default_rng(seed)
    logits_EC = 1.5 * generator.normal(size=(num, labels))
    if multiple:
        return logits_EC, (generator.random((num, labels)) < expit(logits_EC / temperature)).astype(
            np.float32
        )
    upto_EC = softmax(logits_EC / temperature, axis=1).cumsum(1)
    return logits_EC, (generator.random((num, 1)) > upto_EC[:, :-1]).sum(1)


@pytest.mark.parametrize("multiple", [False, True])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_targets_were_drawn_at_is_found(
    temperature: float, multiple: bool
) -> None:
    logits_EC, targets = _drawn(4000, 3, temperature, multiple=multiple)

    assert fit_temperature(logits_EC, targets, multiple=multiple) == pytest.approx(
        temperature, rel=0.06
    )


def test_beside_hundreds_of_examples_the_prior_weighs_nothing() -> None:
    logits_EC, targets = _drawn(500, 2, 2.0)
    likeliest = minimize_scalar(
        lambda log_t: nats_per_example(
            logits_EC, targets, temperature=math.exp(log_t), multiple=False
        ).sum(),
        bounds=(-3, 3),
    )

    assert fit_temperature(logits_EC, targets, multiple=False) == pytest.approx(
        math.exp(likeliest.x), rel=0.02
    )


def test_without_a_mistake_the_temperature_stays_at_one_and_its_likelihood_alone_would_not() -> (
    None
):
    targets = np.arange(60) % 2
    logits_EC = 4.0 * np.eye(2)[targets]

    found = fit_temperature(logits_EC, targets, multiple=False)

    assert found == pytest.approx(1.0, abs=1e-4)
    losses = [
        nats_per_example(logits_EC, targets, temperature=t, multiple=False).sum()
        for t in (found, TEMPERATURE_BOUNDS[0])
    ]
    assert losses[1] < losses[0]


def test_one_mistake_among_many_lets_the_temperature_fall_moderately() -> None:
    targets = np.arange(60) % 2
    logits_EC = 0.5 * np.eye(2)[targets]
    logits_EC[0] = logits_EC[0, ::-1]

    assert 0.1 < fit_temperature(logits_EC, targets, multiple=False) < 1.0


@pytest.mark.parametrize("sign", [1.0, -1.0], ids=["all right", "all wrong"])
def test_the_temperature_keeps_its_bounds(sign: float) -> None:
    targets = np.arange(5000) % 2

    found = fit_temperature(sign * 1e-3 * np.eye(2)[targets], targets, multiple=False)

    assert TEMPERATURE_BOUNDS[0] <= found <= TEMPERATURE_BOUNDS[1]
    assert found == pytest.approx(1.0, abs=1e-4) if sign > 0 else found > 1


@pytest.mark.parametrize(
    "logits", [[], [[1.0, 2.0]], [[1.0, np.nan], [0.0, 1.0]], [[1.0, np.inf], [0.0, 1.0]]]
)
def test_where_nothing_can_be_fitted_the_temperature_is_one(logits: list[list[float]]) -> None:
    assert (
        fit_temperature(
            np.array(logits).reshape(-1, 2), np.zeros(len(logits), np.int64), multiple=False
        )
        == 1.0
    )


def test_probabilities_are_softmax_or_sigmoid_of_scaled_logits() -> None:
    logits_EC = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32) * 5

    single = probabilities(logits_EC, temperature=1.7, multiple=False)
    several = probabilities(logits_EC, temperature=1.7, multiple=True)

    assert single.dtype == several.dtype == np.float64
    assert single == pytest.approx(softmax(logits_EC.astype(np.float64) / 1.7, axis=1))
    assert several == pytest.approx(expit(logits_EC.astype(np.float64) / 1.7))


def test_taking_the_weights_off_brings_the_base_rate_back() -> None:
    """Under weights w the best model says w_c p(c | x), normalised (Elkan 2001); with several
    labels per text the odds are w times too large.
    """
    natural_EC = softmax(np.random.default_rng(2).normal(size=(50, 3)), axis=1)
    weights_C = np.array([0.5, 3.0, 9.0])

    single = probabilities(
        np.log(natural_EC * weights_C),
        temperature=1.0,
        multiple=False,
        log_weights_C=np.log(weights_C),
    )
    several = probabilities(
        np.log(weights_C * natural_EC / (1 - natural_EC)),
        temperature=1.0,
        multiple=True,
        log_weights_C=np.log(weights_C),
    )

    assert single == pytest.approx(natural_EC)
    assert several == pytest.approx(natural_EC)


def test_what_is_left_of_label_weights_is_found_as_a_bias() -> None:
    """Training followed only half of the log weights: taking all of them off goes too far."""
    random = np.random.default_rng(0)
    true_EC = random.normal(0, 1.5, (4000, 2)) + np.array([2.0, 0.0])
    probability_E = 1 / (1 + np.exp(true_EC[:, 0] - true_EC[:, 1]))
    targets_E = (random.random(4000) < probability_E).astype(np.int64)
    log_weights_C = np.log([0.6, 5.0])
    logits_EC = 2.0 * (true_EC + 0.5 * log_weights_C)

    temperature, bias_C = fit_temperature_and_bias(
        logits_EC, targets_E, multiple=False, log_weights_C=log_weights_C
    )

    fitted_EC = (logits_EC - log_weights_C) / temperature + bias_C
    found_E = 1 / (1 + np.exp(fitted_EC[:, 0] - fitted_EC[:, 1]))
    assert np.abs(found_E - probability_E).max() < 0.05
    alone = fit_temperature(logits_EC - log_weights_C, targets_E, multiple=False)
    without = probabilities(
        logits_EC, temperature=alone, multiple=False, log_weights_C=log_weights_C
    )
    assert abs(without[:, 1].mean() - targets_E.mean()) > 4 * abs(found_E.mean() - targets_E.mean())


def test_nats_are_minus_the_log_probability_of_what_was_true() -> None:
    logits_EC, targets = _drawn(200, 3, 1.0)
    several_EC, yes_EC = _drawn(200, 3, 1.0, multiple=True)
    given_EC = probabilities(several_EC, temperature=1.3, multiple=True)

    nats_E = nats_per_example(logits_EC, targets, temperature=1.3, multiple=False)

    assert nats_E.mean() == pytest.approx(
        log_loss(targets, probabilities(logits_EC, temperature=1.3, multiple=False))
    )
    expected_E = -np.where(yes_EC > 0, np.log(given_EC), np.log(1 - given_EC)).mean(1)
    assert nats_per_example(several_EC, yes_EC, temperature=1.3, multiple=True) == pytest.approx(
        expected_E
    )


def test_extreme_logits_have_finite_nats_and_log_probabilities() -> None:
    logits_EC = np.array([[1e5, -1e5], [-1e5, 1e5]])

    for multiple, targets in (
        (False, np.array([1, 1])),
        (True, np.array([[0, 1], [0, 1]], np.float32)),
    ):
        assert np.isfinite(log_probabilities(logits_EC, temperature=0.05, multiple=multiple)).all()
        assert np.isfinite(
            nats_per_example(logits_EC, targets, temperature=0.05, multiple=multiple)
        ).all()
