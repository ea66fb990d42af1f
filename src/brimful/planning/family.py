"""One recording of a step for everything that its key leaves open: the micro-batch, and perhaps the
sequence length, the rank, and the widths and number of blocks of the network. `recordings` makes
them.

Every number is a sum of terms, each a whole number times a product of what is open.

Suffixes: A summands, K terms, S storages, W operators.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from brimful.base.arrays import Ints
from brimful.planning.architecture import Monomial, Widths
from brimful.planning.block_rows import ALIKE, BlockRows
from brimful.planning.family_key import StepSize
from brimful.planning.parametric import ParametricTrace, stretch
from brimful.planning.step import Lora, StepSpec
from brimful.planning.trace import Trace
from brimful.planning.work import (
    COUNTS,
    GLOBAL,
    Calls,
    ParametricWork,
    Work,
    chunks_of,
    repeated,
)

LAUNCHES = [COUNTS.index(name) for name in ("launches_W", "fused_launches_W")]


class Term(NamedTuple):
    """A product of dimensions of a step (`family_key.PRODUCTS`) and of widths."""

    product: str = ""
    widths: Monomial = Monomial()

    def lines(self, size: StepSize, widths: Widths | None) -> tuple[int, int, int]:
        """Return its value: what depends on nothing, what each sequence of the micro-batch adds,
        and what each token of a piece of the loss adds.
        """
        factor = 1 if widths is None else self.widths.at(widths)
        name, one = self.product, dataclasses.replace(size, micro_batch=1)
        value = factor * one.product(name.translate(str.maketrans("V", "T", "CL")))
        if "V" in name:
            return value, -factor * one.product(name.replace("V", "")), 0
        if "L" in name:
            return 0, value * size.scored, -value
        if "C" in name:
            return 0, 0, value
        return (0, value, 0) if "B" in name else (value, 0, 0)


@dataclass(frozen=True, eq=False)
class Sums:
    """Numbers that are sums of whole numbers times terms.

    Attributes:
        count: How many numbers there are.
        places_A: The number that a summand belongs to.
        factors_A: Its whole number.
        terms_A: Its term, as an index.
    """

    count: int
    places_A: Ints
    factors_A: Ints
    terms_A: Ints

    def at(self, values_K: Ints) -> Ints:
        """Return the numbers for values of the terms."""
        numbers = np.zeros(self.count, np.int64)
        np.add.at(numbers, self.places_A, self.factors_A * values_K[self.terms_A])
        return numbers

    def gathered(self) -> "Sums":
        """Return the same with one summand for each number and term, in their order."""
        keys, at = np.unique(np.stack([self.places_A, self.terms_A]), axis=1, return_inverse=True)
        factors = np.zeros(keys.shape[1], np.int64)
        np.add.at(factors, at.ravel(), self.factors_A)
        kept = factors != 0
        return Sums(self.count, keys[0][kept], factors[kept], keys[1][kept])

    def moved(self, count: int, places: Ints) -> "Sums":
        """Return `count` numbers: each of these is added to the one at its place there."""
        return dataclasses.replace(self, count=count, places_A=places[self.places_A])

    def less(self, other: "Sums") -> "Sums":
        """Return the differences from as many other numbers."""
        negative = dataclasses.replace(other, factors_A=-other.factors_A)
        return joined_sums([self, negative]).gathered()


def joined_sums(parts: Sequence[Sums]) -> Sums:
    """Return as many numbers as each part has, each the sum of those at its place in the parts."""
    arrays = (
        np.concatenate([getattr(each, name) for each in parts])
        for name in ("places_A", "factors_A", "terms_A")
    )
    return Sums(parts[0].count, *arrays)


@dataclass(frozen=True, eq=False)
class BlockSegment:
    """A segment of adjacent blocks that the model has more often than the short recordings.

    Attributes:
        times: How many more of these segments the model has.
        calls: Calls of the update in a recording with one more segment, without elements.
        sums: Numbers by name, of a recording with one more segment: "outside", sizes of storages
            outside the blocks; "parameters"; "elements" of calls; and "growth", by how much the
            segment makes counts larger.
    """

    times: int
    calls: Calls
    sums: Mapping[str, Sums]


@dataclass(frozen=True, eq=False)
class Family:
    """A step for everything that its key leaves open, as it is recorded and kept: with few blocks.

    Attributes:
        trace: The events. It has no sizes.
        work: Operators, without counts; None where they do not follow from small recordings.
        calls: Lists of the update's operators with few blocks, without elements.
        terms: What numbers grow with.
        sums: Numbers by name: "sizes"; "parameters", all and those that are trained; "counts"
            (COUNTS x W); "elements" of calls.
        segments: What the model has more blocks of; none where all are recorded.
        rows: The few blocks, and those of the model.
        lowest: The smallest micro-batch it holds for.
        weight_rows: For a model that is divided among devices, the greatest common divisor of the
            rows of its weights. The family serves each number of devices that divides it.
        widths: Widths of the network in question, where the family is of every one.
    """

    trace: Trace
    work: Work | None
    calls: Calls
    terms: tuple[Term, ...]
    sums: Mapping[str, Sums]
    segments: tuple[BlockSegment, ...]
    rows: BlockRows
    lowest: int
    weight_rows: int = 1
    widths: Widths | None = None

    def serves(self, ranks: int) -> bool:
        """Return whether so many devices each hold the same number of rows of every weight."""
        return self.weight_rows % ranks == 0

    def of(self, widths: Widths) -> "Family | None":
        """Return the family of a network with these widths; None where it has too few blocks."""
        more = widths.blocks - len(self.rows.few)
        if more <= 1:
            return None
        rows = dataclasses.replace(self.rows, all=ALIKE * widths.blocks)
        one = dataclasses.replace(self.segments[0], times=more)
        return dataclasses.replace(self, segments=(one,), rows=rows, widths=widths)

    def at(self, spec: StepSpec) -> ParametricTrace:
        """Return the trace of a step with this spec's sequence length and rank. It holds for every
        micro-batch, or for one only if the key has one.
        """
        size = StepSize(
            1,
            spec.sequence_length,
            spec.adapter.rank if isinstance(spec.adapter, Lora) else 1,
            spec.scored_tokens,
            spec.loss_chunk,
            spec.ranks,
            self.weight_rows // spec.ranks,
        )
        values_3K = np.array([each.lines(size, self.widths) for each in self.terms], np.int64).T
        constant_K = values_3K[0]
        trace, origin_S = self._long
        parameters, trainable = self._grown("parameters", constant_K)
        base_S, slope_S, chunk_slope_S = (self._sizes(values_K)[origin_S] for values_K in values_3K)
        return ParametricTrace(
            dataclasses.replace(trace, parameters=int(parameters), trainable=int(trainable)),
            base_S,
            slope_S,
            chunk_slope_S,
            size.scored,
            spec.loss_chunk,
            self.lowest,
            self._work_at(values_3K, size),
        )

    @functools.cached_property
    def _long(self) -> tuple[Trace, Ints]:
        if not self.segments:
            return self.trace, np.arange(len(self.trace.sizes_S))
        return stretch(self.trace, self.rows)

    def _sizes(self, values_K: Ints) -> Ints:
        """Return the sizes of all blocks by the storages of few."""
        sizes_S = self.sums["sizes"].at(values_K)
        outside = self.trace.layers_S == GLOBAL
        few = sizes_S[outside]
        for each in self.segments:
            sizes_S[outside] += each.times * (each.sums["outside"].at(values_K) - few)
        return sizes_S

    def _grown(self, name: str, values_K: Ints) -> Ints:
        few = grown = self.sums[name].at(values_K)
        for each in self.segments:
            grown = grown + each.times * (each.sums[name].at(values_K) - few)
        return grown

    def _work_at(self, values_3K: Ints, size: StepSize) -> ParametricWork | None:
        if self.work is None:
            return None
        base, slope, chunk_slope = (
            sum(
                (each.times * each.sums["growth"].at(values_K) for each in self.segments),
                self.sums["counts"].at(values_K),
            ).reshape(len(COUNTS), -1)
            for values_K in values_3K
        )
        base[LAUNCHES] += self._calls_at(values_3K[0]).launches(len(self.work))
        work = repeated(self.work, self.rows) if self.segments else self.work
        chunks_W = chunks_of(work, chunk_slope)
        return ParametricWork(work, base, slope, chunk_slope, chunks_W, size.scored)

    def _calls_at(self, values_K: Ints) -> Calls:
        """Return the calls of the update with all blocks, of which lists have more tensors."""
        tensors_L = self.calls.tensors_L.copy()
        for each in self.segments:
            tensors_L += each.times * (each.calls.tensors_L - self.calls.tensors_L)
        return dataclasses.replace(
            self.calls, tensors_L=tensors_L, elements_L=self._grown("elements", values_K)
        )

    def pruned(self) -> "Family":
        """Return the same family without the terms that no number uses."""
        every = [self.sums, *(each.sums for each in self.segments)]
        used = np.unique(np.concatenate([each.terms_A for sums in every for each in sums.values()]))
        fewer, *of_segments = (
            {
                name: dataclasses.replace(each, terms_A=np.searchsorted(used, each.terms_A))
                for name, each in sums.items()
            }
            for sums in every
        )
        segments = (
            dataclasses.replace(each, sums=sums)
            for each, sums in zip(self.segments, of_segments, strict=True)
        )
        terms = tuple(self.terms[index] for index in used)
        return dataclasses.replace(self, terms=terms, sums=fewer, segments=tuple(segments))
