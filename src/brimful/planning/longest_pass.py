"""The longest pass of a run whose examples are known: rows are seldom full."""

from collections.abc import Callable
from dataclasses import dataclass

from brimful.recipe import Recipe

STEPS_LAID_OUT = 200
"""Most optimizer steps of a run that are laid out before it to find the longest pass."""

SOME_PASSES = 8
"""Passes of a run whose lengths are kept. Later ones settle into the memory that these left."""


@dataclass(frozen=True)
class LongestPass:
    """The longest forward and backward pass of a run, which decides its memory.

    Attributes:
        rows: Its positions, in rows of the sequence length.
        passes: Most passes of an optimizer step.
        some: Rows of the run's first passes and of the longest one, in their order; none where they
            are not known.
    """

    rows: float
    passes: int
    some: tuple[float, ...] = ()


LongestPassAt = Callable[[int], LongestPass]
"""Returns the longest of the passes that have room for so many rows."""


def longest_pass_of(
    lay_out: Callable[[int, int, int], list[int]], recipe: Recipe, steps: int | None, room: int
) -> LongestPass:
    """Lay out the first steps of a run and return their longest pass.

    Args:
        lay_out: (first example, examples, most positions of a pass) -> positions of every pass.
        recipe: `batch.sequences` counts examples.
        steps: Of the run; None where that is not known.
        room: Rows of the sequence length that a pass may hold.
    """
    count, length = recipe.effective_batch, recipe.sequence_length
    laid_out = [
        lay_out(step * count, count, room * length)
        for step in range(min(steps or STEPS_LAID_OUT, STEPS_LAID_OUT))
    ]
    positions = [each for step in laid_out for each in step]
    longest = max(positions)
    some = positions[: SOME_PASSES - 1]
    some += [longest] * (longest not in some)
    return LongestPass(
        longest / length, max(map(len, laid_out)), tuple(each / length for each in some)
    )
