"""SIGTERM and Ctrl-C as a request to stop at the next step boundary, with a checkpoint."""

import signal
import threading
from types import FrameType
from typing import Self


class StopRequest:
    """While entered, both signals only set `signal_number`. Repeated signals change nothing, so
    that a checkpoint is never interrupted.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, signal.Handlers | object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number

    def is_made(self) -> bool:
        return self.signal_number is not None
