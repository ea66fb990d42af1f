"""Numbers that are sums, found from what they are in a few recordings.

Suffix: P recordings.
"""

from collections.abc import Sequence

import numpy as np

from brimful.planning.family import CONSTANTS, values_at
from brimful.planning.family_key import StepSize, TraceFamilyKey
from brimful.planning.parametric import Irregular
from brimful.planning.trace import Int64Array


class TooFew(Irregular):
    """Further recordings may tell apart what agrees in these."""


def sums_of(key: TraceFamilyKey, sizes: Sequence[StepSize], values: Int64Array) -> Int64Array:
    """Return the numbers of the key's sums (products x anything) that values (P x anything) are.

    Raises:
        TooFew: several sums are possible.
        Irregular: none is.
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
    """Return the coefficients of the first of CONSTANTS, of all of them in parts, for values
    (P x anything) that are sums of those with these names.

    Raises:
        TooFew: there are fewer recordings than names.
        Irregular: values are no such sums.
    """
    worth = np.array([[size.product(name) for name in names] for size in sizes], np.int64)
    number = len(CONSTANTS) if key.in_parts else CONSTANTS.index("T") + 1
    solved = np.zeros((number, values.shape[1]), np.int64)
    solved[[CONSTANTS.index(name) for name in names]] = _solved(worth, values)
    if any(
        not np.array_equal(values_at(solved, size), value)
        for size, value in zip(sizes, values, strict=True)
    ):
        raise Irregular("a sum does not grow evenly")
    return solved


def constant_and_part(
    key: TraceFamilyKey, checks: Sequence[StepSize], values: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the constant of values in the recordings for checking (P x anything), and what they
    grow by with the rows of a part.

    Raises:
        Irregular: they do not grow by whole numbers.
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
