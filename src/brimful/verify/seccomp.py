"""The system calls a program may make: an allow-list as a filter the kernel runs (seccomp(2)),
assembled by hand for x86-64 and aarch64.

Everything else answers EPERM: processes, threads, sockets, signals, tracing, mounts, changes of
owners and modes, limits, and what kernels add later. Numbers:
arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.18 (read
2026-11).
"""

import ctypes
import errno
import struct
from collections.abc import Iterable, Mapping, Sequence

from brimful.verify.libc import call

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of linux/audit.h by `os.uname().machine`."""

_WITHOUT_FILES = {
    # name: (x86_64, aarch64); None where the architecture has no such call
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "readv": (19, 65),
    "writev": (20, 66),
    "select": (23, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "dup": (32, 23),
    "dup2": (33, None),
    "nanosleep": (35, 101),
    "getitimer": (36, 102),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "pselect6": (270, 72),
    "poll": (7, None),
    "ppoll": (271, 73),
    "dup3": (292, 24),
    "getrandom": (318, 278),
    "getcwd": (79, 17),
}
_FILES = {
    "open": (2, None),
    "stat": (4, None),
    "lstat": (6, None),
    "access": (21, None),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "flock": (73, 32),
    "ftruncate": (77, 46),
    "getdents64": (217, 61),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "rename": (82, None),
    "mkdir": (83, None),
    "rmdir": (84, None),
    "unlink": (87, None),
    "readlink": (89, None),
    "openat": (257, 56),
    "mkdirat": (258, 34),
    "newfstatat": (262, 79),
    "unlinkat": (263, 35),
    "renameat": (264, 38),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "renameat2": (316, 276),
    "statx": (332, 291),
    "faccessat2": (439, 439),
}
_CLONE3 = (435, 435)
_WITH_ARGUMENTS = {
    # name: numbers, which argument, its allowed values
    "fcntl": (
        (72, 25),
        1,
        (0, 1, 2, 3, 4, 1030),
    ),  # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC: F_SETOWN could signal others
    "ioctl": (
        (16, 29),
        1,
        (0x5401, 0x5413, 0x541B, 0x5450, 0x5451),
    ),  # TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX
    "prlimit64": ((302, 261), 2, (0,)),  # reading limits; root could raise them
}

_LOAD, _JUMP_EQUAL, _JUMP_ABOVE, _RETURN = 0x20, 0x15, 0x35, 0x06
"""BPF_LD+BPF_W+BPF_ABS, BPF_JMP+BPF_JEQ+BPF_K, BPF_JMP+BPF_JGE+BPF_K, BPF_RET+BPF_K of
linux/bpf_common.h.
"""
_ALLOW, _KILL, _DENY, _ABSENT = (
    0x7FFF0000,
    0x80000000,
    0x00050000 | errno.EPERM,
    0x00050000 | errno.ENOSYS,
)
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
"""Offsets in struct seccomp_data; an argument has 8 bytes, the low half first on both
architectures.
"""

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 22, 38, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def assemble(machine: str, *, files: bool) -> bytes:
    """The filter for an architecture, as struct sock_filter[].

    Args:
        machine: A key of `ARCHITECTURES`.
        files: Whether calls that take paths are let through (Landlock then says which paths).
    """
    column = list(ARCHITECTURES).index(machine)
    calls = {**_WITHOUT_FILES, **(_FILES if files else {})}
    bodies = {
        number: [_instruction(_RETURN, _ALLOW)]
        for numbers in calls.values()
        if (number := numbers[column]) is not None
    }
    bodies[_CLONE3[column]] = [_instruction(_RETURN, _ABSENT)]
    bodies |= {
        numbers[column]: _only_with(argument, values)
        for numbers, argument, values in _WITH_ARGUMENTS.values()
    }
    code = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_JUMP_EQUAL, ARCHITECTURES[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER_AT),
        *_search(_segments(bodies)),
    ]
    return b"".join(code)


def _segments(bodies: Mapping[int, list[bytes]]) -> list[tuple[int, list[bytes]]]:
    """Where, from 0 upwards, what is done with a number changes, and to what; neighbours with equal
    fates are one segment.
    """
    deny = [_instruction(_RETURN, _DENY)]
    segments = [(0, bodies.get(0, deny))]
    for number in sorted({*bodies, *(number + 1 for number in bodies)} - {0}):
        body = bodies.get(number, deny)
        if body != segments[-1][1]:
            segments.append((number, body))
    return segments


def _search(segments: Sequence[tuple[int, list[bytes]]]) -> list[bytes]:
    """A binary search for the segment a number lies in. The kernel runs a new filter once for every
    call it knows: a list took 0.4 ms longer to install.
    """
    if len(segments) == 1:
        return segments[0][1]
    middle = len(segments) // 2
    below, above = _search(segments[:middle]), _search(segments[middle:])
    return [_instruction(_JUMP_ABOVE, segments[middle][0], len(below), 0), *below, *above]


def _only_with(argument: int, values: Iterable[int]) -> list[bytes]:
    """Allow a call if the argument is one of the values; all of its 8 bytes count, because it may
    be a pointer.
    """
    low = _ARGUMENTS_AT + 8 * argument
    body = [
        _instruction(_LOAD, low + 4),
        _instruction(_JUMP_EQUAL, 0, 1, 0),
        _instruction(_RETURN, _DENY),
        _instruction(_LOAD, low),
    ]
    for value in values:
        body += [_instruction(_JUMP_EQUAL, value, 0, 1), _instruction(_RETURN, _ALLOW)]
    return [*body, _instruction(_RETURN, _DENY)]


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def forbid_privileges() -> None:
    """No program started from here on gains rights (needed by seccomp and Landlock without root).

    Raises:
        OSError: The kernel refused.
    """
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def install(program: bytes) -> None:
    """Put this process under a filter, for good.

    Raises:
        OSError: The kernel has no seccomp or refused the filter.
    """
    buffer = ctypes.create_string_buffer(program, len(program))
    described = _Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(described), 0, 0)
