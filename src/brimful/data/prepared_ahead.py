"""Documents become token ids in a process of its own, while this one imports libraries and plans,
where there are cores.

The process is forked before anything with threads is loaded, and fills the cache folder, where
`prepare` then finds all or a part of it. So nothing depends on how far it came: what it could not
do, because it was killed or the data are bad, is done by `prepare`, which says what is wrong.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.base.env import cache_folder, launched_rank
from brimful.base.garbage import collector_off
from brimful.base.libc import end_with
from brimful.data.cache_places import tokens_are_kept
from brimful.data.sources import is_local, open_source
from brimful.hardware.host import control_group_limits, usable_cores
from brimful.recipe import Recipe

if TYPE_CHECKING:  # brings numpy, whose threads must not be there before the fork
    from brimful.base.types import Progress


MOST_BYTES = 1 << 28
"""Of files: more takes minutes, beside which a start is short, and all is read to look for it in
the cache.
"""
MOST_FILES = 1000
"""Of a folder: each is opened to see how it is written."""
THREAD_ENDS_WITHIN_S = 0.05
"""That a terminal's line was shown by, when the line is gone."""


class PreparingProcess:
    """A process that prepares something, and reports its progress here.

    Args:
        work: What it does; is given what to call with its progress.
    """

    def __init__(self, work: "Callable[[Progress], object]") -> None:
        self._reports, reports = os.pipe()
        parent = os.getpid()
        self._process: int | None = os.fork()
        if self._process == 0:
            try:
                end_with(parent)
                os.set_blocking(reports, False)
                with collector_off():
                    work(_Reporter(reports))
            finally:
                os._exit(0)  # nothing of the other process is flushed or ended here
        os.close(reports)

    def wait(self, progress: "Progress | None" = None) -> None:
        """Wait for its end, and pass on what it reports."""
        if self._process is None:
            return
        with open(self._reports, "rb", closefd=False) as reports:
            for report in reports:
                if progress is not None:
                    progress(*json.loads(report))
        self._reap()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let it stand still for a while."""
        if self._process is not None:
            os.kill(self._process, signal.SIGSTOP)
            _, status = os.waitpid(self._process, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self._forget()  # it had ended before
        try:
            yield
        finally:
            if self._process is not None:
                os.kill(self._process, signal.SIGCONT)

    def end(self) -> None:
        """End it, if it was not waited for."""
        if self._process is not None:
            os.kill(self._process, signal.SIGKILL)
            self._reap()

    def _reap(self) -> None:
        if self._process is not None:
            os.waitpid(self._process, 0)
            self._forget()

    def _forget(self) -> None:
        os.close(self._reports)
        self._process = None


class _Reporter:
    """Sends progress to the other process; what has no room in the pipe is left out."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def __call__(self, what: str, done: int, total: int | None) -> None:
        with suppress(BlockingIOError):
            os.write(self._pipe, json.dumps([what, done, total]).encode() + b"\n")


_running: list[PreparingProcess] = []


@contextmanager
def preparing_ahead(recipe: Recipe) -> Iterator[None]:
    """Let the token ids of a recipe's documents be made beside the block, if that gains anything:
    there is a core for it, this process has one thread, and they are not in the cache.

    Raises:
        DataError: the data cannot be read.
    """
    if not _gains(recipe):
        yield
        return
    process = PreparingProcess(lambda progress: _prepare(recipe, progress))
    _running.append(process)
    try:
        yield
    finally:
        _running.remove(process)
        process.end()


def wait_for_prepared(progress: "Progress | None" = None) -> None:
    """Wait for what is prepared beside this process, if anything is."""
    for process in _running:
        process.wait(progress)


@contextmanager
def preparing_paused() -> Iterator[None]:
    """Let what is prepared beside this process stand still, so that something can be timed."""
    if not _running:
        yield
        return
    with _running[-1].paused():
        yield


def _prepare(recipe: Recipe, progress: "Progress") -> None:
    # Brings numpy, whose threads must not be there before the fork.
    from brimful.data.prepare import prepare_tokens  # noqa: PLC0415

    prepare_tokens(recipe, cache_folder(), progress)


def _gains(recipe: Recipe) -> bool:
    if not _can_fork() or launched_rank() is not None or recipe.makes_several_runs:
        return False
    if recipe.tokenizer is None or recipe.data.cache_gib is not None:
        return False
    if not all(is_local(path) and _has_few_files(path) for path in recipe.data.paths):
        return False  # asking the hub starts threads
    parts = open_source(recipe.data).parts
    if not all(part.is_builtin or part.files for part in parts):
        return False  # and so does the library that saved them
    num_bytes = sum(path.stat().st_size for part in parts for path in part.files)
    return num_bytes <= MOST_BYTES and not tokens_are_kept(recipe, cache_folder())


def _has_few_files(path: str) -> bool:
    place = Path(path).expanduser()
    inside = place.rglob("*") if place.is_dir() else iter(())
    return next(islice(inside, MOST_FILES, None), None) is None


def _can_fork() -> bool:
    """Return whether there is a core for another process, and this one can be forked safely."""
    if sys.platform != "linux" or "torch" in sys.modules:
        return False
    if usable_cores(control_group_limits()) == 1:
        return False
    until_s = time.monotonic() + THREAD_ENDS_WITHIN_S
    while len(os.listdir("/proc/self/task")) > 1:
        if time.monotonic() > until_s:
            return False
        time.sleep(0.001)
    return True
