"""Processes that answer what a recipe takes: one for each page that waits, so that
nobody waits for another's answer, and a question that nobody waits for any more ends at once.

Answers are made in processes because recording a training step changes settings of the whole
process, and because only a process can be ended at any time. All are forked from one that has
loaded the libraries, where the system allows it.
"""

import contextlib
import functools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from brimful.base.errors import BrimfulError, RequestError
from brimful.base.types import JsonDict
from brimful.faces.studio.asked import PageRequest
from brimful.faces.studio.fit import Fit, assess
from brimful.faces.studio.fit_request import FitRequest

LIBRARIES = ["brimful.faces.studio.planners", "brimful.rehearsal.tracer"]
"""Loaded before the processes are forked; the tracer brings torch and transformers, which takes
seconds.
"""
Assess = Callable[..., Fit]
WAITS_S = 0.1
"""How often a page that waits for its turn is asked whether it still does."""


class Superseded(Exception):
    """The page left, or asked something else, before the answer was ready."""


class UnexpectedError(RuntimeError):
    """The process failed in a way that nobody expected; its terminal output has the traceback."""


@dataclass(frozen=True)
class _Planner:
    """A process that answers one question at a time."""

    process: BaseProcess
    pipe: "Connection[Any, Any]"

    def answer(self, request: FitRequest, settings: JsonDict) -> Fit:
        """Return the answer.

        Raises:
            BrimfulError, UnexpectedError: as the process did.
            EOFError, OSError: the process has ended.
        """
        self.pipe.send((request, settings))
        what, value = self.pipe.recv()
        if what == "refused":
            raise RequestError(value)
        if what == "failed":
            raise UnexpectedError(value)
        answered: Fit = value
        return answered

    def end(self) -> None:
        """End the process at once. Files that it writes are whole or absent."""
        self.process.kill()


class Planners:
    """Answers questions of several pages at the same time.

    Args:
        most: Questions that are worked on at once; further ones wait for the first that ends.
        assess: What makes an answer, a function of a module.
    """

    def __init__(self, most: int | None = None, assess: Assess = assess) -> None:
        self._assess = assess
        self._room = threading.BoundedSemaphore(most or max(2, os.cpu_count() or 1))
        self._idle: list[_Planner] = []
        self._all: list[_Planner] = []

    def warm_up(self) -> None:
        """Start loading the libraries, so that the first question need not wait for all of it."""
        self._idle.append(self._start())

    def answer(self, asked: PageRequest, request: FitRequest, **settings: Any) -> Fit:
        """Return the answer to a question.

        Args:
            asked: Who asks; the work ends when it leaves.
            request: The question.
            settings: Settings of `assess`.

        Raises:
            BrimfulError: it cannot be answered; the message is for the page.
            Superseded: nobody waits for it any more.
            UnexpectedError: the process failed.
        """
        while not self._room.acquire(timeout=WAITS_S):
            if asked.left.is_set():
                raise Superseded
        try:
            return self._answered(asked, request, settings)
        finally:
            self._room.release()

    def _answered(self, asked: PageRequest, request: FitRequest, settings: JsonDict) -> Fit:
        try:
            planner = self._idle.pop()
        except IndexError:
            planner = self._start()
        try:
            with asked.ending(planner.end):
                return planner.answer(request, settings)
        except (EOFError, OSError) as error:
            if asked.left.is_set():
                raise Superseded from error
            raise RequestError(
                "the process that planned this ended before it was done; the machine may be out of"
                " memory. Ask again, or ask for fewer devices."
            ) from error
        finally:
            if asked.left.is_set() or not planner.process.is_alive():
                planner.end()
                planner.process.join()
                planner.pipe.close()
                self._all.remove(planner)
            else:
                self._idle.append(planner)

    def close(self) -> None:
        """End all processes."""
        for planner in [*self._all]:
            planner.end()

    def _start(self) -> _Planner:
        context = _context()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=work, args=(theirs, self._assess), daemon=True, name="brimful-planner"
        )
        process.start()
        theirs.close()
        self._all.append(planner := _Planner(process, ours))
        return planner


@functools.cache
def _context() -> Any:
    """Return how processes are started: forked from a small one that has loaded the libraries on
    Linux, started anew elsewhere, where forking a process with libraries loaded is not safe.
    """
    context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        context.set_forkserver_preload(LIBRARIES)
    return context


def work(pipe: "Connection[Any, Any]", assess: Assess) -> None:
    """Answer the questions that come through a pipe, until it is closed."""
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            request, settings = pipe.recv()
            pipe.send(_answered(assess, request, settings))


def _answered(assess: Assess, request: FitRequest, settings: JsonDict) -> tuple[str, Fit | str]:
    """Return the answer, or the words of an error: its object may not fit through a pipe."""
    try:
        return "answer", assess(request, **settings)
    except BrimfulError as error:
        return "refused", str(error)
    except Exception as error:
        import traceback  # noqa: PLC0415 - rarely

        traceback.print_exception(error)
        line = (str(error).splitlines() or [""])[0][:200]
        return "failed", f"{type(error).__name__}: {line}"
