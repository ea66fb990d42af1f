"""Expressions compared by math-verify in a process of its own, which can be ended: no comparison
hangs its caller or takes its memory.

math-verify's own time limit is an alarm signal: it works in main threads only and does not
interrupt long arithmetic in C (9^9^9^9).
"""

import contextlib
import importlib
import math
import os
import resource
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.units import GIB
from brimful.verify.plain import ClosedError, NotPlainError, decode, encode, receive, send

Comparison = Literal["same", "different", "answer unread", "reference unread", "ended"]
"""`ended`: it took too much time or memory."""

CPU_S = 3
"""Most CPU time for one comparison; what ends it is counted in whole seconds, so that up to a
second more may pass.
"""
_WALL_S = 60.0
_START_S = 120.0
_MEMORY_BYTES = 2 * GIB
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from brimful.verify.math_process import serve;"
    " serve()"
)


class MathProcess:
    """Starts its process with the first comparison, and again after one that had to be ended.
    Threads may share it; they take turns.

    Args:
        cpu_s: Most CPU time of one comparison, in whole seconds.
    """

    def __init__(self, cpu_s: int = CPU_S) -> None:
        self._cpu_s = cpu_s
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None

    def compare(self, answer: str, reference: str) -> Comparison:
        """Whether two expressions in LaTeX mean the same.

        Raises:
            RequestError: math-verify does not start.
        """
        with self._turn:
            process = self._process or self._started()
            try:
                send(_number(process.stdin), encode([answer, reference, self._cpu_s]))
                found: Comparison = decode(
                    receive(_number(process.stdout), time.monotonic() + _WALL_S)
                )
            except (ClosedError, NotPlainError, TimeoutError):
                self.close()
                return "ended"
            return found

    def close(self) -> None:
        """End the process; the next comparison starts another."""
        self._process = None
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603  this Python with our own module
            [sys.executable, "-P", "-c", _START, str(Path(__file__).parents[2])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _ended, process)
        try:
            receive(_number(process.stdout), time.monotonic() + _START_S)
        except (ClosedError, TimeoutError):
            self.close()
            raise RequestError(
                "math-verify does not start; try `python -c 'import math_verify'`."
                f" {how_to_install('math')}"
            ) from None
        self._process = process
        return process


def serve() -> None:
    """The process: answers comparisons until the other side is gone."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    for limit, value in ((resource.RLIMIT_AS, _MEMORY_BYTES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))
    verifier = importlib.import_module("math_verify")
    send(outgoing, encode("ready"))
    with contextlib.suppress(ClosedError):
        while True:
            answer, reference, cpu_s = decode(receive(incoming))
            hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + cpu_s, hard))
            send(outgoing, encode(_compared(verifier, answer, reference)))


def _compared(verifier: Any, answer: str, reference: str) -> Comparison:
    right = _parsed(verifier, reference)
    if not right:
        return "reference unread"
    read = _parsed(verifier, answer)
    if not read:
        return "answer unread"
    with contextlib.suppress(Exception):
        return "same" if verifier.verify(right, read, timeout_seconds=None) else "different"
    return "different"


def _parsed(verifier: Any, text: str) -> Any:
    """What math-verify makes of a text as LaTeX. Its other way of reading is left out: it hands
    text to Python's eval.
    """
    with contextlib.suppress(Exception):
        return verifier.parse(
            f"\\boxed{{{text}}}",
            [verifier.LatexExtractionConfig()],
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
    return []


def _number(pipe: Any) -> int:
    return int(pipe.fileno())


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
