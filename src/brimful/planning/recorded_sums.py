"""Sizes and counts that are sums, such as bytes that FSDP2 sends for all weights of a block: which
sum each is follows from its values in a few recordings.

Suffix: P recordings.
"""

from collections.abc import Sequence

import numpy as np

from brimful.planning.family import SUMMANDS, values_at
from brimful.planning.family_key import StepSize, TraceFamilyKey
from brimful.planning.parametric import Irregular
from brimful.planning.trace import Int64Array


class TooFew(Irregular):
    """Several formulas give what was recorded; another recording may decide between them."""


def sums_of(key: TraceFamilyKey, sizes: Sequence[StepSize], values: Int64Array) -> Int64Array:
    """Return, for each recorded size, the bytes for each product in the key's `sums`.

    Args:
        key: Names the sums that sizes can be.
        sizes: Dimensions of the P recordings.
        values: Recorded sizes in bytes (P x anything).

    Returns:
        Bytes (products x anything), at least 0; 0 for the products of the other sums.

    Raises:
        TooFew: several of the sums give the recorded sizes.
        Irregular: none of them does.
    """
    sums = np.zeros((sum(map(len, key.sums)), values.shape[1]), np.int64)
    is_found, start = np.zeros(values.shape[1], np.bool_), 0
    for names in key.sums:
        worth = np.array([[size.product(name) for name in names] for size in sizes], np.int64)
        solved = _solved(worth, values)
        matches = (worth @ solved == values).all(axis=0) & (solved >= 0).all(axis=0)
        if (matches & is_found).any():
            raise TooFew("two sums cannot be told apart")
        sums[start : start + len(names), matches] = solved[:, matches]
        is_found |= matches
        start += len(names)
    if not is_found.all():
        raise Irregular("a size is no product of the micro-batch, the sequence length and the rank")
    return sums


def constants_of(
    key: TraceFamilyKey, names: Sequence[str], sizes: Sequence[StepSize], values: Int64Array
) -> Int64Array:
    """Return the coefficients of recorded numbers that are sums of some of SUMMANDS.

    Args:
        key: Of a model that is divided among devices or not.
        names: Those of SUMMANDS that can occur; the coefficients of the others are 0.
        sizes: Dimensions of the P recordings.
        values: Recorded numbers (P x anything).

    Returns:
        Coefficients (summands x anything), of the first three or, for a divided model, of all.

    Raises:
        TooFew: the recordings do not determine the coefficients.
        Irregular: some values are no such sums.
    """
    worth = np.array([[size.product(name) for name in names] for size in sizes], np.int64)
    number = len(SUMMANDS) if key.in_parts else SUMMANDS.index("T") + 1
    solved = np.zeros((number, values.shape[1]), np.int64)
    solved[[SUMMANDS.index(name) for name in names]] = _solved(worth, values)
    if any(
        not np.array_equal(values_at(solved, size), value)
        for size, value in zip(sizes, values, strict=True)
    ):
        raise Irregular("a sum does not grow evenly")
    return solved


def constant_and_part(
    key: TraceFamilyKey, checks: Sequence[StepSize], values: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the coefficients of "" and of "P" among SUMMANDS, from the two recordings that check
    the others, which differ in the rows that a device holds. A model that is not divided has one
    such recording, and no "P".

    Args:
        key: Of the recordings.
        checks: Their dimensions.
        values: What is left of recorded numbers without the other summands (checks x anything).

    Raises:
        Irregular: the coefficients are no whole numbers.
    """
    if not key.in_parts:
        return values[0], np.zeros_like(values[0])
    one, other = checks
    part, rest = np.divmod(values[0] - values[1], one.part - other.part)
    if rest.any():
        raise Irregular("what a further block adds is no share of a whole")
    return values[1] - part * other.part, part


def _solved(worth: Int64Array, values: Int64Array) -> Int64Array:
    """Return the whole numbers that are nearest to solving worth @ numbers = values."""
    if np.linalg.matrix_rank(worth.astype(float)) < worth.shape[1]:
        raise TooFew("too few recordings for sums")
    solved = np.linalg.lstsq(worth.astype(float), values.astype(float), rcond=None)[0]
    whole: Int64Array = np.rint(solved).astype(np.int64)
    return whole
