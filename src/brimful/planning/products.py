"""What recorded numbers are whole numbers times: products of everything that a family leaves open,
or one of a few sums of them.

Suffixes: P recordings, N numbers that are recorded in each, K terms.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from brimful.base.arrays import Ints
from brimful.planning.architecture import Monomial, Widths, monomials
from brimful.planning.block_rows import Irregular
from brimful.planning.family import Sums, Term, joined_sums
from brimful.planning.family_key import StepSize, TraceFamilyKey
from brimful.planning.step import StepSpec
from brimful.planning.trace import Trace

_IN_UPDATES = ("", "r", "T", "P", "rP", "A")
"""Products that parameters and what their updates touch can be."""
_LARGEST = float(2**62)


class TooFew(Irregular):
    """Several formulas give what was recorded; another recording may decide between them."""


@dataclass(frozen=True, eq=False)
class SmallRecording:
    """One recording.

    Attributes:
        size: Its dimensions.
        widths: The widths of its network, where the family is of every one.
        trace: Trace with work and details, if these were recorded.
    """

    size: StepSize
    widths: Widths | None
    trace: Trace


@dataclass(frozen=True, eq=False)
class Products:
    """Writes recorded numbers as sums of whole numbers times terms.

    Attributes:
        key: What the recordings share.
        few: Those that decide.
        checks: Those that are compared, with one block more where the model has more.
        stretches: Whether the model has more.
        letters: Letters of widths that are open, but for those that are another's.
    """

    key: TraceFamilyKey
    few: tuple[SmallRecording, ...]
    checks: tuple[SmallRecording, ...]
    stretches: bool
    letters: str = ""

    @cached_property
    def _monomials(self) -> tuple[Monomial, ...]:
        return tuple(monomials(self.letters, divisors_of(self.key.spec)))

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """What numbers may be multiples of."""
        return tuple(Term(name, each) for each in self._monomials for name in self.key.products)

    def worth(self, member: SmallRecording) -> Ints:
        """Return the value of each term in the steps of a recording and in its evaluation batch
        (2 x K); one that is too large for any number counts as the largest.
        """
        sizes = (member.size, self.key.evaluated(member.size))
        names = self.key.products
        products = np.array([[each.product(name) for name in names] for each in sizes], np.int64)
        widths = member.widths
        values = np.ones(1, np.int64) if widths is None else widths.of(self._monomials)
        worth = values[:, None] * products[:, None, :]
        too_large = np.abs(values[:, None].astype(float) * products[:, None, :]) > _LARGEST
        return np.where(too_large, int(_LARGEST), worth).reshape(2, -1)

    @cached_property
    def _worth_P2K(self) -> Ints:  # noqa: N802 - shape suffix
        return np.stack([self.worth(each) for each in self.few])

    def found(
        self,
        values: Ints,
        evaluates_N: np.ndarray,
        products: Sequence[str] | None = None,
        *,
        sums: bool = False,
    ) -> Sums:
        """Return recorded numbers (P x N) as sums of terms. The first N summands belong to the N
        numbers in their order.

        Args:
            values: The numbers.
            evaluates_N: Those of the evaluation batch.
            products: Products of the key that they can be; all without.
            sums: Whether they can be the key's sums, too.
        """
        columns, first = np.unique(
            np.vstack([values, evaluates_N.astype(np.int64)]), axis=1, return_inverse=True
        )
        first = first.ravel()
        factor, term = self._single(columns[:-1], columns[-1], products or self.key.products)
        count = len(first)
        made = Sums(count, np.arange(count), factor[first], np.maximum(term, 0)[first])
        open_ = np.flatnonzero(term < 0)
        if not len(open_):
            return made
        if not sums:
            raise Irregular("a size is no product of widths, micro-batch, length and rank")
        parts = [made]
        for names, coefficients in zip(
            self.key.sums, self._solved(columns[:-1, open_]), strict=True
        ):
            for name, numbers in zip(names, coefficients, strict=True):
                number = np.zeros(columns.shape[1], np.int64)
                number[open_] = numbers
                places = np.flatnonzero(number[first])
                terms = np.full(len(places), self.key.products.index(name))
                parts.append(Sums(count, places, number[first][places], terms))
        return joined_sums(parts)

    def _single(
        self, values: Ints, evaluates_N: Ints, products: Sequence[str]
    ) -> tuple[Ints, Ints]:
        """Return, for each number, the whole factor and the index of the one term that it is a
        multiple of; the index is -1 where there is no such term.
        """
        factor, term = np.zeros(values.shape[1], np.int64), np.full(values.shape[1], -1, np.int64)
        term[~values.any(axis=0)] = 0
        open_, divisor = term < 0, 1
        for number, each in enumerate(self._monomials):
            if each.divisor != divisor:
                open_, divisor = term < 0, each.divisor
            if not open_.any():
                break
            for name in products if each.divisor == 1 else ("",):
                index = number * len(self.key.products) + self.key.products.index(name)
                quotient, rest = np.divmod(values, self._worth_P2K[:, evaluates_N, index])
                matches = open_ & ~rest.any(axis=0) & (quotient == quotient[0]).all(axis=0)
                matches &= quotient[0] != 0
                if (matches & (term >= 0)).any():
                    raise TooFew("two products cannot be told apart")
                factor[matches], term[matches] = quotient[0][matches], index
        return factor, term

    def _solved(self, values: Ints) -> list[Ints]:
        """Return for each of the key's sums the whole numbers that its products are multiplied
        with to give these numbers (P x N); 0 where another sum gives them.
        """
        solved, is_found = [], np.zeros(values.shape[1], np.bool_)
        for names in self.key.sums:
            worth = self._worth_P2K[:, 0, [self.key.products.index(name) for name in names]]
            numbers = _whole_solution(worth, values)
            matches = (worth @ numbers == values).all(axis=0)
            if self.key.in_parts:
                matches &= (numbers >= 0).all(axis=0)
            if (matches & is_found).any():
                raise TooFew("two sums cannot be told apart")
            solved.append(np.where(matches, numbers, 0))
            is_found |= matches
        if not is_found.all():
            raise Irregular("a size is no product of widths, micro-batch, length and rank")
        return solved

    def at(self, sums: Sums, member: SmallRecording, evaluates_N: np.ndarray) -> Ints:
        """Return what the sums come to in one recording."""
        steps, evaluation = (sums.at(worth_K) for worth_K in self.worth(member))
        return np.where(evaluates_N, evaluation, steps)

    def longer(
        self, like: Sums, check: SmallRecording, values: Ints, evaluates_N: np.ndarray
    ) -> Sums:
        """Return numbers of the longer recording as those of the others with another factor."""
        difference = values - self.at(like, check, evaluates_N)
        main = like.terms_A[: like.count]
        more, rest = np.divmod(difference, self.worth(check)[evaluates_N.astype(int), main])
        if rest.any() or (self.letters and main[more != 0].any()):
            raise Irregular("a number outside the blocks grows by no product")
        factors_A = like.factors_A.copy()
        factors_A[: like.count] += more
        return dataclasses.replace(like, factors_A=factors_A)

    def summed(
        self, values: Sequence[Ints], count: int, groups: Sequence[Ints]
    ) -> tuple[Sums, Sums]:
        """Return sums over parameters, in the recordings with few blocks and with one more.

        Args:
            values: What is summed, in each recording.
            count: How many sums there are.
            groups: Which sum each value belongs to.
        """
        number = len(self.few)
        products = [name for name in _IN_UPDATES if name in self.key.products]
        if not self.key.follows and "T" in products:
            products.remove("T")
        few = self.found(np.stack(values[:number]), np.zeros(len(values[0]), np.bool_), products)
        short = few.moved(count, groups[0]).gathered()
        if not self.stretches:
            for check, actual in zip(self.checks, values[number:], strict=True):
                if not np.array_equal(few.at(self.worth(check)[0]), actual):
                    raise Irregular("a sum over parameters is not what the others say it is")
            return short, short
        longer = self._known(few, values[number:])
        return short, longer.moved(count, groups[-1]).gathered()

    def _known(self, few: Sums, values: Sequence[Ints]) -> Sums:
        """Return what numbers in the longer recordings are: one of those in the others each."""
        factors, terms = np.unique(np.stack([few.factors_A, few.terms_A]), axis=1)
        worth = factors * np.stack([self.worth(each)[0][terms] for each in self.checks])
        keys = np.unique(worth, axis=1)
        if keys.shape[1] < worth.shape[1]:
            raise Irregular("two products are equal in the last recording")
        row_of = {tuple(column): row for row, column in enumerate(worth.T.tolist())}
        found = np.array([row_of.get(tuple(each), -1) for each in np.stack(values).T.tolist()], int)
        other = found < 0
        last, smallest = values[-1], worth[-1][terms > 0].min(initial=np.iinfo(np.int64).max)
        if (np.stack(values) != last)[:, other].any():
            raise Irregular("one block more has parameters of other sizes")
        if (last[other] >= smallest).any():
            constants = few.factors_A[few.terms_A == 0]
            gone = np.sort(constants[~np.isin(constants, last)])
            if len(gone) != other.sum() or not (gone < np.sort(last[other])).all():
                raise Irregular("one block more has parameters of other sizes")
        # What is of no other: it counts parameters, as norms that are stacked.
        return Sums(
            len(last),
            np.arange(len(last)),
            np.where(other, last, factors[found]),
            np.where(other, 0, terms[found]),
        )


def divisors_of(spec: StepSpec) -> tuple[int, ...]:
    """Return the numbers of elements that share a scale in a step."""
    packed = (2, 64, 16_384) if spec.quantize == "nf4" else ()
    return (*packed, 256) if "8bit" in spec.optimizer else packed


def _whole_solution(worth: Ints, values: Ints) -> Ints:
    """Return the whole numbers that are nearest to solving worth @ numbers = values."""
    if np.linalg.matrix_rank(worth.astype(float)) < worth.shape[1]:
        raise TooFew("too few recordings for sums")
    whole = np.zeros((worth.shape[1], values.shape[1]), np.int64)
    for _ in range(2):  # once more for what rounding left
        left = (values - worth @ whole).astype(float)
        whole += np.rint(np.linalg.lstsq(worth.astype(float), left, rcond=None)[0]).astype(np.int64)
    return whole
