"""Families that will probably be asked for next, recorded meanwhile by processes of their own where
there are cores: the step with recomputation while that without is recorded.

Each process is forked when all libraries are loaded, records as this one would, and writes the
family into the user's cache folder, where it is looked for.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import warnings
from collections.abc import Callable

from brimful.planning.family_key import TraceFamilyKey

Record = Callable[[TraceFamilyKey], object]
"""Records a family and writes it into the cache folder."""


class RecordedAhead:
    """Processes that record families.

    Args:
        record: What each does.
        most: Processes at the same time; without it one for each further core.
    """

    def __init__(self, record: Record, most: int | None = None) -> None:
        self._record = record
        self._most = _further_cores() if most is None else most
        self._started: dict[TraceFamilyKey, int] = {}

    def start_after(self, key: TraceFamilyKey, is_there: Callable[[TraceFamilyKey], bool]) -> None:
        """Let the family that probably follows one be recorded.

        Args:
            key: The one that is recorded now.
            is_there: Whether a family need not be recorded.
        """
        if key.spec.recompute or key.is_single or len(self._started) >= self._most:
            return
        spec = dataclasses.replace(key.spec, recompute=True)
        following = dataclasses.replace(key, spec=spec)
        if following not in self._started and not is_there(following):
            self._started[following] = self._fork(following)

    def wait_for(self, key: TraceFamilyKey) -> None:
        """Wait until a family is recorded, if it was started. Where that failed, there is no
        file.
        """
        process = self._started.pop(key, None)
        if process is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)

    def end(self) -> None:
        """End what was not waited for."""
        for key, process in list(self._started.items()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
            self.wait_for(key)

    def _fork(self, key: TraceFamilyKey) -> int:
        with warnings.catch_warnings():
            # Of other threads: the one that shows what is being done has no part in recording.
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if process:
            return process
        try:
            import torch  # noqa: PLC0415 - plans from kept families do without

            torch.set_num_threads(1)  # GNU's OpenMP can wait for threads that were not forked
            self._record(key)
        finally:
            os._exit(0)  # nothing of the other process is flushed or ended here


def _further_cores() -> int:
    """Return how many processes can run beside this one; none where it cannot be forked safely."""
    if sys.platform != "linux":
        return 0
    return len(os.sched_getaffinity(0)) - 1
