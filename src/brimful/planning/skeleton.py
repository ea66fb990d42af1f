"""A family of traces for every network of a structure: a skeleton has the events and operators, and
every number as a sum of products of widths.

Suffixes: A summands, M monomials; others as in `family`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from brimful.planning.architecture import Monomial, Widths
from brimful.planning.family import ShortFamily, with_sizes
from brimful.planning.trace import Int64Array


@dataclass(frozen=True, eq=False)
class Sums:
    """Numbers that are sums of whole numbers times monomials.

    Attributes:
        shape: Of the array of numbers.
        places_A: The number that a summand belongs to, as an index into the flat array.
        factors_A: Its whole number.
        monomials_A: Its monomial, as an index.
    """

    shape: tuple[int, ...]
    places_A: Int64Array
    factors_A: Int64Array
    monomials_A: Int64Array

    def at(self, values_M: Int64Array) -> Int64Array:
        """Return the numbers for values of the monomials."""
        numbers: Int64Array = np.zeros(self.shape, np.int64)
        np.add.at(numbers.reshape(-1), self.places_A, self.factors_A * values_M[self.monomials_A])
        return numbers

    def gathered(self) -> "Sums":
        """Return the same with one summand for each number and monomial, in their order."""
        keys, at = np.unique(
            np.stack([self.places_A, self.monomials_A]), axis=1, return_inverse=True
        )
        factors = np.zeros(keys.shape[1], np.int64)
        np.add.at(factors, at.ravel(), self.factors_A)
        kept = factors != 0
        return Sums(self.shape, keys[0][kept], factors[kept], keys[1][kept])

    def less(self, other: "Sums") -> "Sums":
        """Return the differences from numbers of the same shape."""
        return Sums(
            self.shape,
            np.concatenate([self.places_A, other.places_A]),
            np.concatenate([self.factors_A, -other.factors_A]),
            np.concatenate([self.monomials_A, other.monomials_A]),
        ).gathered()


SUMS = (
    "sizes_S",
    "outside_S",
    "parameters",
    "trainable",
    "longer_parameters",
    "longer_trainable",
    "terms",
    "growth",
    "short",
    "longer",
)
"""Numbers of a ShortFamily, those of its calls, and parameters with one block more."""


@dataclass(frozen=True, eq=False)
class Skeleton:
    """A step for every width, micro-batch, sequence length and rank.

    Attributes:
        like: A family with few blocks, whose numbers are not those of the network.
        monomials: Products of widths.
        sums: By name, as in SUMS.
    """

    like: ShortFamily
    monomials: tuple[Monomial, ...]
    sums: Mapping[str, Sums]

    def at(self, widths: Widths) -> ShortFamily | None:
        """Return the family of a network; None where it has too few blocks."""
        like = self.like
        if widths.blocks <= like.example + 1:
            return None
        values_M = widths.of(self.monomials)
        numbers = {name: sums.at(values_M) for name, sums in self.sums.items()}
        more = widths.blocks - like.example
        parameters, trainable = (
            numbers[name] + (numbers[f"longer_{name}"] - numbers[name]) * more
            for name in ("parameters", "trainable")
        )
        short, longer = (
            dataclasses.replace(getattr(like, name), elements=numbers[name])
            for name in ("short", "longer")
        )
        return dataclasses.replace(
            like,
            trace=with_sizes(like.trace, numbers["sizes_S"]),
            outside_S=numbers["outside_S"],
            parameters=parameters,
            trainable=trainable,
            terms=numbers["terms"],
            growth=numbers["growth"],
            short=short,
            longer=longer,
            blocks=widths.blocks,
        )

    def pruned(self) -> "Skeleton":
        """Return the same with those monomials only that occur."""
        used = np.unique(np.concatenate([each.monomials_A for each in self.sums.values()]))
        number_M = np.searchsorted(used, np.arange(len(self.monomials)))
        return Skeleton(
            self.like,
            tuple(self.monomials[index] for index in used),
            {
                name: dataclasses.replace(each, monomials_A=number_M[each.monomials_A])
                for name, each in self.sums.items()
            },
        )
