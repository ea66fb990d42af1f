"""Recordings of small steps, and the family that follows from them.

A few recordings, in which micro-batch, sequence length and rank all differ, determine the product
of every storage (see `family_key`). It is checked: a size that is no such product raises
`Irregular`, and so does a further recording that differs from the products.

Suffixes: P recordings, S storages, W operators, K products, L calls.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brimful.planning.family import Family, FamilyCalls, ShortFamily, values_at, with_sizes
from brimful.planning.family_key import StepSize, TraceFamilyKey
from brimful.planning.parametric import Irregular, equal, stretch
from brimful.planning.trace import Int64Array, Trace, same_events
from brimful.planning.work import (
    COUNTS,
    GLOBAL,
    PARTS,
    IrregularWork,
    Work,
    block_growth,
    refuse_others,
)


class TooFew(Irregular):
    """Further recordings may tell apart what agrees in these."""


@dataclass(frozen=True, eq=False)
class Recordings:
    """Recordings of small members, from which a family is made.

    Attributes:
        key: What they share.
        sizes: Of the recordings; the last one is for checking.
        traces: With `example` blocks; the last one has one more, where the model has more.
        example: Blocks.
        blocks: Of the model.
    """

    key: TraceFamilyKey
    sizes: tuple[StepSize, ...]
    traces: tuple[Trace, ...]
    example: int
    blocks: int

    def family(self) -> Family:
        """Return the family with all blocks.

        Raises:
            Irregular: as in `short_family`.
        """
        return self.short_family().stretched(self.key)

    def short_family(self) -> ShortFamily:
        """Return the family with few blocks.

        Raises:
            Irregular: a size is no product, or the last recording differs from the products.
        """
        *traces, check = self.traces
        *_, at_check = self.sizes
        is_evaluation_S = traces[0].is_evaluation_S
        number_S, product_S = self._products(
            np.stack([trace.sizes_S for trace in traces]), is_evaluation_S
        )
        worth_S = self._worth(at_check)[is_evaluation_S.astype(int), product_S]
        short = with_sizes(traces[0], number_S * worth_S)
        if not equal(stretch(short, self.example + 1, check) if self._stretches else short, check):
            raise Irregular("a further trace is not what the others say it is")
        parameters, trainable = (
            self._grown(np.array([[getattr(trace, name) for trace in self.traces]]).T)[:, 0]
            for name in ("parameters", "trainable")
        )
        work, terms, growth, calls = self._work()
        return ShortFamily(
            dataclasses.replace(traces[0], sizes_S=number_S, work=None, details=None),
            product_S,
            self._outside(short, check, product_S),
            parameters,
            trainable,
            work,
            terms,
            growth,
            *calls,
            self.example,
            self.blocks,
            lowest=1 if at_check.micro_batch == 1 else 2,
        )

    @property
    def _stretches(self) -> bool:
        return self.example < self.blocks

    def refuse_unlike(self) -> None:
        """Raise Irregular if recordings with the same number of blocks differ in more than
        sizes.
        """
        few = self.traces
        if not all(same_events(few[0], other) and few[0].marks == other.marks for other in few[1:]):
            raise Irregular("the events differ between two members")
        if any(trace.work is None or trace.details is None for trace in few):
            raise Irregular("what the operators compute was not recorded")
        try:
            for other in few[1:]:
                refuse_others(few[0].work, other.work)  # type: ignore[arg-type]
        except IrregularWork as irregular:
            raise Irregular(str(irregular)) from irregular

    def _worth(self, size: StepSize) -> Int64Array:
        """Return the value of each product in the steps of a recording, and in its evaluation batch
        (2 x K).
        """
        sizes = (size, size.evaluation(self.key.evaluation_factor))
        return np.array(
            [[each.product(name) for name in self.key.products] for each in sizes], np.int64
        )

    def _products(
        self, values: Int64Array, is_evaluation: NDArray[np.bool_]
    ) -> tuple[Int64Array, Int64Array]:
        """Return the number and the product of every column, from the recordings with equal blocks
        (P x anything).
        """
        worth_P2K = np.stack([self._worth(size) for size in self.sizes[:-1]])
        number = np.zeros(values.shape[1], np.int64)
        product = np.full(values.shape[1], -1, np.int64)
        product[~values.any(axis=0)] = 0
        for index in range(len(self.key.products)):
            quotient, rest = np.divmod(values, worth_P2K[:, is_evaluation.astype(int), index])
            matches = ~rest.any(axis=0) & (quotient == quotient[0]).all(axis=0) & (quotient[0] != 0)
            if (matches & (product >= 0)).any():
                raise TooFew("two products cannot be told apart")
            number[matches], product[matches] = quotient[0][matches], index
        if (product < 0).any():
            raise Irregular(
                "a size is no product of the micro-batch, the sequence length and the rank"
            )
        return number, product

    def _constants(self, values: Int64Array) -> Int64Array:
        """Return the coefficients of 1, the rank and the length (3 x anything) for values that are
        a sum of these (P x anything).
        """
        few = self.sizes[:-1]
        columns = [0]
        if self.key.has_rank:
            columns.append(1)
        if self._learns_positions:
            columns.append(2)
        matrix = np.array([[1, size.rank, size.sequence_length] for size in few], float)[:, columns]
        if np.linalg.matrix_rank(matrix) < len(columns):
            raise TooFew("too few recordings for sums")
        solved = np.zeros((3, values.shape[1]), np.int64)
        solved[columns] = np.rint(
            np.linalg.lstsq(matrix, values.astype(float), rcond=None)[0]
        ).astype(np.int64)
        if any(
            not np.array_equal(values_at(solved, size), value)
            for size, value in zip(few, values, strict=True)
        ):
            raise Irregular("a sum does not grow evenly")
        return solved

    @property
    def _learns_positions(self) -> bool:
        """Return whether anything that is learned grows with the length. With adapters, whose rank
        differs, what is frozen shows it.
        """
        frozen = {trace.parameters - trace.trainable for trace in self.traces[:-1]}
        return bool(self.key.follows) and (not self.key.has_rank or len(frozen) > 1)

    def _grown(self, values: Int64Array) -> Int64Array:
        """Return the same for all blocks, from recordings of which the last has one block more:
        adapters are in blocks, positions are not.
        """
        few = self._constants(values[:-1])
        return few + (self._one_more(few, values[-1]) - few) * (self.blocks - self.example)

    def _one_more(self, few: Int64Array, longer: Int64Array) -> Int64Array:
        """Return the coefficients with one block more."""
        if not self._stretches:
            if not np.array_equal(values_at(few, self.sizes[-1]), longer):
                raise Irregular(
                    "the sum measured at a further size differs from the one that the others give"
                )
            return few
        each, rest = np.divmod(few[1], self.example)
        if rest.any():
            raise Irregular("adapters differ between blocks")
        more = few.copy()
        more[1] += each
        more[0] = longer - values_at(
            np.stack([np.zeros_like(each), more[1], more[2]]), self.sizes[-1]
        )
        return more

    def _outside(self, short: Trace, check: Trace, product_S: Int64Array) -> Int64Array:
        """Return the numbers of the last trace's storages outside the blocks, for the products of
        the equal storages with fewer blocks; none where blocks are not repeated.
        """
        if not self._stretches:
            return np.zeros(0, np.int64)
        inside = np.flatnonzero(short.layers_S == GLOBAL)
        outside = np.flatnonzero(check.layers_S == GLOBAL)
        if len(inside) != len(outside):
            raise Irregular("the number of tensors outside the blocks depends on their number")
        worth = self._worth(self.sizes[-1])
        numbers, rest = np.divmod(
            check.sizes_S[outside],
            worth[short.is_evaluation_S[inside].astype(int), product_S[inside]],
        )
        if rest.any():
            raise Irregular("a tensor outside the blocks grows by no product")
        return numbers

    def _work(self) -> tuple[Work, Int64Array, Int64Array, tuple[FamilyCalls, FamilyCalls]]:
        """Return the operators, their counts by product, what a further block adds to these, and
        the update's calls with few blocks and with one more.
        """
        try:
            return self._work_of_blocks()
        except IrregularWork as irregular:
            raise Irregular(str(irregular)) from irregular

    def _work_of_blocks(
        self,
    ) -> tuple[Work, Int64Array, Int64Array, tuple[FamilyCalls, FamilyCalls]]:
        works = [trace.work for trace in self.traces if trace.work is not None]
        *few, check = works
        terms = self._terms(few)
        calls = [trace.details.calls for trace in self.traces if trace.details is not None]
        if any(not one.alike(calls[0]) for one in calls[:-1]) or not np.array_equal(
            calls[0].rows_L - len(few[0]), calls[-1].rows_L - len(check)
        ):
            raise Irregular("updates call other operators")
        elements = self._constants(np.stack([one.elements_L for one in calls[:-1]]))
        short = FamilyCalls(calls[0], elements)
        longer = FamilyCalls(
            dataclasses.replace(calls[-1], rows_L=calls[0].rows_L),
            self._one_more(elements, calls[-1].elements_L),
        )
        work, more = few[0], np.zeros_like(terms)
        if self._stretches:
            steps, evaluation = self._worth(self.sizes[-1])
            at_check = np.where(
                work.parts_W == PARTS.index("evaluation"), terms @ evaluation, terms @ steps
            )
            for name in ("launches_W", "fused_launches_W"):
                at_check[COUNTS.index(name)] += short.at(self.sizes[-1]).launches(len(work))
            growth = block_growth(work.with_counts(at_check), check, self.example)
            more = self._growth_terms(terms, growth, work)
        return work, terms, more, (short, longer)

    def _terms(self, few: list[Work]) -> Int64Array:
        """Return the counts by product, without the launches of updates."""
        details = [trace.details for trace in self.traces[:-1] if trace.details is not None]
        if any(not np.array_equal(each.rows_D, details[0].rows_D) for each in details):
            raise Irregular("operators touch other tensors")
        update_W, evaluation_W = (
            few[0].parts_W == PARTS.index(name) for name in ("optimizer", "evaluation")
        )
        terms = np.zeros((len(COUNTS), len(few[0]), len(self.key.products)), np.int64)
        rest = np.flatnonzero(~update_W)
        for index, name in enumerate(COUNTS):
            if name in ("bytes_W", "fused_bytes_W"):
                number, product = self._products(
                    np.stack([getattr(each, name.replace("_W", "_D")) for each in details]),
                    evaluation_W[details[0].rows_D],
                )
                np.add.at(terms[index], (details[0].rows_D, product), number)
            else:
                number, product = self._products(
                    np.stack([getattr(each, name)[rest] for each in few]), evaluation_W[rest]
                )
                terms[index, rest, product] = number
            if "launches" not in name:
                self._set_sums(
                    terms[index],
                    update_W,
                    self._constants(np.stack([getattr(each, name)[update_W] for each in few])),
                )
        return terms

    def _set_sums(self, terms: Int64Array, rows_W: NDArray[np.bool_], sums: Int64Array) -> None:
        for name, numbers in zip(("", "r", "T"), sums, strict=True):
            if name in self.key.products:
                terms[rows_W, self.key.products.index(name)] = numbers
            elif numbers.any():
                raise Irregular("updates grow with what is fixed")

    def _growth_terms(self, terms: Int64Array, growth: Int64Array, work: Work) -> Int64Array:
        """Return the growth of the terms outside the blocks with every block. Those of the rank are
        all in blocks, the others are constant.
        """
        update_W = work.parts_W == PARTS.index("optimizer")
        if growth[:, ~update_W].any():
            raise Irregular("operators outside the blocks and the update grow with the blocks")
        more = np.zeros_like(terms)
        counted = np.array(["launches" not in name for name in COUNTS])
        rank = self.key.products.index("r") if self.key.has_rank else None
        rest = np.where(counted[:, None] & update_W, growth, 0)
        if rank is not None:
            each, left = np.divmod(terms[:, :, rank] * update_W, self.example)
            if left.any():
                raise Irregular("adapters differ between blocks")
            more[:, :, rank] = each
            rest = rest - each * self.sizes[-1].rank
        more[:, :, self.key.products.index("")] = rest
        return more
