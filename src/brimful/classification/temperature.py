"""From logits to probabilities that mean what they say: one temperature, fitted on validation (Guo
et al. 2017), and the base rate brought back; where label weights bent it, by a fitted bias per
label, too.

Shapes: E examples, C labels. Targets: int64 [E] label numbers where an example has one label;
float32 [E, C] of 0 and 1 where it may have several.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize, minimize_scalar

from brimful.base.arrays import Array, Floats

TEMPERATURE_BOUNDS = (math.exp(-3.0), math.exp(3.0))
"""0.05 to 20: far beyond what trained models need."""
LOG_TEMPERATURE_SPREAD = 1.0
"""Standard deviation of the prior on log T. It costs 0.5 nats in all (not per example) at T = 2.7:
nothing beside some hundred examples, but it holds T where validation has no mistake, whose
likelihood alone would sharpen without end.
"""

BIAS_SPREAD, MOST_BIAS = 1.0, 10.0
"""Standard deviation of the prior on a label's bias, in nats, and the largest bias."""


def log_probabilities(
    logits_EC: ArrayLike,
    *,
    temperature: float,
    multiple: bool,
    log_weights_C: ArrayLike | None = None,
) -> Floats:
    """Log-probabilities [E, C], finite for finite logits: log-softmax over labels (single), or
    log-sigmoid of each (multiple).

    See `probabilities` for the arguments.
    """
    scaled_EC = _scaled(logits_EC, temperature, log_weights_C)
    if multiple:
        return -np.logaddexp(0.0, -scaled_EC)
    return scaled_EC - np.logaddexp.reduce(scaled_EC, axis=1, keepdims=True)


def probabilities(
    logits_EC: ArrayLike,
    *,
    temperature: float,
    multiple: bool,
    log_weights_C: ArrayLike | None = None,
) -> Floats:
    """Probabilities [E, C] in float64: softmax (single) or sigmoid (multiple) of (logits - log
    weights) / T.

    A model trained with label weights w learns p proportional to w_c p(c | x) (Elkan 2001, section
    3); its logits are too large by log w_c, for one label per text up to what all labels share.
    Taking that off brings the base rate of the training texts back. With several labels per text
    the weight is that of a label's positives, and the odds are too large by it.

    Args:
        logits_EC: Logits as the model gives them.
        temperature: T, above 0; above 1 flattens.
        multiple: Whether a text may have several labels.
        log_weights_C: log w_c of training; None: trained without weights.
    """
    return np.exp(
        log_probabilities(
            logits_EC, temperature=temperature, multiple=multiple, log_weights_C=log_weights_C
        )
    )


def nats_per_example(
    logits_EC: ArrayLike,
    targets: Array,
    *,
    temperature: float = 1.0,
    multiple: bool,
    log_weights_C: ArrayLike | None = None,
) -> Floats:
    """Cross-entropy [E] in nats: -log p of the label; with several labels per text the mean over
    its C yes-or-no questions, as in training.
    """
    scaled_EC = _scaled(logits_EC, temperature, log_weights_C)
    if multiple:
        return np.asarray(
            np.logaddexp(0.0, np.where(np.asarray(targets) > 0.5, -scaled_EC, scaled_EC)).mean(1)
        )
    return np.asarray(
        np.logaddexp.reduce(scaled_EC, axis=1) - scaled_EC[np.arange(len(scaled_EC)), targets]
    )


