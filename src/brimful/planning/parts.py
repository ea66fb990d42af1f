"""Traces of a model in parts, for any number of ranks: what lies in parts on r ranks takes an r-th
of the whole on each, all else does not depend on r.

That holds where r divides the rows of every parameter (torch's FSDP2 pads the others).

Suffix: S storages.
"""

import dataclasses
from dataclasses import dataclass

from brimful.planning.parametric import Irregular, ParametricTrace
from brimful.planning.trace import Int64Array

FEW, MORE, CHECKED = 2, 4, 8
"""Numbers of ranks that are recorded; the last one is for checking."""


@dataclass(frozen=True, eq=False)
class TraceInParts:
    """A step for every number of ranks and every micro-batch.

    Attributes:
        alike: The same on all numbers of ranks; its sizes and counts leave out what lies in parts.
        whole_S: Bytes of all parts together.
        whole_work: Counts (COUNTS x W) of all parts together; None where there is no work.
        rows: Whose divisors are the numbers of ranks it holds for.
    """

    alike: ParametricTrace
    whole_S: Int64Array
    whole_work: Int64Array | None
    rows: int

    def serves(self, ranks: int) -> bool:
        """Return whether it holds for a number of ranks."""
        return ranks > 1 and self.rows % ranks == 0

    def at(self, ranks: int) -> ParametricTrace:
        """Return the step of the first of so many ranks."""
        work = self.alike.work
        if work is not None and self.whole_work is not None:
            work = dataclasses.replace(work, base=work.base + self.whole_work // ranks)
        base_S = self.alike.base_S + self.whole_S // ranks
        return dataclasses.replace(self.alike, base_S=base_S, work=work)


def through(
    few: ParametricTrace, more: ParametricTrace, at: tuple[int, int], rows: int
) -> TraceInParts:
    """Return the line through the same step at two numbers of ranks, of which the second is twice
    the first.

    Raises:
        Irregular: what lies in parts is no share of a whole.
    """
    if more.base_S.shape != few.base_S.shape or at[1] != 2 * at[0]:
        raise Irregular("the step differs between two numbers of ranks")
    whole_S = at[1] * (few.base_S - more.base_S)
    if (whole_S < 0).any():
        raise Irregular("a tensor grows with the number of ranks")
    work, whole_work = few.work, None
    if few.work is not None and more.work is not None:
        whole_work = at[1] * (few.work.base - more.work.base)
        work = dataclasses.replace(few.work, base=few.work.base - whole_work // at[0])
    else:
        work = None
    alike = dataclasses.replace(
        few,
        base_S=few.base_S - whole_S // at[0],
        lowest=max(few.lowest, more.lowest),
        work=work,
    )
    return TraceInParts(alike, whole_S, whole_work, rows)
