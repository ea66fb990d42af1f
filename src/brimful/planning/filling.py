"""What the passes of a run hold where its examples are known: rows are seldom full."""

from collections.abc import Callable
from dataclasses import dataclass

from brimful.recipe import Recipe

STEPS_LAID_OUT = 200
"""Most optimizer steps of a run that are laid out before it to find the longest pass."""


@dataclass(frozen=True)
class Filling:
    """What the passes of a run hold at most.

    Attributes:
        rows: Positions of a forward and backward pass, in rows of the sequence length.
        passes: Of an optimizer step.
    """

    rows: float
    passes: int


FillingAt = Callable[[int], Filling]
"""Returns what passes hold that have room for so many rows."""


def filling_of(
    lay_out: Callable[[int, int, int], list[int]], recipe: Recipe, steps: int | None, room: int
) -> Filling:
    """Lay out the first steps of a run.

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
    longest = max(max(positions) for positions in laid_out)
    return Filling(longest / length, max(map(len, laid_out)))
