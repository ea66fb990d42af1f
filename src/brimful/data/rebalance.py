"""Fewer training texts of the frequent one of two labels, so that the positive one has the share
that was asked for.

Validation and test stay as they are: precision and PR-AUC at a share that nobody meets in use would
flatter. What that does to the model's probabilities is known: the frequent label's odds are too low
by the share of its texts that was kept (King and Zeng 2001), which is taken off like label weights.
"""

import math
from collections.abc import Sequence

import numpy as np
import xxhash

from brimful.base.arrays import Floats
from brimful.base.errors import DataError
from brimful.data.labels import Labels
from brimful.data.repeats import LabelledRow
from brimful.data.rows import Row, cell_of
from brimful.recipe import RebalanceRecipe

CONFIDENCE_KEY = "labels.rebalance.confidence"


def confidence_of(row: Row, rules: RebalanceRecipe | None) -> float:
    """Return how sure a row's label is, 0 where no column says so.

    Raises:
        DataError: the column is missing, or holds no number.
    """
    if rules is None or rules.confidence is None:
        return 0.0
    value = cell_of(row.columns, rules.confidence, row.where, CONFIDENCE_KEY)
    try:
        confidence = float(value)
    except (TypeError, ValueError):
        confidence = math.nan
    if math.isnan(confidence):
        raise DataError(
            f"{row.where}: {CONFIDENCE_KEY}={rules.confidence} names a column of numbers, and here"
            f" is {value!r}. Name the column that says how sure a label is, or leave the key out."
        )
    return confidence


def rebalanced(
    rows: Sequence[LabelledRow], labels: Labels, rules: RebalanceRecipe
) -> tuple[list[LabelledRow], Floats | None, str]:
    """Leave out training texts of the label that is not the positive one, the least sure first, in
    no order that depends on the file among equally sure ones.

    Args:
        rows: The rows of all splits.
        labels: One of two is positive.
        rules: The share.

    Returns:
        rows: What is left, in the same order.
        log_kept_C: log of the share of each label's training texts that was kept; None: all.
        note: What was done, in a sentence.

    Raises:
        DataError: there is no positive label.
    """
    if labels.positive is None or labels.positive_name is None:
        raise DataError(
            "labels.rebalance belongs to two labels, one per text, of which one is positive. Leave"
            " it out; labels.class_weights=balanced weighs any number of labels."
        )
    positive = labels.positive_name
    training = [place for place, row in enumerate(rows) if row.split == 0]
    others = [place for place in training if positive not in rows[place].labels]
    num_positive = len(training) - len(others)
    most = max(1, math.floor(num_positive * (1 - rules.share) / rules.share + 1e-9))
    if most >= len(others):
        share = num_positive / max(1, len(training))
        note = f"labels.rebalance: {positive!r} has {share:.1%} of the training texts already"
        return list(rows), None, note
    others.sort(
        key=lambda place: (
            -rows[place].confidence,
            xxhash.xxh3_64_hexdigest(rows[place].text.encode()),
        )
    )
    dropped = frozenset(others[most:])
    log_kept_C = np.full(len(labels.names), math.log(most / len(others)))
    log_kept_C[labels.positive] = 0.0
    note = (
        f"labels.rebalance: {len(dropped):,} of {len(others):,} training texts without the label"
        f" {positive!r} are left out, so that it has {rules.share:.1%} of the rest; validation"
        " and test stay as they are"
    )
    return [row for place, row in enumerate(rows) if place not in dropped], log_kept_C, note
