"""The end of a session, after which the machine is gone, and what still fits before it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from brimful.base.units import format_duration

RESERVE_S = 20.0
"""Time kept free before the end: machines are taken away a little early, and a disk may be slow
then (assumption).
"""
MOST_RESERVE_SHARE = 0.1
"""Largest share of a short session that is kept free."""
SAVE_SPREAD = 2.0
"""Factor on the time of the last checkpoint: the next one may take longer (assumption)."""
MOST_COPY_SHARE = 0.25
"""Largest share of the session that is kept free for the copy in the mirror, so that a slow mirror
shortens a session but does not use it up.
"""
WORK_SPREAD = 1.25
"""Factor on the time of the last step or evaluation (assumption)."""

Clock = Callable[[], float]


@dataclass(frozen=True)
class Deadline:
    """When a session ends.

    Attributes:
        at_s: Time at which the session has to end, by `clock`.
        session_s: Length of the whole session.
        clock: Seconds, rising.
    """

    at_s: float
    session_s: float
    clock: Clock = time.monotonic

    @classmethod
    def of_process(cls, session_s: float) -> "Deadline":
        """Return a deadline that counts from the start of this process."""
        running_s = time.time() - psutil.Process().create_time()
        return cls(time.monotonic() - running_s + session_s, session_s)

    @property
    def left_s(self) -> float:
        """Seconds to the end; negative after it."""
        return self.at_s - self.clock()

    def leaves_room(self, *, work_s: float, save_s: float, copy_s: float = 0.0) -> bool:
        """Return whether work, a checkpoint after it, and its copy in the mirror end in time."""
        reserve_s = min(RESERVE_S, MOST_RESERVE_SHARE * self.session_s)
        needed_s = WORK_SPREAD * work_s + SAVE_SPREAD * save_s
        return self.left_s >= needed_s + self.kept_for_copy_s(copy_s) + reserve_s

    def kept_for_copy_s(self, copy_s: float) -> float:
        """Return how much of the time that a copy takes is kept free for it."""
        return min(copy_s, MOST_COPY_SHARE * self.session_s)

    def describe(self, copy_s: float = 0.0) -> str:
        """Return when the session ends, and the time kept for the copy in the mirror if that is
        long.
        """
        ends = time.strftime("%H:%M", time.localtime(time.time() + self.left_s))
        message = (
            f"this session of {format_duration(self.session_s)} ends at {ends}, in"
            f" {format_duration(max(0.0, self.left_s))}"
        )
        kept_s = self.kept_for_copy_s(copy_s)
        if kept_s > RESERVE_S:
            message += f", of which the copy in the mirror is given {format_duration(kept_s)}"
        return message
