"""Ends a process that hangs, so that whoever started it can start it again.

A thread watches what the main thread is doing. It notices a call that never comes back (a dead
drive, a lost device, a deadlock), because such calls let other threads run; one that keeps Python's
global lock is not noticed.
"""

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from brimful.base.types import Numbers
from brimful.base.units import format_duration

EXIT_CODE = 76
"""Exit code of a process that was ended because it hung."""
FILE_NAME = "hang.txt"
"""File in the run folder: what every thread was doing."""
LEAST_PATIENCE_S = 600.0
SPREAD = 20.0
"""Work may take this many times as long as predicted, or as it ever took before."""
UNKNOWN_S = 600.0
"""Taken for work whose time nobody predicted."""
GRACE_S = 20.0
"""Time that is left after a signal asked to stop: clouds give 30 s before they end the machine."""
GRACE_SPREAD = 2.0
TICK_S = 1.0
REPORT_S = 10.0
"""Most time for the report. The disk may be what hangs."""


def longest_wait(expected_s: float, longest_s: float | None, patience_s: float | None) -> float:
    """Return the seconds without progress after which work counts as hanging.

    Args:
        expected_s: That it was predicted to take.
        longest_s: That it took at most so far; None: it was not done yet.
        patience_s: What the user asks for; None: by the other two.
    """
    if patience_s is not None:
        return patience_s
    return max(LEAST_PATIENCE_S, SPREAD * max(expected_s, longest_s or 0.0))


def grace(usual_s: float) -> float:
    """Return the seconds that work which usually takes `usual_s` gets once it was asked to stop."""
    return max(GRACE_S, GRACE_SPREAD * usual_s)


class Watchdog:
    """Watches one session of work, from entering to leaving its context.

    Time is counted by ticks of the watching thread, each for two ticks at most: a machine that
    sleeps or a process that is halted (SIGSTOP, Ctrl-Z) counts as nothing.

    Args:
        folder: Gets the report of a hang.
        expected: Seconds that each kind of work is expected to take.
        patience_s: Longest wait, as of `longest_wait`; infinite: a hang is waited for.
        asked_to_stop: Returns the number of the signal that asked the process to stop, or None.
            Work then has its `grace`.
        tick_s: Time between two looks.
        end: Ends the process with an exit code.
    """

    def __init__(
        self,
        folder: Path,
        expected: Numbers,
        *,
        patience_s: float | None = None,
        asked_to_stop: Callable[[], int | None] = lambda: None,
        tick_s: float = TICK_S,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._folder, self._expected, self._patience_s = folder, expected, patience_s
        self._asked_to_stop, self._tick_s, self._end = asked_to_stop, tick_s, end
        self._longest_s: dict[str, float] = {}
        self._work, self._number = "", 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="watchdog")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def begin(self, work: str) -> None:
        """Note that the main thread begins a piece of work, and has ended the one before."""
        self._work, self._number = work, self._number + 1

    def _watch(self) -> None:
        work, number, waited_s, asked = "", 0, 0.0, None
        last_s = time.monotonic()
        while not self._over.wait(self._tick_s):
            now_s = time.monotonic()
            waited_s += min(now_s - last_s, 2 * self._tick_s)
            last_s = now_s
            if self._number != number:
                self._longest_s[work] = max(waited_s, self._longest_s.get(work, 0.0))
                work, number, waited_s = self._work, self._number, 0.0
            if asked is None and (asked := self._asked_to_stop()) is not None:
                waited_s = 0.0
            expected_s, longest_s = self._expected.get(work, UNKNOWN_S), self._longest_s.get(work)
            limit_s = longest_wait(expected_s, longest_s, self._patience_s)
            if asked is not None:
                limit_s = min(limit_s, grace(expected_s if longest_s is None else longest_s))
            if work and waited_s > limit_s:
                self._report(f"{work} made no progress for {format_duration(waited_s)}")
                self._end(EXIT_CODE if asked is None else 128 + asked)
                return

    def _report(self, problem: str) -> None:
        """Write what every thread is doing, as long as the disk answers."""
        reporter = threading.Thread(
            target=self._write, args=(problem,), daemon=True, name="report of the hang"
        )
        reporter.start()
        reporter.join(REPORT_S)

    def _write(self, problem: str) -> None:
        path = self._folder / FILE_NAME
        names = [f"{each.ident or 0:#018x} {each.name}" for each in threading.enumerate()]
        print(
            f"brimful: {problem}, so this process ends. What every thread was doing is in {path}."
            " The last checkpoint is kept: run the same command to continue. If such work really"
            " takes so long here: run.patience=2h, or run.patience=null to wait for ever.",
            file=sys.stderr,
            flush=True,
        )
        with open(path, "a", encoding="utf-8") as file:
            print(time.strftime("%Y-%m-%d %H:%M:%S"), problem, *names, sep="\n", file=file)
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
            os.fsync(file.fileno())