def fit_temperature(logits_EC: ArrayLike, targets: Array, *, multiple: bool) -> float:
    """The temperature that makes the validation targets most likely (Guo et al. 2017, section 4.2),
    by a bounded search in log T.

    Deviations: log T has a normal prior of spread `LOG_TEMPERATURE_SPREAD` around 0 (T = 1), see
    there; and where every validation example is on the right side, T is not below 1: a few dozen
    examples without a mistake are no evidence that the model may be surer of itself than it is.

    Args:
        logits_EC: Logits of the validation split, which did not train the model.
        targets: Targets of the validation split.
        multiple: Whether a text may have several labels.

    Returns:
        Within `TEMPERATURE_BOUNDS`; 1.0 with fewer than two examples or where a logit is not
        finite.
    """
    logits = np.asarray(logits_EC, np.float64)
    if not _can_be_fitted(logits):
        return 1.0
    offsets_C = np.zeros(logits.shape[1])

    def cost_nats(log_temperature: float) -> float:
        nats = _total_nats(logits, targets, log_temperature, offsets_C, multiple=multiple)
        return nats + 0.5 * (log_temperature / LOG_TEMPERATURE_SPREAD) ** 2

    bounds = _log_bounds(logits, targets, multiple=multiple)
    found = minimize_scalar(cost_nats, bounds=bounds, method="bounded", options={"xatol": 1e-6})
    return math.exp(float(found.x))


def fit_temperature_and_bias(
    logits_EC: ArrayLike,
    targets: Array,
    *,
    multiple: bool,
    log_weights_C: ArrayLike,
) -> tuple[float, Floats]:
    """Fit as `fit_temperature` does, for a model that was trained with label weights: with a bias
    [C] that is added to the scaled logits (Guo et al. 2017, section 4.2, vector scaling with one
    slope).

    Taking log w off brings the base rate back only if training followed the weights to the end. A
    model that learned every training text has no reason to, and what is left of them is a bias.
    Deviation: the bias has a normal prior of spread `BIAS_SPREAD` around 0.

    Returns:
        The temperature and the bias; 1 and zeros with fewer than two examples or where a logit is
        not finite.
    """
    logits = np.asarray(logits_EC, np.float64)
    num_labels = logits.shape[1]
    if not _can_be_fitted(logits):
        return 1.0, np.zeros(num_labels)
    offsets_C = np.asarray(log_weights_C, np.float64)

    def cost_nats(settings: Floats) -> float:
        bias_C = settings[1:]
        bent_C = offsets_C - math.exp(settings[0]) * bias_C
        nats = _total_nats(logits, targets, settings[0], bent_C, multiple=multiple)
        prior = (settings[0] / LOG_TEMPERATURE_SPREAD) ** 2 + (bias_C**2).sum() / BIAS_SPREAD**2
        return nats + 0.5 * float(prior)

    bounds = [
        _log_bounds(logits - offsets_C, targets, multiple=multiple),
        *[(-MOST_BIAS, MOST_BIAS)] * num_labels,
    ]
    found = minimize(cost_nats, np.zeros(num_labels + 1), method="L-BFGS-B", bounds=bounds)
    return math.exp(float(found.x[0])), np.asarray(found.x[1:], np.float64)


def _can_be_fitted(logits_EC: Floats) -> bool:
    return len(logits_EC) >= 2 and bool(np.isfinite(logits_EC).all())


def _total_nats(
    logits_EC: Floats, targets: Array, log_temperature: float, offsets_C: Floats, *, multiple: bool
) -> float:
    """Nats of all decisions."""
    nats_E = nats_per_example(
        logits_EC,
        targets,
        temperature=math.exp(log_temperature),
        multiple=multiple,
        log_weights_C=offsets_C,
    )
    return (logits_EC.shape[1] if multiple else 1) * float(nats_E.sum())


def _log_bounds(logits_EC: Floats, targets: Array, *, multiple: bool) -> tuple[float, float]:
    """Bounds of log T; 0 is the lower one where every example is on the right side."""
    if multiple:
        is_wrong = (logits_EC > 0) != (np.asarray(targets) > 0.5)
    else:
        is_wrong = logits_EC.argmax(1) != targets
    low, high = map(math.log, TEMPERATURE_BOUNDS)
    return low if is_wrong.any() else 0.0, high


def _scaled(logits_EC: ArrayLike, temperature: float, log_weights_C: ArrayLike | None) -> Floats:
    logits = np.asarray(logits_EC, np.float64)
    if log_weights_C is not None:
        logits = logits - np.asarray(log_weights_C, np.float64)
    return np.asarray(logits / temperature)
