"""SIGTERM and Ctrl-C as a request to stop at the next step boundary, with a checkpoint."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType
from typing import Self

_ASKING = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """While entered, both signals only set `signal_number`. Repeated signals change nothing, so
    that a checkpoint is never interrupted.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, signal.Handlers | object] = {}
        self._arrived: int | None = None
        self._pipe: tuple[int, int] | None = None
        self._previous_descriptor = -1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._pipe = os.pipe()
            for descriptor in self._pipe:
                os.set_blocking(descriptor, False)
            self._previous_descriptor = signal.set_wakeup_fd(
                self._pipe[1], warn_on_full_buffer=False
            )
            for number in _ASKING:
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        if self._pipe is not None:
            signal.set_wakeup_fd(self._previous_descriptor)
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal_number = number

    def has_arrived(self) -> int | None:
        """Return the number of the signal that asked to stop, or None. Another thread may ask, also
        while the main one is stuck in a call and cannot take the signal.
        """
        if self.signal_number is None and self._pipe is not None:
            with suppress(BlockingIOError):
                arrived = os.read(self._pipe[0], 64)
                self._arrived = next((each for each in arrived if each in _ASKING), self._arrived)
        return self.signal_number or self._arrived
