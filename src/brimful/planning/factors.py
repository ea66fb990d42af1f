"""What recorded numbers are products of.

Suffixes: P recordings, N numbers that are recorded in each, K products, M monomials.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.planning.architecture import Widths, monomials
from brimful.planning.family_key import StepSize, TraceFamilyKey
from brimful.planning.parametric import Irregular
from brimful.planning.skeleton import Sums
from brimful.planning.step import StepSpec
from brimful.planning.trace import Int64Array

SUM_PRODUCTS = ("", "r")
"""What numbers of parameters and updates grow with: the rows of a ShortFamily's sums."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Numbers as a factor, a product of the key and a monomial each."""

    factor_N: Int64Array
    product_N: Int64Array
    monomial_N: Int64Array

    def only(self, chosen: Int64Array) -> "Terms":
        """Return some of them."""
        return Terms(self.factor_N[chosen], self.product_N[chosen], self.monomial_N[chosen])


class Factors:
    """Finds products: of the key, times a monomial, times a whole number.

    Args:
        key: What the recordings share.
        sizes, widths: Of each recording; all but the last one determine the products.
        letters: Of widths that are not those of another letter.
    """

    def __init__(
        self,
        key: TraceFamilyKey,
        sizes: Sequence[StepSize],
        widths: Sequence[Widths],
        letters: str,
    ) -> None:
        self._key = key
        self.monomials = tuple(monomials(letters, divisors_of(key.spec)))
        self._worth_P2K = np.stack([worth_of(key, size) for size in sizes])
        self._values_PM = np.stack([each.of(self.monomials) for each in widths])

    def of(
        self,
        values: Int64Array,
        is_evaluation: np.ndarray,
        products: tuple[str, ...] | None = None,
    ) -> Terms:
        """Return the terms of recorded numbers (P x N).

        Raises:
            Irregular: a number is no product, or several.
        """
        columns, first = np.unique(
            np.vstack([values, is_evaluation.astype(np.int64)]), axis=1, return_inverse=True
        )
        found = self._found(columns[:-1], columns[-1], products or self._key.products)
        return found.only(first.ravel())

    def of_accesses(self, values: list[Int64Array]) -> tuple[Terms, Terms]:
        """Return the terms of the update's accesses in all recordings but the last one, and in that
        one.
        """
        none = np.zeros(len(values[0]), np.bool_)
        terms = self.of(np.stack(values[:-1]), none, self._sum_products)
        return terms, self._known(terms, values[-1])

    def of_sums(
        self,
        values: list[Int64Array],
        shape: tuple[int, ...],
        groups: tuple[Int64Array, Int64Array] | None = None,
    ) -> tuple[Sums, Sums]:
        """Return sums of numbers by what they grow with, and by group where `shape` has such, in
        all recordings but the last one, and in that one.
        """
        rank = self._key.products.index("r") if self._key.has_rank else -1
        found = []
        for number, terms in enumerate(self.of_accesses(values)):
            places = (terms.product_N == rank) * int(np.prod(shape[1:]))
            if groups is not None:
                places = places + groups[number]
            found.append(Sums(shape, places, terms.factor_N, terms.monomial_N).gathered())
        return found[0], found[1]

    def at_check(self, terms: Terms, is_evaluation: np.ndarray) -> Int64Array:
        """Return the numbers in the last recording."""
        worth = self._worth_P2K[-1][is_evaluation.astype(int), terms.product_N]
        values = self._values_PM[-1][terms.monomial_N]
        numbers: Int64Array = terms.factor_N * worth * values
        return numbers

    @property
    def _sum_products(self) -> tuple[str, ...]:
        return tuple(name for name in SUM_PRODUCTS if name in self._key.products)

    def _known(self, terms: Terms, values: Int64Array) -> Terms:
        """Return the terms of numbers in the last recording, which are among those of the
        others.
        """
        rows = np.unique(np.stack([terms.factor_N, terms.product_N, terms.monomial_N]), axis=1)
        known = Terms(*rows)
        worth = self.at_check(known, np.zeros(rows.shape[1], np.bool_))
        order = np.argsort(worth, kind="stable")
        if len(np.unique(worth)) < len(worth):
            raise Irregular("two products are equal in the last recording")
        at = np.minimum(np.searchsorted(worth[order], values), len(order) - 1)
        found = known.only(order[at])
        other = worth[order][at] != values
        grows = (known.product_N > 0) | (known.monomial_N > 0)
        smallest = worth[grows].min(initial=np.iinfo(np.int64).max)
        if (values[other] >= smallest).any() and not _grown(terms, values, other):
            raise Irregular("one block more has parameters of other sizes")
        # What counts parameters, as norms that are stacked.
        for array, value in ((found.factor_N, values), (found.product_N, 0), (found.monomial_N, 0)):
            array[other] = value[other] if isinstance(value, np.ndarray) else value
        return found

    def _found(
        self, values: Int64Array, is_evaluation: Int64Array, products: tuple[str, ...]
    ) -> Terms:
        count = values.shape[1]
        factor, product, monomial = (np.full(count, start, np.int64) for start in (0, -1, 0))
        product[~values.any(axis=0)] = 0
        open_, divisor = product < 0, 1
        for number, each in enumerate(self.monomials):
            if each.divisor != divisor:
                open_, divisor = product < 0, each.divisor
            if not open_.any():
                break
            for name in products if each.divisor == 1 else ("",):
                index = self._key.products.index(name)
                worth = self._worth_P2K[:-1, is_evaluation, index] * self._values_PM[:-1, [number]]
                quotient, rest = np.divmod(values, worth)
                matches = open_ & ~rest.any(axis=0) & (quotient == quotient[0]).all(axis=0)
                matches &= quotient[0] != 0
                if (matches & (product >= 0)).any():
                    raise Irregular("two products cannot be told apart")
                factor[matches], product[matches] = quotient[0][matches], index
                monomial[matches] = number
        if (product < 0).any():
            raise Irregular("a size is no product of widths, micro-batch, length and rank")
        return Terms(factor, product, monomial)


def _grown(few: Terms, values: Int64Array, other: np.ndarray) -> bool:
    """Return whether the other values stand in for as many constants that were smaller with fewer
    blocks.
    """
    constants = few.factor_N[(few.product_N == 0) & (few.monomial_N == 0)]
    gone = np.sort(constants[~np.isin(constants, values)])
    return len(gone) == other.sum() and bool((gone < np.sort(values[other])).all())


def divisors_of(spec: StepSpec) -> tuple[int, ...]:
    """Return the numbers of elements that share a scale in a step."""
    packed = (2, 64, 16_384) if spec.quantize == "nf4" else ()
    return (*packed, 256) if spec.optimizer == "8bit" else packed


def worth_of(key: TraceFamilyKey, size: StepSize) -> Int64Array:
    """Return the value of each product in a recording's steps and in its evaluation batch
    (2 x K).
    """
    sizes = (size, size.evaluation(key.evaluation_factor))
    return np.array([[each.product(name) for name in key.products] for each in sizes], np.int64)
