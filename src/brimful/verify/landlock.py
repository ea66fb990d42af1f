"""Which files a process may open, by the kernel's Landlock (landlock(7)): read-only folders,
writable folders, nothing else.

Constants: include/uapi/linux/landlock.h of Linux 6.18 (read 2026-11). Needs no rights, no package
and no namespace.
"""

import contextlib
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

from brimful.base.libc import call

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls, the same on every architecture."""
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
"""Rights that each version of the interface added: open, make and remove; then move between
folders, truncate, devices.
"""
_NOT_FOR_PROGRAMS = 1 | 1 << 6 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 15
"""Never given: execute, make character devices, sockets, named pipes and block devices, device
controls.
"""
_TCP = 0b11
"""Bind and connect (version 4)."""
_SCOPES = 0b11
"""Abstract unix sockets and signals to processes outside (version 6)."""


OLDEST = 3
"""Version from which on opening a file to read cannot empty it (Linux 6.2)."""


def version() -> int:
    """Version of the kernel's interface; 0 where there is none."""
    with contextlib.suppress(OSError, AttributeError, TypeError):
        return call("syscall", _CREATE_RULESET, None, 0, _VERSION_FLAG)
    return 0


def ruleset(readable: Iterable[Path], writable: Iterable[Path]) -> int:
    """A descriptor of rules: paths that exist may be read, of those in `writable` also written; no
    TCP; no signals to others.

    Raises:
        OSError: The kernel refused, or is too old.
    """
    known = version()
    if known < OLDEST:
        raise OSError(errno.ENOSYS, f"Landlock version {known}; {OLDEST} is needed")
    files = sum(rights for since, rights in _FILE_RIGHTS.items() if since <= known)
    # Version 4 of Landlock added TCP and version 6 scopes, each one more field of the structure.
    fields = [files]
    if known >= 4:
        fields.append(_TCP)
    if known >= 6:
        fields.append(_SCOPES)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    size = len(attributes)
    descriptor = call("syscall", _CREATE_RULESET, attributes, size, 0)
    for path in readable:
        _allow(descriptor, path, _READ_FILE | _READ_FOLDER)
    for path in writable:
        _allow(descriptor, path, files & ~_NOT_FOR_PROGRAMS)
    return descriptor


def restrict_self(rules: int) -> None:
    """Put this process under the rules, for good. Privileges must be forbidden before.

    Raises:
        OSError: The kernel refused.
    """
    call("syscall", _RESTRICT_SELF, rules, 0)


def _allow(rules: int, path: Path, rights: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not path.is_dir():
            rights &= _READ_FILE
        call("syscall", _ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, beneath), 0)
    finally:
        os.close(beneath)
