"""From probabilities to labels: the threshold of a policy, chosen on validation, and the decision
by it.

Shapes: E examples, C labels, K candidates. A label is given where its probability is at least the
threshold.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from brimful.base.arrays import Bools, Floats, Ints
from brimful.base.errors import RequestError
from brimful.base.types import JsonDict

ROUNDING = 1e-12
"""9 of 10 reaches a precision of 0.9."""
ACCEPTED = (
    "best_f1, precision>=P or recall>=R with P and R above 0 and up to 1 (such as precision>=0.9),"
    " or a number between 0 and 1 (such as 0.5)"
)


@dataclass(frozen=True)
class Policy:
    """How a threshold is chosen.

    Attributes:
        kind: What it is about.
        goal: The least precision or recall, or the fixed threshold; None for best_f1.
    """

    kind: Literal["best_f1", "precision", "recall", "fixed"]
    goal: float | None = None

    def __str__(self) -> str:
        """The policy as `parse_policy` reads it."""
        if self.goal is None:
            return self.kind
        if self.kind == "fixed":
            return f"{self.goal:.15g}"
        return f"{self.kind}>={self.goal:.15g}"


@dataclass(frozen=True)
class Threshold:
    """A probability from which on a label is given, and what it does on the examples it was chosen
    on.

    Attributes:
        policy: Policy as the user wrote it, in one spelling.
        value: The threshold.
        precision: Precision on validation; None where the threshold gives the label to no example.
        recall: Recall on validation; None where no example has the label.
        f1: F1 on validation; None where no example has or gets the label.
        reached: Whether the policy's goal is reached there.
        note: A sentence for the user where it is not; else empty.
    """

    policy: str
    value: float
    precision: float | None
    recall: float | None
    f1: float | None
    reached: bool
    note: str = ""

    def to_json(self) -> JsonDict:
        """Return plain values for classifier.json."""
        return asdict(self)


def parse_policy(text: str) -> Policy:
    """`best_f1`, `precision>=0.9`, `recall>=0.95` or a number, blanks anywhere.

    Raises:
        RequestError: anything else; says what is accepted.
    """
    compact = "".join(text.split())
    if compact == "best_f1":
        return Policy("best_f1")
    match = re.fullmatch(
        r"(?:(precision|recall)>=)?(\d*\.?\d+(?:[eE]-?\d+)?|\d+\.)", compact, re.ASCII
    )
    if match:
        goal = float(match[2])
        if match[1] and 0 < goal <= 1:
            return Policy(cast('Literal["precision", "recall"]', match[1]), goal)
        if not match[1] and 0 < goal < 1:
            return Policy("fixed", goal)
    raise RequestError(f"threshold {text!r}: unknown. Accepted: {ACCEPTED}.")


def choose_threshold(
    policy_text: str,
    probabilities_E: ArrayLike,
    targets_E: ArrayLike,
    *,
    leans: bool = False,
) -> Threshold:
    """The threshold that a policy asks for, on examples that neither trained the model nor test it.

    Candidates lie midway between neighbouring distinct probabilities, and half the lowest one gives
    the label to all: examples of equal probability are never told apart. best_f1 takes the highest
    F1; precision>=P the highest recall among those that reach P; recall>=R the highest precision
    among those that reach R; of equal ones that nearest to 0.5. What cannot be reached gives the
    nearest (`reached` is False). The precision and recall told are those of the choice itself and
    so a little too good; other examples show the real ones.

    Args:
        policy_text: See `parse_policy`.
        probabilities_E: Calibrated probability of the label.
        targets_E: Whether each example has it.
        leans: Whether best_f1 takes the threshold nearest to one half whose F1 is lower by no more
            than the standard error of that difference: the best of many candidates is partly luck,
            and calibrated probabilities say one half.

    Raises:
        RequestError: the policy is unknown.
    """
    policy = parse_policy(policy_text)
    scores_E, has_label_E = np.asarray(probabilities_E, np.float64), np.asarray(targets_E) > 0.5
    if policy.kind == "fixed":
        return _threshold_at(policy, float(policy.goal or 0.5), scores_E, has_label_E, "")
    if not has_label_E.any():
        return _threshold_at(
            policy,
            0.5,
            scores_E,
            has_label_E,
            f"{policy} cannot be chosen: no validation example has the label; 0.5 is used.",
        )
    values_K, precision_K, recall_K = _candidates(scores_E, has_label_E)
    f1_K = 2 * precision_K * recall_K / np.maximum(precision_K + recall_K, ROUNDING)
    nearness_K = -abs(values_K - 0.5)
    note, goal = "", (policy.goal or 0) - ROUNDING
    allowed_K, first_K, second_K = np.ones(len(values_K), bool), f1_K, precision_K
    if policy.kind == "recall":
        allowed_K, first_K, second_K = recall_K >= goal, precision_K, recall_K
    elif policy.kind == "precision" and precision_K.max() >= goal:
        allowed_K, first_K = precision_K >= goal, recall_K
    elif policy.kind == "precision":
        first_K, second_K = precision_K, recall_K
        note = (
            f"{policy} is not reached on validation; the highest precision there is"
            f" {precision_K.max():.3f}."
        )
    elif policy.kind == "best_f1" and leans:
        value = _nearest_to_half(scores_E, has_label_E)
        return _threshold_at(policy, value, scores_E, has_label_E, note)
    order_K = np.lexsort((nearness_K, second_K.round(12), first_K.round(12), allowed_K))
    return _threshold_at(policy, float(values_K[order_K[-1]]), scores_E, has_label_E, note)


def decide(
    probabilities_EC: ArrayLike,
    thresholds: Sequence[float],
    *,
    positive: int | None,
    multiple: bool,
) -> Ints:
    """The labels that are given.

    Args:
        probabilities_EC: Calibrated.
        thresholds: One of two labels (the positive one's), one per label with several per text,
            none otherwise.
        positive: Number of the positive of two labels; None: no such label.
        multiple: Whether a text may have several labels.

    Returns:
        Label numbers [E]; with several labels per text [E, C] of 0 and 1.

    Raises:
        ValueError: the number of thresholds does not fit.
    """
    given_EC = np.asarray(probabilities_EC, np.float64)
    expected = int(positive is not None)
    if multiple:
        expected = given_EC.shape[1]
    if len(thresholds) != expected:
        raise ValueError(f"{len(thresholds)} thresholds where {expected} belong")
    if multiple:
        return (given_EC >= np.asarray(thresholds)).astype(np.int64)
    if positive is None:
        return np.asarray(given_EC.argmax(1), np.int64)
    return np.where(given_EC[:, positive] >= thresholds[0], positive, 1 - positive).astype(np.int64)


def _candidates(scores_E: Floats, has_label_E: Bools) -> tuple[Floats, Floats, Floats]:
    """Thresholds [K], K distinct probabilities from the highest down, with the precision and recall
    of each. (scikit-learn's curve has the probabilities themselves as thresholds; training calls
    this at every evaluation, and importing scikit-learn takes a second.)
    """
    order_E = np.argsort(-scores_E, kind="stable")
    sorted_E = scores_E[order_E]
    last_K = np.append(np.flatnonzero(np.diff(sorted_E)), len(sorted_E) - 1)
    distinct_K = sorted_E[last_K]
    below_K = np.append(distinct_K[1:], 0.0)
    middle_K = (distinct_K + below_K) / 2
    # Where no float lies between two neighbours, the threshold is the higher one.
    values_K = np.where(middle_K > below_K, middle_K, distinct_K)
    hits_K = np.cumsum(has_label_E[order_E])[last_K]
    return values_K, hits_K / (last_K + 1), hits_K / has_label_E.sum()


def _nearest_to_half(scores_E: Floats, has_label_E: Bools) -> float:
    """The threshold nearest to one half whose F1 is within a standard error of the best."""
    values_K, _, recall_K = _candidates(scores_E, has_label_E)
    num_with_label = int(has_label_E.sum())
    hits_K = np.rint(recall_K * num_with_label)
    given_K = len(scores_E) - np.searchsorted(np.sort(scores_E), values_K).astype(np.float64)
    f1_K = 2 * hits_K / (given_K + num_with_label)
    best = int(np.lexsort((-abs(values_K - 0.5), f1_K.round(12)))[-1])
    is_close_K = f1_K[best] - f1_K <= _error_of_difference(hits_K, given_K, num_with_label, best)
    # All thresholds between two neighbouring probabilities are the same: one half, if it is there.
    given_at_half = (scores_E >= 0.5).sum()
    at_half_K = np.where(given_K == given_at_half, 0.5, values_K)
    close = np.flatnonzero(is_close_K)
    return float(at_half_K[close[np.argmin(abs(at_half_K[close] - 0.5))]])


def _error_of_difference(hits_K: Floats, given_K: Floats, num_with_label: int, best: int) -> Floats:
    """Standard error [K] of F1 at the best candidate less F1 at each, over the same examples, by
    the influence of an example on F1 = 2 hits / (given + with label) (Hampel 1974).
    """
    base_K = given_K + num_with_label
    missed_K = -2 * hits_K / base_K / base_K  # what a wrong or a missed example changes
    hit_K = 2 / base_K + 2 * missed_K  # a hit is both given and with the label
    hits, given, missed, hit = hits_K[best], given_K[best], missed_K[best], hit_K[best]
    both, both_given = np.minimum(hits_K, hits), np.minimum(given_K, given)
    is_lower_K = given_K >= given
    between, between_wrong = abs(hits_K - hits), abs((given_K - hits_K) - (given - hits))
    changed_hit_K = np.where(is_lower_K, hit_K - missed, hit - missed_K)
    changed_wrong_K = np.where(is_lower_K, missed_K, missed)
    return np.asarray(
        np.sqrt(
            both * (hit_K - hit) ** 2
            + between * changed_hit_K**2
            + (num_with_label - both - between) * (missed_K - missed) ** 2
            + (both_given - both) * (missed_K - missed) ** 2
            + between_wrong * changed_wrong_K**2
        )
    )


def _threshold_at(
    policy: Policy, value: float, scores_E: Floats, has_label_E: Bools, note: str
) -> Threshold:
    """Measure precision, recall and F1 of the label at a threshold.

    Args:
        value: The threshold.
        scores_E: Probabilities of the label.
        has_label_E: Whether an example has the label.
        note: Why the policy's goal is not reached; "" where it is.
    """
    given_E = scores_E >= value
    hits = int((given_E & has_label_E).sum())
    num_given, num_with_label = int(given_E.sum()), int(has_label_E.sum())
    return Threshold(
        policy=str(policy),
        value=value,
        precision=_share(hits, num_given),
        recall=_share(hits, num_with_label),
        f1=_share(2 * hits, num_given + num_with_label),
        reached=not note,
        note=note,
    )


def _share(part: int, whole: int) -> float | None:
    if not whole:
        return None
    return part / whole
