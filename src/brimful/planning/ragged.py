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
"""Assumed of texts that are not read yet: the standard deviation of the logarithm of their lengths,
how many such deviations the longest of some 2,000 texts lies above the median, and how many texts
a pass has, which is as long as its longest.
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
"""Ends of the interval of reserved bytes: the low one as a share of the replayed longest pass, the
high one as a share of the replayed run. On 20 published settings of one data set on an A100,
trained by other tools, measured bytes were 1.04 to 1.65 times the former and 0.99 to 1.42 times
the latter (median 1.10; benchmarks/memory_truth.py).
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
        """Return the trace of a run with one step of each size. The first size comes twice: its
        first step starts the run, where `sequence_of_steps` takes second steps of all others.
        """
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
