"""What surrounds a process that runs unread code: the kernel's locks, resource limits, and the
probe that finds out which locks hold here.
"""

import contextlib
import importlib
import math
import os
import socket
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from brimful.base.libc import c_library
from brimful.base.units import GIB, MIB
from brimful.verify import landlock, seccomp

LEVELS = ("landlock", "seccomp", "none")
"""Strongest first. `landlock`: an allow-list of system calls, files by path. `seccomp`: the same
list without any call that takes a path, so that no file is opened at all. `none`: limits and time
only; the program can do what the user can.
"""

COMMON_MODULES = (
    "bisect",
    "cmath",
    "collections",
    "copy",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "random",
    "re",
    "resource",
    "string",
    "typing",
)
"""Loaded before programs start, so that they start faster; each more makes every fork slower."""
MODULES = (
    *COMMON_MODULES,
    "abc",
    "array",
    "ast",
    "base64",
    "binascii",
    "calendar",
    "contextlib",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fractions",
    "hashlib",
    "io",
    "json",
    "keyword",
    "locale",
    "numbers",
    "pprint",
    "queue",
    "secrets",
    "statistics",
    "struct",
    "sys",
    "textwrap",
    "threading",
    "time",
    "types",
    "unicodedata",
    "unittest",
    "urllib.parse",
    "uuid",
    "warnings",
    "zlib",
)
"""What programs may import where no file can be opened: loaded before the lock falls."""


@dataclass(frozen=True)
class ProgramLimits:
    """What one program may use.

    Attributes:
        seconds: Wall time, without the time that it waits for a core where the system counts that.
        cpu_seconds: CPU time of each of its processes, in whole seconds; None for the wall time
            rounded up.
        memory_bytes: Address space of each of its processes.
        file_bytes: One file.
        folder_bytes: All files in its folder.
        output_bytes: What it prints.
        open_files: Descriptors.
    """

    seconds: float = 4.0
    cpu_seconds: int | None = None
    memory_bytes: int = GIB // 2
    file_bytes: int = 8 * MIB
    folder_bytes: int = 32 * MIB
    output_bytes: int = MIB
    open_files: int = 32

    @property
    def most_seconds(self) -> float:
        """Wall time after which a program is given up, however long it waited for a core."""
        return 60 * self.seconds

    @property
    def most_cpu_seconds(self) -> int:
        """CPU time at which a process is told to end; a second later it is killed."""
        return self.cpu_seconds or math.ceil(self.seconds)


class Isolation:
    """One level, prepared once before programs start and entered by each process that runs one.

    Args:
        level: One of `LEVELS`.
        folder: The only place a candidate may write to.

    Raises:
        OSError: The kernel does not offer the level.
    """

    def __init__(self, level: str, folder: Path) -> None:
        self.level = level
        c_library()
        self._filter, self._rules = b"", {}
        if level != "none":
            self._filter = seccomp.assemble(_machine(), files=level == "landlock")
        if level == "landlock":
            readable = _library_paths()
            self._rules[True] = landlock.ruleset(readable, [folder])
            self._rules[False] = landlock.ruleset(readable, [])

    def enter(self, limits: ProgramLimits, *, writes: bool) -> None:
        """Lock this process, for good.

        Args:
            limits: What it may use.
            writes: Whether it may write in the folder.

        Raises:
            OSError: The kernel refused.
        """
        _limit(limits)
        if self.level == "none":
            return
        seccomp.forbid_privileges()
        if self.level == "landlock":
            landlock.restrict_self(self._rules[writes])
        seccomp.install(self._filter)


def best_level(folder: Path) -> str:
    """The strongest level that holds here, tried out: a process that enters it must fail to open a
    file and a socket.
    """
    return next(level for level in LEVELS if level == "none" or holds(level, folder))


def holds(level: str, folder: Path) -> bool:
    """Whether a process that enters the level can neither open what it must not nor make a
    socket.
    """
    if sys.platform != "linux" or os.uname().machine not in seccomp.ARCHITECTURES:
        return False
    child = os.fork()
    if child == 0:
        refused = [False]
        with contextlib.suppress(BaseException):
            Isolation(level, folder).enter(ProgramLimits(), writes=True)
            refused = [
                _is_refused(lambda: os.open("/proc/self/environ", os.O_RDONLY)),
                _is_refused(socket.socket),
            ]
        os._exit(0 if all(refused) else 1)
    return os.waitpid(child, 0)[1] == 0


def load_modules(level: str) -> None:
    """Import what programs may import at the level `seccomp`, and what they commonly import at
    others.
    """
    for name in MODULES if level == "seccomp" else COMMON_MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def _is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except PermissionError:
        return True
    return False


def _machine() -> str:
    machine = os.uname().machine
    if machine not in seccomp.ARCHITECTURES:
        raise OSError(f"no system call list for {machine}")
    return machine


def _library_paths() -> list[Path]:
    """Python's own library and the shared libraries that its modules load."""
    own = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), f"{sys.base_prefix}/lib"]
    shared = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/null"]
    return [Path(path) for path in dict.fromkeys([*own, *shared])]


def _limit(limits: ProgramLimits) -> None:
    import resource  # noqa: PLC0415  absent on Windows

    seconds = limits.most_cpu_seconds
    for what, soft, hard in (
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files, limits.open_files),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_NPROC, 0, 0),
    ):
        resource.setrlimit(what, (soft, hard))
