"""How much processor time other programs took from this process while it measured. No torch."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class CoreTimes:
    """Seconds since some beginning.

    Attributes:
        ran: This process's threads on a core.
        waited: They were ready, and another program had the core; None where the system does not
            say.
        others: Other programs on all cores.
        stolen: The machine below took from all cores of this virtual one.
        passed: All cores, busy or not.
    """

    ran: float
    waited: float | None
    others: float
    stolen: float
    passed: float


@dataclass(frozen=True)
class ThreadTimes:
    """Seconds since some beginning, as the calling thread sees them.

    Attributes:
        passed: Seconds that passed on the clock.
        ran: This thread on a core.
        waited: Each thread of this process for a core that another program had, by its number;
            empty where the system does not say.
        thread: The number of this one.
    """

    passed: float
    ran: float
    waited: Mapping[int, float] = field(hash=False)
    thread: int


def own_s(before: ThreadTimes, after: ThreadTimes) -> float:
    """Return the seconds between two readings without what other programs took of them: while this
    thread waited for a core, and while it slept because one that computes with it did.
    """
    waits = {each: s - before.waited.get(each, 0.0) for each, s in after.waited.items()}
    awake_s = after.passed - before.passed - waits.pop(after.thread, 0.0)
    slept_s = max(awake_s - (after.ran - before.ran), 0.0)
    return awake_s - min(slept_s, max(waits.values(), default=0.0))


def thread_times() -> ThreadTimes:
    """Return the times now."""
    waited = {}
    with suppress(OSError):  # another system
        for thread in _TASKS.iterdir():
            with suppress(OSError, ValueError):  # it ended just now
                waited[int(thread.name)] = _counted(thread)[1]
    return ThreadTimes(time.perf_counter(), time.thread_time(), waited, threading.get_native_id())


def own_clock() -> Callable[[], float]:
    """Return a clock of the calling thread's CPU time, in seconds, which counts neither waiting for
    a core nor sleeping; the wall clock where the system does not say what threads waited.
    """
    return time.thread_time if _TASKS.exists() else time.perf_counter


class CoreWatch:
    """Context that measures how much of the processor time this process wanted others took.

    Args:
        read: Gives the times now.

    Attributes:
        lost_share: 0 on an idle machine, 0.5 where every other second was another program's; set at
            the end.
        own_over_clock: Seconds without what other programs took over those of `own_clock`; set at
            the end.
    """

    def __init__(self, read: Callable[[], CoreTimes] | None = None) -> None:
        self._read = read or core_times
        self.lost_share, self.own_over_clock = 0.0, 1.0

    def __enter__(self) -> Self:
        self._clock = own_clock()
        self._before, self._began, self._began_s = self._read(), thread_times(), self._clock()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        clock_s = self._clock() - self._began_s
        if clock_s > 0:
            self.own_over_clock = max(own_s(self._began, thread_times()) / clock_s, 1.0)
        self.lost_share = lost_share(self._before, self._read())


def lost_share(before: CoreTimes, after: CoreTimes) -> float:
    """Return the share of the wanted processor time that others took between two readings.

    What threads waited for a core counts, and what the machine below took. Where waiting is not
    known, the share of all cores that other programs used stands for it.
    """
    ran, passed = after.ran - before.ran, after.passed - before.passed
    if passed <= 0:
        return 0.0
    stolen = (after.stolen - before.stolen) / passed
    if before.waited is None or after.waited is None:
        waiting = (after.others - before.others) / passed
    else:
        waited = after.waited - before.waited
        waiting = waited / (ran + waited) if ran + waited > 0 else 0.0
    return min(max(1 - (1 - waiting) * (1 - stolen), 0.0), 1.0)


def core_times() -> CoreTimes:
    """Return the times now."""
    import psutil  # noqa: PLC0415 - plans of other machines measure nothing

    ran_s, waited_s = _scheduled()
    own = psutil.Process().cpu_times()
    own_s = own.user + own.system
    every = psutil.cpu_times()
    busy_s = every.user + every.system + getattr(every, "nice", 0.0)
    stolen_s = getattr(every, "steal", 0.0)
    passed_s = busy_s + every.idle + getattr(every, "iowait", 0.0) + stolen_s
    return CoreTimes(
        own_s if ran_s is None else ran_s, waited_s, busy_s - own_s, stolen_s, passed_s
    )


def _scheduled() -> tuple[float | None, float | None]:
    """Return the seconds that this process's threads ran and waited for a core, as Linux's
    scheduler counts them; None where it does not.
    """
    ran_s = waited_s = 0.0
    try:
        for thread in _TASKS.iterdir():
            ran, waited = _counted(thread)
            ran_s, waited_s = ran_s + ran, waited_s + waited
    except (OSError, ValueError):  # another system, or a thread that ended just now
        return None, None
    return (ran_s, waited_s) if ran_s else (None, None)


def _counted(thread: Path) -> tuple[float, float]:
    """Return the seconds that a thread ran and waited for a core."""
    ran_ns, waited_ns, _ = (thread / "schedstat").read_text(encoding="ascii").split()
    return int(ran_ns) / 1e9, int(waited_ns) / 1e9
