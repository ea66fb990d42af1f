"""The longest pass of a run whose examples are known: rows are seldom full."""

from collections.abc import Callable
from dataclasses import dataclass

from brimful.recipe import Recipe

STEPS_LAID_OUT = 200
"""Most optimizer steps of a run that are laid out before it to find the longest pass."""

SOME_PASSES = 60
"""Passes of a run whose lengths are kept. Later ones settle nearly all into the memory that these
left: 100 and 250 reserve a few percent more (docs/log).
"""


@dataclass(frozen=True)
class LongestPass:
    """The longest forward and backward passes of a run, which decide its memory.

    A pass that is not the first of its optimizer step finds the gradients of those before it, so
    the longest of these is told apart: where examples are laid into as few passes as hold them, the
    longest pass is often alone in its step, or the first.

    Attributes:
        rows: Positions of the longest pass, in rows of the sequence length.
        later_rows: The same of the longest that is not the first of its step; 0 where every step
            has one pass. Those of a run's first step, which has no optimizer states yet, count only
            where there is no other step.
        some: Rows of the run's first passes and of the two longest, in their order; none where they
            are not known.
        passes: The passes of the whole run; None where its length or its examples are not known.
        step_rows: Rows that a step computes on average, padding included.
        step_passes: Passes of a step on average.
    """

    rows: float
    later_rows: float
    some: tuple[float, ...] = ()
    passes: int | None = None
    step_rows: float = 0.0
    step_passes: float = 0.0


LongestPassAt = Callable[[int], LongestPass]
"""Returns the longest of passes that have room for so many rows."""


def longest_pass_of(
    lay_out: Callable[[int, int, int], list[int]],
    recipe: Recipe,
    steps: int | None,
    room: int,
    *,
    devices: int = 1,
) -> LongestPass:
    """Lay out the first steps of a run and return their longest passes.

    Args:
        lay_out: (first example, examples, most positions of a pass) -> computed positions of every
            pass.
        recipe: `batch.sequences` counts examples.
        steps: The steps of the run; None where that is not known.
        room: Rows of the sequence length that a pass may hold.
        devices: That share a step; the passes are those of one.
    """
    count, length = max(1, recipe.effective_batch // devices), recipe.sequence_length
    laid_out = [
        lay_out(step * count, count, room * length)
        for step in range(min(devices * (steps or STEPS_LAID_OUT), STEPS_LAID_OUT))
    ]
    positions = [each for step in laid_out for each in step]
    longest = max(positions)
    with_states = laid_out[1:] or laid_out
    longest_later = max((each for step in with_states for each in step[1:]), default=0)
    some = positions[: SOME_PASSES - 1]
    some += [each for each in (longest_later, longest) if each and each not in some]
    return LongestPass(
        longest / length,
        longest_later / length,
        tuple(each / length for each in some),
        None if steps is None else round(len(positions) * steps / len(laid_out)),
        sum(positions) / length / len(laid_out),
        len(positions) / len(laid_out),
    )


def split(effective_batch: int, micro_batch: int) -> tuple[int, ...]:
    """Return the micro-batches of an effective batch; only the last one may be smaller."""
    full, rest = divmod(effective_batch, micro_batch)
    return (micro_batch,) * full + (rest,) * bool(rest)
