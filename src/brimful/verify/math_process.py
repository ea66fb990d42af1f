"""Expressions compared by math-verify in a process of its own, which can be ended: no comparison
hangs its caller or takes its memory.

math-verify's own time limit is an alarm signal: it works in main threads only and does not
interrupt long arithmetic in C (9^9^9^9).
"""

import contextlib
import importlib
import math
import resource
import time
from typing import Any, Literal

from brimful.base.errors import RequestError
from brimful.base.libraries import how_to_install
from brimful.base.units import GIB
from brimful.verify.helper_process import HelperProcess
from brimful.verify.plain import ClosedError, channel, decode, encode, receive, send

Comparison = Literal["same", "different", "answer unread", "reference unread", "ended"]
"""`ended`: it took too much time or memory."""

CPU_S = 3
"""Most CPU time for one comparison; what ends it is counted in whole seconds, so that up to a
second more may pass.
"""
_WALL_S = 60.0
_START_S = 120.0
_MEMORY_BYTES = 2 * GIB


class MathProcess(HelperProcess):
    """Compares; see `HelperProcess`.

    Args:
        cpu_s: Most CPU time of one comparison, in whole seconds.
    """

    def __init__(self, cpu_s: int = CPU_S) -> None:
        super().__init__(__name__, start_s=_START_S)
        self._cpu_s = cpu_s

    def compare(self, answer: str, reference: str) -> Comparison:
        """Whether two expressions in LaTeX mean the same.

        Raises:
            RequestError: math-verify does not start.
        """
        found: Comparison = self.ask([answer, reference, self._cpu_s], _WALL_S) or "ended"
        if self.said is None:
            raise RequestError(
                "math-verify does not start; try `python -c 'import math_verify'`."
                f" {how_to_install('math')}"
            )
        return found


def serve() -> None:
    """The process: answers comparisons until the other side is gone."""
    incoming, outgoing = channel()
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
