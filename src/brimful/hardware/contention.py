"""How much processor time other programs took from this process while it measured. No torch."""

from collections.abc import Callable
from dataclasses import dataclass
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


class CoreWatch:
    """Context that measures how much of the processor time this process wanted others took.

    Args:
        read: Gives the times now.

    Attributes:
        lost_share: 0 on an idle machine, 0.5 where every other second was another program's; set at
            the end.
    """

    def __init__(self, read: Callable[[], CoreTimes] | None = None) -> None:
        self._read = read or core_times
        self.lost_share = 0.0

    def __enter__(self) -> Self:
        self._before = self._read()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
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
    ran_ns = waited_ns = 0
    try:
        for task in _TASKS.iterdir():
            ran, waited, _ = (task / "schedstat").read_text(encoding="ascii").split()
            ran_ns, waited_ns = ran_ns + int(ran), waited_ns + int(waited)
    except (OSError, ValueError):  # another system, or a thread that ended just now
        return None, None
    return (ran_ns / 1e9, waited_ns / 1e9) if ran_ns else (None, None)
