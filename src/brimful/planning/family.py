"""One trace for all micro-batches, sequence lengths and ranks of a step: every size is a number
times a product of them. `recordings` finds the products.

Suffixes: S storages, W operators, K products, L calls.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brimful.planning.family_key import StepSize, TraceFamilyKey
from brimful.planning.parametric import ParametricTrace, stretch, stretch_values
from brimful.planning.step import Lora, StepSpec
from brimful.planning.trace import Int64Array, Trace
from brimful.planning.work import (
    COUNTS,
    GLOBAL,
    Calls,
    ParametricWork,
    Work,
    chunks_of,
    repeated,
)


@dataclass(frozen=True, eq=False)
class FamilyWork:
    """Operators of a family.

    Attributes:
        work: The operators; their counts are of one member.
        terms: Counts (COUNTS x W x K) that belong to each product.
        short, longer: Lists of the update's operators with few blocks and with one more.
        more_blocks: Blocks beyond the few.
    """

    work: Work
    terms: Int64Array
    short: "FamilyCalls"
    longer: "FamilyCalls"
    more_blocks: int

    def at(self, factors: Int64Array, size: StepSize) -> ParametricWork:
        """Return the work for every micro-batch; `factors` (3 x K) of the products as in
        `_factors`.
        """
        base, slope, chunk_slope = (self.terms @ factor for factor in factors)
        few, one_more = (
            calls.at(size).launches(len(self.work)) for calls in (self.short, self.longer)
        )
        launches_W = few + (one_more - few) * self.more_blocks
        for name in ("launches_W", "fused_launches_W"):
            base[COUNTS.index(name)] += launches_W
        return ParametricWork(
            self.work, base, slope, chunk_slope, chunks_of(self.work, chunk_slope), size.scored
        )


@dataclass(frozen=True, eq=False)
class FamilyCalls:
    """Calls whose lists grow with rank and positions: elements (SUMMANDS x calls)."""

    calls: Calls
    elements: Int64Array

    def at(self, size: StepSize) -> Calls:
        """Return the calls of a member."""
        return dataclasses.replace(self.calls, elements_L=values_at(self.elements, size))


@dataclass(frozen=True, eq=False)
class Family:
    """A step for every micro-batch, sequence length and rank.

    Attributes:
        key: What the members share.
        trace: The events; sizes, parameters and trainable are those of no member.
        number_S, product_S: Every size is a number of bytes times one of the key's products.
        sums_S: For sizes that are sums: bytes for each product in the key's `sums` (products x S),
            added to the above; `no_sums` where the key has none.
        parameters, trainable: Numbers that belong to 1, the rank and the length.
        work: What the operators compute.
        lowest: The smallest micro-batch it holds for.
        rows: Of a model that is divided among devices: the greatest common divisor of the rows of
            its weights. The family serves each number of devices that divides it; 1 for a whole
            model.
    """

    key: TraceFamilyKey
    trace: Trace
    number_S: Int64Array
    product_S: Int64Array
    sums_S: Int64Array
    parameters: Int64Array
    trainable: Int64Array
    work: FamilyWork
    lowest: int
    rows: int = 1

    def serves(self, ranks: int) -> bool:
        """Return whether so many devices each hold the same number of rows of every weight."""
        return self.rows % ranks == 0

    def at(self, spec: StepSpec) -> ParametricTrace:
        """Return the trace of a step with this spec's sequence length and rank. It holds for every
        micro-batch, or for one sequence only if the key is single.
        """
        rank = spec.adapter.rank if isinstance(spec.adapter, Lora) else 1
        size = StepSize(
            1,
            spec.sequence_length,
            rank,
            spec.scored_tokens,
            spec.loss_chunk,
            spec.ranks,
            self.rows // spec.ranks,
        )
        factors = _factors(self.key.products, size)
        base_S, slope_S, chunk_slope_S = (
            self.number_S * factor[self.product_S] for factor in factors
        )
        base_S = base_S + sums_at(self.key, self.sums_S, size)
        counts = {
            name: int(values_at(getattr(self, name)[:, None], size)[0])
            for name in ("parameters", "trainable")
        }
        trace = dataclasses.replace(
            self.trace, parameters=counts["parameters"], trainable=counts["trainable"]
        )
        return ParametricTrace(
            trace,
            base_S,
            slope_S,
            chunk_slope_S,
            size.scored,
            spec.loss_chunk,
            self.lowest,
            self.work.at(factors, size),
        )


def no_sums() -> Int64Array:
    """Return the `sums_S` of a family whose sizes are all products."""
    return np.zeros((0, 0), np.int64)


@dataclass(frozen=True, eq=False)
class ShortFamily:
    """A family as it is kept: with few blocks, from which all follow.

    Attributes:
        trace: The events with few blocks; its sizes are numbers of bytes, each times a product.
        product_S: Those products, as indices into the key's.
        outside_S: The numbers of bytes of storages outside the blocks with one block more; none
            where the trace has all blocks.
        parameters, trainable: As in `Family`.
        work: Operators with few blocks.
        terms: Counts (COUNTS x W x K) with few blocks.
        growth: What each further block adds to them.
        short, longer: Lists of the update's operators with few blocks and with one more.
        example, blocks: The few, and those of the model.
        lowest: The smallest micro-batch it holds for.
        sums_S, rows: As in `Family`.
    """

    trace: Trace
    product_S: Int64Array
    outside_S: Int64Array
    parameters: Int64Array
    trainable: Int64Array
    work: Work
    terms: Int64Array
    growth: Int64Array
    short: FamilyCalls
    longer: FamilyCalls
    example: int
    blocks: int
    lowest: int
    sums_S: Int64Array = dataclasses.field(default_factory=no_sums)
    rows: int = 1

    def stretched(self, key: TraceFamilyKey) -> Family:
        """Return the family with all blocks."""
        trace, number_S, product_S = self.trace, self.trace.sizes_S, self.product_S
        work, terms, more_blocks = self.work, self.terms, self.blocks - self.example
        sums_S = self.sums_S
        if more_blocks:
            longer_S = number_S.copy()
            longer_S[trace.layers_S == GLOBAL] = self.outside_S
            trace = stretch(self.trace, self.blocks, with_sizes(self.trace, longer_S))
            number_S = trace.sizes_S
            product_S = stretch_values(self.trace, self.product_S, self.blocks)
            if len(sums_S):
                sums_S = np.stack(
                    [stretch_values(self.trace, each, self.blocks) for each in sums_S]
                )
            work = repeated(work, self.example, self.blocks)
            terms = terms + self.growth * more_blocks
        return Family(
            key,
            trace,
            number_S,
            product_S,
            sums_S,
            self.parameters,
            self.trainable,
            FamilyWork(work, terms, self.short, self.longer, more_blocks),
            self.lowest,
            self.rows,
        )


def with_sizes(trace: Trace, sizes_S: Int64Array) -> Trace:
    """Return the trace with other sizes."""
    return dataclasses.replace(trace, sizes_S=sizes_S)


def _factors(products: Sequence[str], size: StepSize) -> Int64Array:
    """Return the value of each product: constant, per sequence of the micro-batch, and per token of
    a piece of the loss (3 x K).
    """
    one = dataclasses.replace(size, micro_batch=1)
    factors = np.zeros((3, len(products)), np.int64)
    for index, name in enumerate(products):
        value = one.product(name.translate(str.maketrans("V", "T", "CL")))
        if "V" in name:
            factors[0, index], factors[1, index] = value, -one.product(name.replace("V", ""))
        elif "L" in name:
            factors[1, index], factors[2, index] = value * size.scored, -value
        else:
            factors[2 if "C" in name else int("B" in name), index] = value
    return factors


SUMMANDS = ("", "r", "T", "P", "rP", "A")
"""Products of which numbers of parameters and of updated elements are sums: each has a coefficient
for every one of them. The last three occur only where the model is divided among devices.
"""


def values_at(numbers: Int64Array, size: StepSize) -> Int64Array:
    """Return the values of sums, given their coefficients of SUMMANDS: of the first three, or of
    all (summands x anything).
    """
    worth = np.array([size.product(name) for name in SUMMANDS[: len(numbers)]], np.int64)
    result: Int64Array = worth @ numbers
    return result


def sums_at(key: TraceFamilyKey, sums: Int64Array, size: StepSize) -> Int64Array | int:
    """Return the bytes of sizes that are sums, given those for each product in the key's `sums`
    (products x anything).
    """
    if not len(sums):
        return 0
    worth = np.array([size.product(name) for support in key.sums for name in support], np.int64)
    result: Int64Array = worth @ sums
    return result
