"""Recordings of small steps, and the family that follows from them.

A few recordings, in which micro-batch, sequence length and rank all differ, determine the product
of every storage (see `family_key`). It is checked: a size that is no such product raises
`Irregular`, and so does a further recording that differs from the products.

Suffixes: P recordings, S storages, W operators, K products, L calls.
"""

import dataclasses
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from brimful.planning.family import (
    SUMMANDS,
    Family,
    FamilyCalls,
    ShortFamily,
    sums_at,
    values_at,
    with_sizes,
)
from brimful.planning.family_key import StepSize, TraceFamilyKey
from brimful.planning.parametric import Irregular, equal, stretch
from brimful.planning.recorded_sums import TooFew, constant_and_part, constants_of, sums_of
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

OF_ADAPTERS = ("r", "rP", "A")
"""Those of SUMMANDS that only adapters have, so that blocks add equal shares of them."""


@dataclass(frozen=True, eq=False)
class _Products:
    """How sizes follow from the key: a size is `number` bytes times the key's product at index
    `product`. Where `number` is 0 it is a sum over products, with the bytes for each of them in
    `sums` (products x sizes).
    """

    number: Int64Array
    product: Int64Array
    sums: Int64Array


@dataclass(frozen=True, eq=False)
class Recordings:
    """Recordings of small members, from which a family is made.

    Attributes:
        key: What they share.
        sizes: Of the recordings. The last one checks what the others say; of a model that is
            divided among devices the last two do, on different numbers of them.
        traces: With `example` blocks; those that check have one more, where the model has more.
        example: Blocks.
        blocks: Of the model.
        rows: As in `Family`.
    """

    key: TraceFamilyKey
    sizes: tuple[StepSize, ...]
    traces: tuple[Trace, ...]
    example: int
    blocks: int
    rows: int = 1

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
        traces = self.traces[: -self.checks]
        found = self._products(
            np.stack([trace.sizes_S for trace in traces]), traces[0].is_evaluation_S
        )
        outside_S = self._checked(found)
        parameters, trainable = (
            self._grown(np.array([[getattr(trace, name) for trace in self.traces]]).T)[:, 0]
            for name in ("parameters", "trainable")
        )
        work, terms, growth, calls = self._work()
        return ShortFamily(
            dataclasses.replace(traces[0], sizes_S=found.number, work=None, details=None),
            found.product,
            outside_S,
            parameters,
            trainable,
            work,
            terms,
            growth,
            *calls,
            self.example,
            self.blocks,
            lowest=1 if self.sizes[-1].micro_batch == 1 else 2,
            sums_S=found.sums,
            rows=self.rows,
        )

    def _checked(self, found: _Products) -> Int64Array:
        """Return the numbers of the storages outside the blocks, after comparing what is found with
        the recordings for checking.
        """
        first = self.traces[0]
        for size, check in zip(
            self.sizes[-self.checks :], self.traces[-self.checks :], strict=True
        ):
            worth_S = self._worth(size)[first.is_evaluation_S.astype(int), found.product]
            sums_S = sums_at(self.key, found.sums, size)
            short = with_sizes(first, found.number * worth_S + sums_S)
            long = stretch(short, self.example + 1, check) if self._stretches else short
            if not equal(long, check):
                raise Irregular("a further trace is not what the others say it is")
        return self._outside(short, check, found)

    @property
    def checks(self) -> int:
        """Return how many recordings, the last ones, the family is not made from but compared
        with.
        """
        return 2 if self.key.in_parts else 1

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

    def _products(self, values: Int64Array, is_evaluation: NDArray[np.bool_]) -> _Products:
        """Return the product or the sum that each column of recorded sizes is (P x anything), from
        the recordings with equal blocks.
        """
        worth_P2K = np.stack([self._worth(size) for size in self.sizes[: -self.checks]])
        number = np.zeros(values.shape[1], np.int64)
        product = np.full(values.shape[1], -1, np.int64)
        product[~values.any(axis=0)] = 0
        for index in range(len(self.key.products)):
            quotient, rest = np.divmod(values, worth_P2K[:, is_evaluation.astype(int), index])
            matches = ~rest.any(axis=0) & (quotient == quotient[0]).all(axis=0) & (quotient[0] != 0)
            if (matches & (product >= 0)).any():
                raise TooFew("two products cannot be told apart")
            number[matches], product[matches] = quotient[0][matches], index
        other = np.flatnonzero(product < 0)
        sums = np.zeros((sum(map(len, self.key.sums)), values.shape[1]), np.int64)
        if len(other):
            few = self.sizes[: -self.checks]
            sums[:, other], product[other] = sums_of(self.key, few, values[:, other]), 0
        return _Products(number, product, sums)

    def _constants(self, values: Int64Array, *, whole: bool = False) -> Int64Array:
        """Return the coefficients of SUMMANDS for recorded numbers (P x anything); `whole`: of the
        whole model, also where it is divided among devices.
        """
        names = self._constant_names(whole=whole)
        return constants_of(self.key, names, self.sizes[: -self.checks], values)

    def _constant_names(self, *, whole: bool) -> tuple[str, ...]:
        """Return those of SUMMANDS that can occur. Without `whole`, numbers are of what a device
        trains: its part.
        """
        if self.key.in_parts and not whole:
            return ("", "rP", "A") if self.key.has_rank else ("", "P")
        names = [""]
        if self.key.has_rank:
            names.append("r")
        if self._learns_positions:
            names.append("T")
        return tuple(names)

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
        few = self._constants(values[: -self.checks], whole=True)
        more = self._one_more(few, values[-self.checks :])
        return few + (more - few) * (self.blocks - self.example)

    def _one_more(self, few: Int64Array, longer: Int64Array) -> Int64Array:
        """Return the coefficients with one block more, from values in the recordings for checking
        (P x anything).
        """
        sizes = self.sizes[-self.checks :]
        if not self._stretches:
            expected = np.stack([values_at(few, size) for size in sizes])
            if not np.array_equal(expected, longer):
                raise Irregular(
                    "the sum measured at a further size differs from the one that the others give"
                )
            return few
        more = few.copy()
        for row, name in enumerate(SUMMANDS[: len(few)]):
            if name in OF_ADAPTERS:
                each, rest = np.divmod(few[row], self.example)
                if rest.any():
                    raise Irregular("adapters differ between blocks")
                more[row] += each
        more[[row for row, name in enumerate(SUMMANDS[: len(few)]) if name in ("", "P")]] = 0
        left = longer - np.stack([values_at(more, size) for size in sizes])
        constant, part = constant_and_part(self.key, sizes, left)
        more[0] = constant
        if self.key.in_parts:
            more[SUMMANDS.index("P")] = part
        return more

    def _outside(self, short: Trace, check: Trace, found: _Products) -> Int64Array:
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
        sums = sums_at(self.key, found.sums[:, inside], self.sizes[-1])
        numbers, rest = np.divmod(
            check.sizes_S[outside] - sums,
            worth[short.is_evaluation_S[inside].astype(int), found.product[inside]],
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
        few, checks = works[: -self.checks], works[-self.checks :]
        terms = self._terms(few)
        calls = [trace.details.calls for trace in self.traces if trace.details is not None]
        if any(not one.alike(calls[0]) for one in calls[: -self.checks]) or not np.array_equal(
            calls[0].rows_L - len(few[0]), calls[-1].rows_L - len(checks[-1])
        ):
            raise Irregular("updates call other operators")
        elements_PL = np.stack([one.elements_L for one in calls])
        elements = self._constants(elements_PL[: -self.checks])
        short = FamilyCalls(calls[0], elements)
        longer = FamilyCalls(
            dataclasses.replace(calls[-1], rows_L=calls[0].rows_L),
            self._one_more(elements, elements_PL[-self.checks :]),
        )
        work, more = few[0], np.zeros_like(terms)
        if self._stretches:
            growths = np.stack(
                [
                    block_growth(self._short_work(work, terms, short, size), check, self.example)
                    for size, check in zip(self.sizes[-self.checks :], checks, strict=True)
                ]
            )
            more = self._growth_terms(terms, growths, work)
        return work, terms, more, (short, longer)

    def _short_work(
        self, work: Work, terms: Int64Array, calls: FamilyCalls, size: StepSize
    ) -> Work:
        """Return the operators with few blocks at a size."""
        steps, evaluation = self._worth(size)
        counts = np.where(
            work.parts_W == PARTS.index("evaluation"), terms @ evaluation, terms @ steps
        )
        for name in ("launches_W", "fused_launches_W"):
            counts[COUNTS.index(name)] += calls.at(size).launches(len(work))
        return work.with_counts(counts)

    def _terms(self, few: list[Work]) -> Int64Array:
        """Return the counts by product, without the launches of updates."""
        details = [
            trace.details for trace in self.traces[: -self.checks] if trace.details is not None
        ]
        if any(not np.array_equal(each.rows_D, details[0].rows_D) for each in details):
            raise Irregular("operators touch other tensors")
        update_W, evaluation_W = (
            few[0].parts_W == PARTS.index(name) for name in ("optimizer", "evaluation")
        )
        terms = np.zeros((len(COUNTS), len(few[0]), len(self.key.products)), np.int64)
        rest = np.flatnonzero(~update_W)
        for index, name in enumerate(COUNTS):
            if name in ("bytes_W", "fused_bytes_W"):
                rows = details[0].rows_D
                values = [getattr(each, name.replace("_W", "_D")) for each in details]
            else:
                rows, values = rest, [getattr(each, name)[rest] for each in few]
            found = self._products(np.stack(values), evaluation_W[rows])
            np.add.at(terms[index], (rows, found.product), found.number)
            for product, numbers in zip(
                chain.from_iterable(self.key.sums), found.sums, strict=True
            ):
                np.add.at(terms[index, :, self.key.products.index(product)], rows, numbers)
            if "launches" not in name:
                self._set_sums(
                    terms[index],
                    update_W,
                    self._constants(np.stack([getattr(each, name)[update_W] for each in few])),
                )
        return terms

    def _set_sums(self, terms: Int64Array, rows_W: NDArray[np.bool_], sums: Int64Array) -> None:
        for name, numbers in zip(SUMMANDS, sums, strict=False):
            if name in self.key.products:
                terms[rows_W, self.key.products.index(name)] = numbers
            elif numbers.any():
                raise Irregular("updates grow with what is fixed")

    def _growth_terms(self, terms: Int64Array, growths: Int64Array, work: Work) -> Int64Array:
        """Return the growth of the terms outside the blocks with every block, from that in each
        recording for checking. Those of the rank are all in blocks, the others are constant, or
        shares of a constant.
        """
        update_W = work.parts_W == PARTS.index("optimizer")
        if growths[:, :, ~update_W].any():
            raise Irregular("operators outside the blocks and the update grow with the blocks")
        more = np.zeros_like(terms)
        counted = np.array(["launches" not in name for name in COUNTS])
        rest = np.where(counted[:, None] & update_W, growths, 0)
        for name in OF_ADAPTERS:
            if name not in self.key.products:
                continue
            index = self.key.products.index(name)
            each, left = np.divmod(terms[:, :, index] * update_W, self.example)
            if left.any():
                raise Irregular("adapters differ between blocks")
            more[:, :, index] = each
            worth = np.array([size.product(name) for size in self.sizes[-self.checks :]], np.int64)
            rest = rest - each * worth[:, None, None]
        constant, part = constant_and_part(self.key, self.sizes[-self.checks :], rest)
        more[:, :, self.key.products.index("")] = constant
        if self.key.in_parts:
            more[:, :, self.key.products.index("P")] = part
        return more
