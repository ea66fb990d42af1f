"""What turns a trained classifier's logits into labels, chosen on validation and kept in the run:
temperature, weights taken off, a bias for what is left of them, thresholds.
"""

import math
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from brimful.base.arrays import Array, Floats, Ints
from brimful.base.errors import RequestError, RunFolderError
from brimful.base.types import Json, JsonDict
from brimful.classification.temperature import (
    fit_temperature,
    fit_temperature_and_bias,
    probabilities,
)
from brimful.classification.thresholds import (
    Threshold,
    choose_threshold,
    decide,
    parse_policy,
)
from brimful.data.labels import Labels

_SHOWN = 10
"""Thresholds that are listed one by one."""


@dataclass(frozen=True)
class LabelCalibration:
    """Chosen on validation; the same in evaluation and prediction.

    Attributes:
        temperature: See `temperature.fit_temperature`.
        log_weights: log of the label weights of training, one per label; None: trained without.
        bias: Added to the scaled logits, one per label, where there are label weights; None:
            nothing (see `temperature.fit_temperature_and_bias`).
        policy: The policy of the thresholds, in one spelling.
        thresholds: One for two labels, one per label with several per text, none otherwise (the
            likeliest label is given).
    """

    temperature: float
    log_weights: tuple[float, ...] | None
    policy: str
    thresholds: tuple[Threshold, ...]
    bias: tuple[float, ...] | None = None

    @property
    def offsets(self) -> tuple[float, ...] | None:
        """What is subtracted from the logits, one value per label, before they are divided by the
        temperature: `log_weights - temperature * bias`; None: nothing.
        """
        if self.log_weights is None or self.bias is None:
            return self.log_weights
        pairs = zip(self.log_weights, self.bias, strict=True)
        return tuple(weight - self.temperature * bias for weight, bias in pairs)

    def probabilities(self, logits_EC: ArrayLike, *, multiple: bool) -> Floats:
        """Calibrated probabilities [E, C] (see `temperature.probabilities`)."""
        return probabilities(
            logits_EC,
            temperature=self.temperature,
            multiple=multiple,
            log_weights_C=self.offsets,
        )

    def decide(self, probabilities_EC: ArrayLike, labels: Labels) -> Ints:
        """The labels given by the thresholds (see `thresholds.decide`).

        Of more than two labels the likeliest is given once the label weights of training are put on
        again: they say how much a missed text of a label costs, and taken off as in the
        probabilities they would have no say.
        """
        if self.log_weights is not None and labels.positive is None and not labels.multiple:
            probabilities_EC = np.asarray(probabilities_EC, np.float64) * np.exp(self.log_weights)
        values = [threshold.value for threshold in self.thresholds]
        return decide(probabilities_EC, values, positive=labels.positive, multiple=labels.multiple)

    def notes(self, labels: Labels) -> list[str]:
        """What the user must know about thresholds that were not reached, with the label's name."""
        return [
            f"{name}: {threshold.note}"
            for name, threshold in self._by_name(labels)
            if threshold.note
        ]

    def lines(self, labels: Labels) -> list[str]:
        """Say from which probability on labels are given, and what that does on validation; ten
        labels at most.
        """
        lines = [
            f"{name} from a probability of {threshold.value:.3g} on: {threshold.policy}; on"
            f" validation precision {_rate(threshold.precision)}, recall {_rate(threshold.recall)}"
            for name, threshold in self._by_name(labels)
        ]
        if len(lines) > _SHOWN:
            lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more thresholds"]
        return lines

    def _by_name(self, labels: Labels) -> list[tuple[str, Threshold]]:
        names = [labels.names[label] for label in labels.with_threshold]
        return list(zip(names, self.thresholds, strict=False))

    def to_json(self) -> JsonDict:
        """Return plain values for classifier.json."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Json) -> "LabelCalibration":
        """What `to_json` wrote.

        Raises:
            RunFolderError: something is missing or of another kind.
        """
        try:
            log_weights, temperature = value["log_weights"], float(value["temperature"])
            thresholds = tuple(Threshold(**threshold) for threshold in value["thresholds"])
            if log_weights is not None:
                log_weights = tuple(map(float, log_weights))
            bias = value.get("bias")
            if bias is not None:
                bias = tuple(map(float, bias))
            policy = str(parse_policy(value["policy"]))
        except (KeyError, TypeError, ValueError, RequestError) as error:
            raise RunFolderError(
                f"the calibration of this classifier cannot be read ({type(error).__name__}:"
                f" {error}); train again."
            ) from error
        if not temperature > 0 or not math.isfinite(temperature):
            raise RunFolderError(
                f"the calibration of this classifier has temperature {temperature}; it must be"
                " above 0. Train again."
            )
        return cls(temperature, log_weights, policy, thresholds, bias)


def choose_calibration(
    logits_EC: ArrayLike,
    targets: Array,
    labels: Labels,
    policy: str,
    log_weights_C: ArrayLike | None = None,
) -> LabelCalibration:
    """Fit the temperature on validation, then choose the thresholds on its probabilities.

    Args:
        logits_EC: Logits of the validation split as the model gives them; texts that repeat
            training texts left out.
        targets: int64 [E] label numbers, or float32 [E, C] of 0 and 1.
        labels: Names, kind, positive.
        policy: Policy of thresholds; with more than two labels and one per text it is not used.
        log_weights_C: log of the label weights of training; None: trained without.

    Raises:
        RequestError: the policy is unknown.
    """
    policy = str(parse_policy(policy))
    unset = _without_thresholds(logits_EC, targets, labels, policy, log_weights_C)
    given_EC = unset.probabilities(logits_EC, multiple=labels.multiple)
    return replace(unset, thresholds=choose_thresholds(policy, given_EC, targets, labels))


def _without_thresholds(
    logits_EC: ArrayLike,
    targets: Array,
    labels: Labels,
    policy: str,
    log_weights_C: ArrayLike | None,
) -> LabelCalibration:
    """The temperature, and the bias where there are label weights."""
    if log_weights_C is None:
        temperature = fit_temperature(logits_EC, targets, multiple=labels.multiple)
        return LabelCalibration(temperature, None, policy, ())
    temperature, bias_C = fit_temperature_and_bias(
        logits_EC, targets, multiple=labels.multiple, log_weights_C=log_weights_C
    )
    log_weights = tuple(np.asarray(log_weights_C, np.float64).tolist())
    return LabelCalibration(temperature, log_weights, policy, (), tuple(bias_C.tolist()))


def _rate(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:.3f}"


def choose_thresholds(
    policy: str, probabilities_EC: ArrayLike, targets: Array, labels: Labels
) -> tuple[Threshold, ...]:
    """The thresholds of `LabelCalibration`, such as for another policy at prediction time.

    Raises:
        RequestError: the policy is unknown.
    """
    given_EC, thresholds = np.asarray(probabilities_EC, np.float64), []
    for label in labels.with_threshold:
        has_E = targets == label
        if labels.multiple:
            has_E = targets[:, label]
        thresholds.append(choose_threshold(policy, given_EC[:, label], has_E, leans=True))
    return tuple(thresholds)
