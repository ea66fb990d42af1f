"""What a page asks for, and how it is told: by new contents of places on the page."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from brimful.base.errors import RequestError
from brimful.base.types import Json

Update = Mapping[str, str]
"""`slot`, the id of a place, with its `html` or its `value`; or the tab to `go` to."""


@dataclass(frozen=True, eq=False)
class PageRequest:
    """One request of a page.

    Attributes:
        values: Values of its controls: texts, or lists of texts.
        tell: Sends an update to the page.
        left: Set when the page waits no longer.
    """

    values: Json
    tell: Callable[[Update], object]
    left: threading.Event = field(default_factory=threading.Event)
    _endings: list[Callable[[], object]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _shown: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A value without white space around it; "" where there is none.

        Raises:
            RequestError: it is none that a page sends.
        """
        value = self.values.get(name, "")
        if not isinstance(value, str):
            raise RequestError(f"{name} is no text.")
        return value.strip()

    def texts(self, name: str) -> tuple[str, ...]:
        """The values of a control that takes several.

        Raises:
            RequestError: they are none that a page sends.
        """
        value = self.values.get(name, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(each, str) for each in values):
            raise RequestError(f"{name} is no list of texts.")
        return tuple(values)

    def show(self, slot: str, html: str) -> None:
        """Tell the contents of a place, unless they are there already."""
        if self._shown.get(slot) != html:
            self._shown[slot] = html
            self.tell({"slot": slot, "html": html})

    def fill(self, slot: str, value: str) -> None:
        """Tell the value of a control."""
        self.tell({"slot": slot, "value": value})

    def go(self, tab: str) -> None:
        """Tell the tab that is shown next."""
        self.tell({"go": tab})

    @contextmanager
    def ending(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` if the page leaves while the block runs, or has left before."""
        with self._lock:
            self._endings.append(end)
            if self.left.is_set():
                end()
        try:
            yield
        finally:
            with self._lock:
                self._endings.remove(end)

    def leave(self) -> None:
        """The page waits no longer."""
        with self._lock:
            self.left.set()
            for end in self._endings:
                end()


Act = Callable[[PageRequest], None]
"""Does what a page asks for."""
