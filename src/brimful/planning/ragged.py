"""What the allocator reserves over a run whose passes have many lengths: steps of the run's lengths
one after another, replayed. A pass that is longer than those before it does not fit into the holes
that they left, and with each new length what is reserved grows, over tens of passes.
"""

import math
import random
from collections.abc import Sequence

from brimful.planning.block_rows import Irregular
from brimful.planning.longest_pass import SOME_PASSES
from brimful.planning.memory import VARYING_SHARE, Replayed, Replays, ReservedPeaks
from brimful.planning.step_sequence import sequence_of_steps
from brimful.planning.trace import Trace

TEXT_SPREAD, LONGEST_TEXT, TEXTS_OF_A_PASS = 0.7, 3.3, 4
"""Texts whose lengths are not known: standard deviation of a length's logarithm, the longest of
some 2,000 in such deviations, and texts of a pass, which is as long as its longest (assumption).
"""


def _drawn() -> tuple[float, ...]:
    """Return lengths of passes over the longest, which comes last."""
    draw = random.Random(0).gauss
    longest_P = [max(draw(0, 1) for _ in range(TEXTS_OF_A_PASS)) for _ in range(SOME_PASSES - 1)]
    return (*(min(1.0, math.exp(TEXT_SPREAD * (each - LONGEST_TEXT))) for each in longest_P), 1.0)


PADDED_FRACTIONS = _drawn()
"""Lengths of successive passes of a run over the longest, where the data are not read yet and each
pass is as long as its longest text.
"""
PACKED_FRACTIONS = (0.97, 0.93, 0.99, 0.5, 0.96, 0.94, 1.0, 0.98)
"""The same where texts are packed end to end: a pass lacks less than a text of its room, but the
last one of a step holds what is left (assumption).
"""

RAGGED_SHARE = (0.98, 1.40)
"""Measured over predicted peak of reserved bytes: over the longest pass alone, which lengths only
add to (1.04 to 1.65), and over the run (0.99 to 1.42, median 1.10). Of 20 settings of one data set
on an A100, of other trainers, with lengths drawn for the data (benchmarks/memory_truth.py).
"""


def reserved_over(
    replays: Replays,
    rows: Sequence[float],
    workspace_bytes: int,
    *,
    in_one_pass: bool = False,
) -> ReservedPeaks:
    """Return what the allocator reserves at most over a run, whose passes are replayed one after
    another. Only the longest pass is replayed, and the interval is wide, where traces of different
    sizes cannot be joined into one run.

    Args:
        replays: The replays of the step.
        rows: Rows of successive passes, at least one; a fraction stands for rows that are not full.
        workspace_bytes: Bytes of a workspace, as in `Replays.at`.
        in_one_pass: The steps have one pass each.
    """

    def trace_of(size: float) -> Trace:
        if size == 1:  # whose trace may be a special case, unlike that of any part of a row
            size = math.nextafter(1, 0)
        return replays.at(size, workspace_bytes, in_one_pass=in_one_pass).trace

    alone = replays.at(max(rows), workspace_bytes, in_one_pass=in_one_pass)
    least = alone.usage.peak_reserved_bytes
    name = f"run of {','.join(f'{size:g}' for size in rows)}{' in one pass' * in_one_pass}"

    def run() -> Trace:
        """Return a run of steps; the first step of the first size is its start, too."""
        return sequence_of_steps([trace_of(size) for size in (rows[0], *rows)])

    try:  # the workspaces are in the traces already
        replayed = Replayed(run, 0, f"{name}/{workspace_bytes}", replays.known)
        reserved = replayed.usage.peak_reserved_bytes
    except Irregular:
        return ReservedPeaks(least, least, VARYING_SHARE)
    return ReservedPeaks(least, max(least, reserved), RAGGED_SHARE)


def high_at_least(alone: Replayed) -> float:
    """Return a lower bound of `high` of what `reserved_over` returns: that of the longest pass
    alone, which other lengths only add to.
    """
    return RAGGED_SHARE[1] * alone.usage.peak_reserved_bytes
