"""Limits on the time of code that others wrote, and on what a hub answers."""

import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from brimful.base.errors import RequestError
from brimful.base.units import format_bytes, format_duration

LARGEST_ANSWER_BYTES = 1 << 24
LONGEST_ANSWER_S = 60.0
"""Of an answer of the hub from its first byte on, and of waiting for any byte."""
LONGEST_WAIT_S = 300.0
"""For all answers to one question, beside what is sent."""
SLOWEST_BYTES_PER_S = 1 << 14
"""At which a network still sends."""
_AGAIN_S = 1.0
"""After which code that went on over its end is ended again."""
_is_limited = ContextVar("_is_limited", default=False)


@contextmanager
def processor_time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the code within that takes longer, counted by this process's own clock,
    which stands while other programs have the processor.

    Only Python code of the main thread is ended, as signals reach no other; without signals of a
    clock (Windows) nothing is.
    """
    over = TimeoutError(f"it took more than {format_duration(seconds)} of the processor")
    with _ended("VIRTUAL", "VTALRM", seconds, over):
        yield


@contextmanager
def hub_limits(sent_bytes: int = 0) -> Iterator[None]:
    """Raise RequestError where the hub's library, used within, waits for longer than what it sends
    can take, or where an answer is too long or too large for one of the hub.

    Args:
        sent_bytes: Size of what is sent to the hub.

    In other threads than the main one single answers alone are limited, as signals reach no other.
    """
    from huggingface_hub import set_client_factory  # noqa: PLC0415 - half a second
    from huggingface_hub.utils import _http  # noqa: PLC0415

    make: Any = _http._GLOBAL_CLIENT_FACTORY
    if not isinstance(make, _Limiting):  # once: setting it closes what other threads use
        set_client_factory(_Limiting(make))
    seconds = LONGEST_WAIT_S + sent_bytes / SLOWEST_BYTES_PER_S
    over = RequestError(f"the hub took longer than {format_duration(seconds)}")
    token = _is_limited.set(True)
    try:
        with _ended("REAL", "ALRM", seconds, over):
            yield
    finally:
        _is_limited.reset(token)


@dataclass(frozen=True)
class _Limiting:
    """Makes the hub library's client, with limits on answers that are no download."""

    make: Callable[[], Any]

    def __call__(self) -> Any:
        client = self.make()
        client.event_hooks["request"].append(_limit_waiting)
        client.event_hooks["response"].append(_limit_answer)
        return client


def _is_no_download(request: Any) -> bool:
    """What is sent has a short answer, also in threads that the library starts for it."""
    return _is_limited.get() or bool({"content-length", "transfer-encoding"} & set(request.headers))


def _limit_waiting(request: Any) -> None:
    if _is_no_download(request):
        waits = request.extensions["timeout"]
        request.extensions["timeout"] = {
            name: LONGEST_ANSWER_S if wait is None else wait for name, wait in waits.items()
        }


def _limit_answer(response: Any) -> None:
    """Let an answer end within the limits, as it is unpacked."""
    if not _is_no_download(response.request):
        return
    for name in ("retry-after", "ratelimit"):  # not in a quarter of an hour
        if re.search(r"\d{4}", response.headers.get(name, "")):
            del response.headers[name]
    read = response.iter_bytes

    def iter_bytes(*arguments: Any, **named: Any) -> Iterator[bytes]:
        size, until_s = 0, time.monotonic() + LONGEST_ANSWER_S
        for block in read(*arguments, **named):
            size += len(block)
            if size > LARGEST_ANSWER_BYTES or time.monotonic() > until_s:
                raise RequestError(
                    f"the hub did not end an answer within {format_bytes(LARGEST_ANSWER_BYTES)} and"
                    f" {format_duration(LONGEST_ANSWER_S)}"
                )
            yield block

    response.iter_bytes = iter_bytes


@contextmanager
def _ended(clock: str, signal_name: str, seconds: float, error: Exception) -> Iterator[None]:
    """Raise an error in the code within after some seconds of a clock, where that is possible."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise error

    number, timer = getattr(signal, f"SIG{signal_name}"), getattr(signal, f"ITIMER_{clock}")
    before = signal.signal(number, stop)
    signal.setitimer(timer, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
