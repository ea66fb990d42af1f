"""A child process that runs a module of brimful: it answers one request at a time, and can be
killed.
"""

import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brimful.verify.plain import ClosedError, NotPlainError, decode, encode, receive, send

_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from importlib import import_module;"
    " import_module(sys.argv[2]).serve(*sys.argv[3:])"
)


class HelperProcess:
    """Starts the process with the first request, and anew after one that had to be killed. Threads
    may share it; they take turns.

    Attributes:
        said: What it said when it was ready; None: it has not started, or did not get ready.

    Args:
        module: Its function `serve` is the process (`plain.channel`).
        arguments: Texts for that function.
        start_s: Most seconds until it is ready.
    """

    def __init__(self, module: str, *arguments: str, start_s: float) -> None:
        self._words = (module, *arguments)
        self._start_s = start_s
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._end: Callable[[], object] = lambda: None
        self.said: Any = None

    def ask(self, question: Any, within_s: float) -> Any:
        """Return the answer to a plain value; None: the process was ended, or does not start."""
        with self._turn:
            try:
                process = self._process or self._started()
                send(_number(process.stdin), encode(question))
                return decode(receive(_number(process.stdout), time.monotonic() + within_s))
            except (ClosedError, NotPlainError, TimeoutError):
                self.close()
                return None

    def start(self) -> Any:
        """Start the process and return its first message, sent once it is ready; None if it is not
        ready in time.
        """
        with self._turn:
            try:
                self._started()
            except (ClosedError, NotPlainError, TimeoutError):
                self.close()
            return self.said

    def close(self) -> None:
        """End the process; the next question starts another."""
        self._process = None
        self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        self.said = None
        process = subprocess.Popen(  # noqa: S603  this Python with our own module
            [sys.executable, "-P", "-c", _START, str(Path(__file__).parents[2]), *self._words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
        )
        self._end = weakref.finalize(self, _ended, process)
        self.said = decode(receive(_number(process.stdout), time.monotonic() + self._start_s))
        self._process = process
        return process


def _number(pipe: Any) -> int:
    return int(pipe.fileno())


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
