"""The system calls a program may make: an allow-list as a filter the kernel runs (seccomp(2)),
assembled by hand for x86-64 and aarch64, because no binding of libseccomp comes with Python.

Everything else answers EPERM: processes, threads, sockets, signals, tracing, mounts, changes of
owners and modes, limits, and what kernels add later. The calls and their numbers stand in
system_calls.toml.
"""

import ctypes
import errno
import struct
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

from brimful.base.libc import call
from brimful.base.types import Json

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""AUDIT_ARCH_* of linux/audit.h by `os.uname().machine`."""

ALLOWED: Json = tomllib.loads(
    resources.files("brimful.verify").joinpath("system_calls.toml").read_text(encoding="utf-8")
)
"""The tables of system_calls.toml."""

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
    calls = dict(ALLOWED["without_files"])
    if files:
        calls |= ALLOWED["files"]
    bodies = {
        numbers[machine]: [_instruction(_RETURN, _ALLOW)]
        for numbers in calls.values()
        if machine in numbers
    }
    bodies[ALLOWED["absent"]["clone3"][machine]] = [_instruction(_RETURN, _ABSENT)]
    for call_ in ALLOWED["with_argument"].values():
        bodies[call_["numbers"][machine]] = _only_with(call_["argument"], call_["values"])
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
