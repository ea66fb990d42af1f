"""Calls to the C library that Python has no name for."""

import ctypes
import functools
import os
import signal
import sys


@functools.cache
def c_library() -> ctypes.CDLL:
    """The C library of this process; kept, because making it anew in every forked process takes 0.1
    ms.
    """
    return ctypes.CDLL(None, use_errno=True)


_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends; where it cannot (not Linux), nothing
    is done.

    Args:
        parent: The process that forked this one; if it is gone already, this one ends at once.
    """
    if sys.platform == "linux":
        call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)


def call(name: str, *arguments: object) -> int:
    """Call a function that answers below 0 on errors; plain integers go as long.

    Raises:
        OSError: The kernel refused, or has no such call.
    """
    converted = [
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments
    ]
    answer = int(c_library()[name](*converted))
    if answer < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}{arguments[:1]}: {os.strerror(code)}")
    return answer
