"""What the allocator reserves over a run whose passes have many lengths: steps of the run's lengths
one after another, replayed. A pass that is longer than those before it does not fit into the holes
that they left, so the order of lengths matters, too.
"""

from collections.abc import Callable, Sequence
from functools import partial

from brimful.planning.block_rows import Irregular
from brimful.planning.memory import VARYING_SHARE, Replayed, Replays, ReservedPeaks
from brimful.planning.step_sequence import sequence_of_steps
from brimful.planning.trace import Trace

PADDED_FRACTIONS = (0.35, 0.6, 0.45, 0.8, 0.5, 0.3, 1.0, 0.65)
"""Lengths of successive passes of a run over the longest, where the data are not read yet and each
pass is as long as its longest text: spread widely (assumption).
"""
PACKED_FRACTIONS = (0.97, 0.93, 0.99, 0.5, 0.96, 0.94, 1.0, 0.98)
"""The same where texts are packed end to end: a pass lacks less than a text of its room, but the
last one of a step holds what is left (assumption).
"""

RAGGED_SHARE = (0.98, 1.10)
"""Measured over predicted peak of reserved bytes: over the longest pass alone, which lengths only
add to, and over the worst order. Of four settings on an A100 that the device did not cut off, of
other trainers and with PADDED_FRACTIONS, 1.05 to 1.27 of the one and 0.9 to 1.05 of the other.
"""


def reserved_over(
    replays: Replays,
    rows: Sequence[float],
    workspace_bytes: int,
    *,
    in_one_pass: bool = False,
) -> ReservedPeaks:
    """Return what the allocator reserves at most over a run, whose passes are replayed one after
    another: in the given order, and in the reverse. Only the longest pass is replayed, and the
    interval is wide, where traces of different sizes cannot be joined into one run.

    Args:
        replays: The replays of the step.
        rows: Rows of successive passes, at least one; a fraction stands for rows that are not full.
        workspace_bytes: Bytes of a workspace, as in `Replays.at`.
        in_one_pass: The steps have one pass each.
    """
    orders = (tuple(rows), tuple(rows[::-1]))

    def trace_of(size: float) -> Trace:
        return replays.at(size, workspace_bytes, in_one_pass=in_one_pass).trace

    def reserved(order: Sequence[float]) -> int:
        name = f"run of {','.join(f'{size:g}' for size in order)}{' in one pass' * in_one_pass}"
        make = partial(_run_of, trace_of, order)
        # The workspaces are in the traces already.
        return Replayed(
            make, 0, f"{name}/{workspace_bytes}", replays.known
        ).usage.peak_reserved_bytes

    alone = replays.at(max(rows), workspace_bytes, in_one_pass=in_one_pass)
    least = alone.usage.peak_reserved_bytes
    try:
        found = [reserved(order) for order in orders]
    except Irregular:
        return ReservedPeaks(least, least, least, VARYING_SHARE)
    return ReservedPeaks(min(least, *found), found[0], max(least, *found), RAGGED_SHARE)


def high_at_least(alone: Replayed) -> float:
    """Return a lower bound of `high` of what `reserved_over` returns: that of the longest pass
    alone, which other lengths only add to.
    """
    return RAGGED_SHARE[1] * alone.usage.peak_reserved_bytes


def _run_of(trace_of: Callable[[float], Trace], order: Sequence[float]) -> Trace:
    """Return a run of steps; the first step of the first size is its start, too."""
    return sequence_of_steps([trace_of(size) for size in (order[0], *order)])
