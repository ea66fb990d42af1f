"""Processes that answer the questions of *Will it fit?*: one for each session that waits, so that
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
from brimful.studio.fit import Fit, assess
from brimful.studio.fit_request import FitRequest

LIBRARIES = ["brimful.studio.planners", "brimful.rehearsal.tracer"]
"""Loaded before the processes are forked; the tracer brings torch and transformers, which takes
seconds.
"""
Assess = Callable[..., Fit]


class Superseded(Exception):
    """The session asked something else, or left, before the answer was ready."""


class UnexpectedError(RuntimeError):
    """The process failed in a way that nobody expected; its terminal output has the traceback."""


@dataclass
class _Job:
    """What a session waits for."""

    planner: "_Planner | None" = None
    is_superseded: bool = False


@dataclass(frozen=True)
class _Planner:
    """A process that answers one question at a time."""

    process: BaseProcess
    pipe: "Connection[Any, Any]"

    def answer(self, request: FitRequest, settings: dict[str, Any]) -> Fit:
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
    """Answers questions of several sessions at the same time.

    Args:
        most: Questions that are worked on at once; further ones wait for the first that ends.
        assess: What makes an answer, a function of a module.
    """

    def __init__(self, most: int | None = None, assess: Assess = assess) -> None:
        self._most, self._assess = most or max(2, os.cpu_count() or 1), assess
        self._jobs: dict[str, _Job] = {}
        self._idle: list[_Planner] = []
        self._working = 0
        self._changed = threading.Condition()

    def warm_up(self) -> None:
        """Start loading the libraries, so that the first question need not wait for all of it."""
        planner = self._start()
        with self._changed:
            self._idle.append(planner)

    def answer(self, session: str, request: FitRequest, **settings: Any) -> Fit:
        """Return the answer to a session's question; what the session asked before is given up.

        Args:
            session: Who asks.
            request: The question.
            settings: Of `assess`.

        Raises:
            BrimfulError: it cannot be answered; the message is for the page.
            Superseded: it was given up.
            UnexpectedError: the process failed.
        """
        self.give_up(session)
        job = self._jobs[session] = _Job()
        planner = self._planner_for(job)
        try:
            return planner.answer(request, settings)
        except (EOFError, OSError) as error:
            if job.is_superseded:
                raise Superseded from error
            raise RequestError(
                "the process that planned this ended before it was done; the machine may be out of"
                " memory. Ask again, or ask for fewer devices."
            ) from error
        finally:
            self._release(session, job, planner)

    def give_up(self, session: str) -> None:
        """End what a session waits for, if anything."""
        with self._changed:
            job = self._jobs.pop(session, None)
            if job is None:
                return
            job.is_superseded = True
            if job.planner is not None:
                job.planner.end()
            self._changed.notify_all()

    def close(self) -> None:
        """End all processes."""
        for session in list(self._jobs):
            self.give_up(session)
        with self._changed:
            for planner in self._idle:
                planner.end()
            self._idle.clear()

    def _planner_for(self, job: _Job) -> _Planner:
        """Wait for a free process and assign it to the job."""
        with self._changed:
            self._changed.wait_for(lambda: job.is_superseded or self._working < self._most)
            if job.is_superseded:
                raise Superseded
            self._working += 1
            planner = self._idle.pop() if self._idle else None
        try:
            planner = planner or self._start()
        except BaseException:
            with self._changed:
                self._working -= 1
            raise
        with self._changed:
            job.planner = planner
            if job.is_superseded:
                planner.end()
        return planner

    def _release(self, session: str, job: _Job, planner: _Planner) -> None:
        """Keep the process for the next question if it still can answer one."""
        with self._changed:
            job.planner = None
            if self._jobs.get(session) is job:
                del self._jobs[session]
            self._working -= 1
            if not job.is_superseded and planner.process.is_alive():
                self._idle.append(planner)
            else:
                planner.end()
                planner.process.join()
                planner.pipe.close()
            self._changed.notify_all()

    def _start(self) -> _Planner:
        context = _context()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=work, args=(theirs, self._assess), daemon=True, name="brimful-planner"
        )
        process.start()
        theirs.close()
        return _Planner(process, ours)


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


def _answered(
    assess: Assess, request: FitRequest, settings: dict[str, Any]
) -> tuple[str, Fit | str]:
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
