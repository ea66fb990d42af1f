"""The thread that writes the texts of all clients together, each as long as it is wanted."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from brimful.base.errors import BrimfulError, RequestError
from brimful.generation.engine import Engine
from brimful.generation.requests import Generation, Request, StopRules
from brimful.generation.sampler import GREEDY

Token = tuple[int, float]
"""A token id and its logprob."""
Update = Token | Generation | BrimfulError


class Busy(RequestError):
    """Too many texts wait already."""


@dataclass(eq=False)
class Text:
    """One text that somebody waits for.

    Attributes:
        request: What is to be written.
        tell: Called in the writer's thread with every token, then with the whole text or an error.
        is_wanted: Set to False, it ends with the next token and is not told of.
    """

    request: Request
    tell: Callable[[Update], None]
    is_wanted: bool = True


class SharedWriter:
    """Hands texts to the engine in the order in which they came, whenever it has room.

    Args:
        engine: Engine of the model.
        stop_ids: Tokens that end a text.
        most_waiting: Texts that may be waiting to be begun.
    """

    def __init__(self, engine: Engine, stop_ids: frozenset[int], most_waiting: int) -> None:
        self._engine, self._stop, self._most_waiting = engine, StopRules(stop_ids), most_waiting
        self._came: queue.SimpleQueue[Text | None] = queue.SimpleQueue()
        self._begun: dict[int, Text] = {}
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name="brimful-writer", daemon=True)
        self._thread.start()

    def put(self, texts: Sequence[Text]) -> None:
        """Have texts written; their requests bear different keys.

        Raises:
            RequestError: one cannot be written; Busy: too many wait.
        """
        self._engine.check(text.request for text in texts)
        if self._came.qsize() + len(texts) > self._most_waiting:
            raise Busy("too many texts are waiting to be written here. Try again later.")
        for text in texts:
            self._came.put(text)

    def close(self) -> None:
        """End all texts and the thread."""
        self._is_closed = True
        self._came.put(None)
        self._thread.join()

    def __iter__(self) -> Iterator[Request]:
        return self

    def __next__(self) -> Request:
        """Return the next wanted text's request; waits for one only if nothing is being written."""
        while not self._is_closed:
            try:
                text = self._came.get(block=not self._begun)
            except queue.Empty:
                break
            if text is not None and text.is_wanted:
                self._begun[text.request.key] = text
                return text.request
        raise StopIteration

    def _work(self) -> None:
        while not self._is_closed:
            try:
                for request, generation in self._engine.stream(
                    self, GREEDY, self._stop, logprobs=True, on_token=self._told
                ):
                    self._tell(self._begun.pop(request.key), generation)
            except Exception as error:
                if not self._begun:  # the model cannot write at all: the next who asks is told
                    next(self, None)
                failed = error if isinstance(error, BrimfulError) else RequestError(repr(error))
                for text in self._begun.values():
                    self._tell(text, failed)
                self._begun.clear()

    def _told(self, key: int, token: int, logprob: float | None) -> bool:
        text = self._begun[key]
        self._tell(text, (token, logprob or 0.0))
        return not text.is_wanted or self._is_closed

    def _tell(self, text: Text, update: Update) -> None:
        if text.is_wanted and not self._is_closed:
            text.tell(update)
