"""Processes that are killed in the midst of what they do."""

import os
import signal
from collections.abc import Callable
from typing import Any


def in_a_child(act: Callable[[], object]) -> int:
    """Run `act` in a forked process; returns the number of the signal that ended it, 0 when it
    ended by itself.
    """
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def kill_at(target: object, name: str, call: int) -> None:
    """Replace `target.name` by a version that is SIGKILL at its `call`-th use, before doing
    anything.
    """
    real, count = getattr(target, name), 0

    def act(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **kwargs)

    setattr(target, name, act)
