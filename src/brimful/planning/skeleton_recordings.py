"""A skeleton from recordings of small networks of one structure, in which widths, micro-batch,
sequence length and rank all differ.

Every size, and every summand of the operators' counts, is one product of them; that is checked, and
so is a further recording, of other widths and with one block more.

Suffixes: P recordings, N numbers that are recorded in each; others as in `recordings`.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from brimful.planning.architecture import Widths
from brimful.planning.factors import Factors, Terms, worth_of
from brimful.planning.family import FamilyCalls, ShortFamily
from brimful.planning.family_key import StepSize, TraceFamilyKey
from brimful.planning.parametric import Irregular, equal, stretch
from brimful.planning.skeleton import Skeleton, Sums
from brimful.planning.trace import Int64Array, Trace, same_events
from brimful.planning.work import (
    COUNTS,
    GLOBAL,
    PARTS,
    Details,
    IrregularWork,
    Work,
    block_growth,
    refuse_others,
)

BYTES = {"bytes_W": "bytes_", "fused_bytes_W": "fused_bytes_"}
"""Counts that are sums over accesses, and the names of these without their suffix."""


@dataclass(frozen=True, eq=False)
class SkeletonRecordings:
    """Recordings of small steps, the last one for checking.

    Attributes:
        key: What they share; its config has no widths.
        sizes, widths, traces: Of each recording; the last one has one block more than `example`.
        example: Blocks of the others.
        letters: Of widths that are not those of another letter.
    """

    key: TraceFamilyKey
    sizes: tuple[StepSize, ...]
    widths: tuple[Widths, ...]
    traces: tuple[Trace, ...]
    example: int
    letters: str

    def refuse_unlike(self) -> None:
        """Raise Irregular if recordings with the same number of blocks differ in more than
        sizes.
        """
        first, *others = self.traces
        for other in others:
            if not same_events(first, other) or first.marks != other.marks:
                raise Irregular("the events differ between two networks")
            try:
                refuse_others(_work(first), _work(other))
            except IrregularWork as irregular:
                raise Irregular(str(irregular)) from irregular
            for name in ("rows_D", "rows_U", "calls_N", "trains_P"):
                one, another = (getattr(_details(each), name) for each in (first, other))
                if not np.array_equal(one, another):
                    raise Irregular("operators touch other tensors")
            if not _details(first).calls.alike(_details(other).calls):
                raise Irregular("updates call other operators")

    def skeleton(self) -> Skeleton:
        """Return the skeleton.

        Raises:
            Irregular: a size is no product, or the last recording differs from the products.
        """
        few = dataclasses.replace(self, traces=self.traces[:-1])
        few.refuse_unlike()
        first = self.traces[0]
        factors = Factors(self.key, self.sizes, self.widths, self.letters)
        sizes = factors.of(np.stack([trace.sizes_S for trace in few.traces]), first.is_evaluation_S)
        updates, longer_updates = self._updates(factors)
        terms = _joined([self._terms(factors), updates])
        numbers = np.arange(len(sizes.factor_N))
        sums = {
            "sizes_S": Sums(numbers.shape, numbers, sizes.factor_N, sizes.monomial_N),
            "outside_S": self._outside(factors, sizes),
            "terms": terms,
            "growth": longer_updates.less(updates),
            **self._sums(factors),
        }
        like = self._like(sizes, terms.shape)
        made = Skeleton(like, factors.monomials, sums).pruned()
        self._refuse_other_than(made)
        return made

    def _sums(self, factors: Factors) -> dict[str, Sums]:
        """Return numbers of parameters, and elements of the update's lists."""
        details = [_details(each) for each in self.traces]
        parameters, longer_parameters = factors.of_sums(
            [each.parameters_P for each in details], (3,)
        )
        trainable, longer_trainable = factors.of_sums(
            [each.parameters_P[each.trains_P.astype(bool)] for each in details], (3,)
        )
        short, longer = factors.of_sums(
            [each.elements_N for each in details],
            (3, len(details[0].calls.rows_L)),
            (details[0].calls_N, details[-1].calls_N),
        )
        return {
            "parameters": parameters,
            "longer_parameters": longer_parameters,
            "trainable": trainable,
            "longer_trainable": longer_trainable,
            "short": short,
            "longer": longer,
        }

    def _like(self, sizes: Terms, shape: tuple[int, ...]) -> ShortFamily:
        """Return a family with the events and operators, and without numbers."""
        first, check = self.traces[0], self.traces[-1]
        calls, longer = (_details(each).calls for each in (first, check))
        rows = longer.rows_L - len(_work(check)) + len(_work(first))
        if not np.array_equal(calls.rows_L, rows):
            raise Irregular("updates call other operators with one block more")
        nothing = np.zeros((3, len(rows)), np.int64)
        zeros = np.zeros(shape, np.int64)
        return ShortFamily(
            dataclasses.replace(first, work=None, details=None),
            sizes.product_N,
            np.zeros(0, np.int64),
            np.zeros(3, np.int64),
            np.zeros(3, np.int64),
            _work(first).with_counts(np.zeros_like(_work(first).counts())),
            zeros,
            zeros,
            FamilyCalls(calls, nothing),
            FamilyCalls(dataclasses.replace(longer, rows_L=rows), nothing),
            self.example,
            0,
            lowest=1 if self.sizes[-1].micro_batch == 1 else 2,
        )

    def _terms(self, factors: Factors) -> Sums:
        """Return the counts of operators that are not of the update."""
        few = self.traces[:-1]
        work = _work(few[0])
        update_W, evaluation_W = (
            work.parts_W == PARTS.index(name) for name in ("optimizer", "evaluation")
        )
        rest = np.flatnonzero(~update_W)
        parts = []
        for index, name in enumerate(COUNTS):
            if name in BYTES:
                rows = _details(few[0]).rows_D
                values = np.stack([getattr(_details(each), f"{BYTES[name]}D") for each in few])
            else:
                rows = rest
                values = np.stack([getattr(_work(each), name)[rest] for each in few])
            terms = factors.of(values, evaluation_W[rows])
            parts.append(self._placed(index, rows, terms))
        return _joined(parts)

    def _updates(self, factors: Factors) -> tuple[Sums, Sums]:
        """Return the counts of the update's operators with few blocks and with one more, but for
        their launches.
        """
        pairs = []
        one = factors.of(np.ones((len(self.traces) - 1, 1), np.int64), np.zeros(1, np.bool_))
        for index, name in enumerate(COUNTS):
            if name in BYTES:
                accesses = [getattr(_details(each), f"{BYTES[name]}U") for each in self.traces]
                terms, longer = factors.of_accesses(accesses)
                pairs.append(
                    (
                        self._placed(index, _details(self.traces[0]).rows_U, terms),
                        self._placed(index, self._moved(_details(self.traces[-1]).rows_U), longer),
                    )
                )
                continue
            if "launches" in name:
                continue
            works = [_work(each) for each in self.traces]
            counts = [
                getattr(each, name)[each.parts_W == PARTS.index("optimizer")] for each in works
            ]
            expected = int(name == "batch_W")
            if any((each != expected).any() for each in counts):
                raise Irregular("updates compute products")
            if expected:
                rows = np.flatnonzero(works[0].parts_W == PARTS.index("optimizer"))
                placed = self._placed(index, rows, one.only(np.zeros(len(rows), np.int64)))
                pairs.append((placed, placed))
        few, more = zip(*pairs, strict=True)
        return _joined(list(few)), _joined(list(more))

    def _moved(self, rows: Int64Array) -> Int64Array:
        """Return the rows of the update with one block more as rows of the shorter step: they come
        last in both.
        """
        moved: Int64Array = rows - len(_work(self.traces[-1])) + len(_work(self.traces[0]))
        return moved

    def _placed(self, count: int, rows: Int64Array, terms: Terms) -> Sums:
        kinds = len(self.key.products)
        size = len(_work(self.traces[0]))
        return Sums(
            (len(COUNTS), size, kinds),
            (count * size + rows) * kinds + terms.product_N,
            terms.factor_N,
            terms.monomial_N,
        )

    def _outside(self, factors: Factors, sizes: Terms) -> Sums:
        """Return the numbers of the last recording's storages outside the blocks, for the products
        of the equal storages with fewer blocks. Where they are others, they are constants.
        """
        first, check = self.traces[0], self.traces[-1]
        inside = np.flatnonzero(first.layers_S == GLOBAL)
        outside = np.flatnonzero(check.layers_S == GLOBAL)
        if len(inside) != len(outside):
            raise Irregular("the number of tensors outside the blocks depends on their number")
        like = sizes.only(inside)
        expected = factors.at_check(like, first.is_evaluation_S[inside])
        actual = check.sizes_S[outside]
        other = np.flatnonzero(expected != actual)
        if like.product_N[other].any() or like.monomial_N[other].any():
            raise Irregular("a tensor outside the blocks grows by no constant")
        factor_N = like.factor_N.copy()
        factor_N[other] = actual[other]
        return Sums(factor_N.shape, np.arange(len(factor_N)), factor_N, like.monomial_N)

    def _refuse_other_than(self, made: Skeleton) -> None:
        """Raise Irregular where the last recording is not what the skeleton says of it."""
        first, check, size = self.traces[0], self.traces[-1], self.sizes[-1]
        widths = self.widths[-1]
        family = made.at(dataclasses.replace(widths, blocks=self.example + 2))
        if family is None:
            raise Irregular("too few blocks")
        worth = worth_of(self.key, size)
        worth_S = worth[first.is_evaluation_S.astype(int), family.product_S]
        short = dataclasses.replace(first, sizes_S=family.trace.sizes_S * worth_S)
        if not equal(stretch(short, self.example + 1, check), check):
            raise Irregular("a further trace is not what the others say it is")
        work = _work(first)
        steps, evaluation = worth
        at_check, growth = (
            np.where(work.parts_W == PARTS.index("evaluation"), terms @ evaluation, terms @ steps)
            for terms in (family.terms, family.growth)
        )
        launches = [COUNTS.index(name) for name in ("launches_W", "fused_launches_W")]
        at_check[launches] += family.short.at(size).launches(len(work))
        try:
            grown = block_growth(work.with_counts(at_check), _work(check), self.example)
        except IrregularWork as irregular:
            raise Irregular(str(irregular)) from irregular
        counted = [index for index in range(len(COUNTS)) if index not in launches]
        if not np.array_equal(grown[counted], growth[counted]):
            raise Irregular("updates do not grow by equal blocks")


def _work(trace: Trace) -> Work:
    if trace.work is None:
        raise Irregular("what the operators compute was not recorded")
    return trace.work


def _details(trace: Trace) -> Details:
    if trace.details is None:
        raise Irregular("what the operators compute was not recorded")
    return trace.details


def _joined(parts: list[Sums]) -> Sums:
    return Sums(
        parts[0].shape,
        np.concatenate([each.places_A for each in parts]),
        np.concatenate([each.factors_A for each in parts]),
        np.concatenate([each.monomials_A for each in parts]),
    ).gathered()
