"""A limit on the processor time of code that others wrote."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from brimful.base.units import format_duration


@contextmanager
def processor_time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the code within that takes longer, counted by this process's own clock,
    which stands while other programs have the processor.

    Only Python code of the main thread is ended, as signals reach no other; without signals of a
    clock (Windows) nothing is.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError(f"it took more than {format_duration(seconds)} of the processor")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
