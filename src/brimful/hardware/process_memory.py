"""Memory of this process that the system cannot take back: everything but mapped files.

Peak memory on a CPU means this. Pages of files (libraries, a model file while it is read) can be
dropped and read again, so they neither end a process nor count as used in what the system calls
available. What is left are anonymous pages, resident or swapped out: when they no longer fit, the
system ends the process. Systems that do not tell the two apart give the resident set.
"""

import ctypes
import resource
import sys
from pathlib import Path

from brimful.base.types import Counts

_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_HIGHEST_RESIDENT = "5"
"""Written to clear_refs: the highest resident set begins anew (proc(5))."""
_UNMAPPED = ("RssAnon", "RssShmem", "VmSwap")


def unmapped_bytes() -> int:
    """Return what the process holds now beside mapped files."""
    status = _status()
    if _tells_apart(status):
        return _unmapped(status)
    import psutil  # noqa: PLC0415 - few systems need it here

    return int(psutil.Process().memory_info().rss)


def swapped_bytes() -> int | None:
    """Return what of the process is swapped out; None where the system does not tell."""
    return _status().get("VmSwap")


def give_back_free_memory() -> None:
    """Give what the C library holds free in the process back to the system. Does nothing where the
    C library is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


class PeakOfProcess:
    """The most that the process held beside mapped files since this was made.

    The system keeps a peak of the resident set only. That peak without the most that mapped files
    were seen to take is one lower bound of ours, and what was held at each look is another. The
    mapped files of now would not do: the system drops their pages when memory is short.
    """

    def __init__(self) -> None:
        self._highest_bytes = unmapped_bytes()
        self._begins_anew = _reset_highest_resident()
        self._most_of_files_bytes = _status().get("RssFile", 0)

    def look(self) -> int:
        """Return the peak so far, in bytes."""
        status = _status()
        if not _tells_apart(status):
            return max(self._highest_bytes, _highest_resident_of_all_time())
        held_bytes = _unmapped(status)
        self._most_of_files_bytes = max(self._most_of_files_bytes, status["RssFile"])
        if self._begins_anew:
            held_bytes = max(held_bytes, status["VmHWM"] - self._most_of_files_bytes)
        self._highest_bytes = max(self._highest_bytes, held_bytes)
        return self._highest_bytes


def _status() -> Counts:
    """Return the sizes in /proc/self/status, in bytes; none on other systems than Linux."""
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    words = (line.replace(":", " ").split() for line in lines if line.endswith(" kB"))
    return {name: int(kibibytes) * 1024 for name, kibibytes, _ in words}


def _tells_apart(status: Counts) -> bool:
    return {"RssAnon", "RssFile", "VmHWM"} <= status.keys()


def _unmapped(status: Counts) -> int:
    return sum(status.get(name, 0) for name in _UNMAPPED)


def _reset_highest_resident() -> bool:
    """Return whether the system's peak of the resident set begins anew now."""
    try:
        _CLEAR_REFS.write_text(_RESET_HIGHEST_RESIDENT, encoding="utf-8")
    except OSError:
        return False
    return True


def _highest_resident_of_all_time() -> int:
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit_bytes
