"""Out of memory on any device: recognised, left behind without a trace of the failed work, and its
cache given back.
"""

import errno
import gc
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch

from brimful.base.errors import BrimfulError

Result = TypeVar("Result")

_SAYINGS = (
    "out of memory",
    "allocate memory",
    "not enough memory",
    "bad_alloc",
    "_alloc_failed",
    "allocation_failed",
    "invalid buffer size",
)
"""What a RuntimeError says, in small letters, where its type says nothing: MPS ("MPS backend out of
memory", and "Invalid buffer size" for one buffer above what Metal allows), torch's CPU allocator
("can't allocate memory", on Windows "not enough memory"), C++ (std::bad_alloc), the CUDA driver
("CUDA driver error: out of memory"), cuBLAS, cuDNN and their HIP twins (..._STATUS_ALLOC_FAILED).
"""


@dataclass(frozen=True)
class OutOfMemory:
    """Where memory ran out: names of the functions that were running, and the size asked for ("2.00
    GiB") where the error says it.
    """

    functions: frozenset[str]
    asked_for: str | None

    def __str__(self) -> str:
        return f" (tried to allocate {self.asked_for})" if self.asked_for else ""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or one that it wraps, says that memory ran out on CUDA, ROCm, MPS or the
    host; by type first.

    torch.compile wraps what happens while it compiles. An error of brimful's own is an answer
    already, whatever it was raised from.
    """
    return not isinstance(error, BrimfulError) and any(map(_says_out_of_memory, _chain(error)))


def attempt(act: Callable[[], Result]) -> Result | OutOfMemory:
    """`act()`, or where memory ran out in it. What the failed call held can be freed then: its
    frames are emptied, its error is gone.
    """
    try:
        return act()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failure = _describe(error)
        for link in _chain(error):
            traceback.clear_frames(link.__traceback__)
    return failure


def give_back_memory(device: torch.device) -> None:
    """Collect garbage and hand the device's unused cached blocks back, so that other sizes fit."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def _says_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(
        saying in str(error).lower() for saying in _SAYINGS
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it wraps: its cause, its unsuppressed context, and torch.compile's
    `inner_exception`.
    """
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        link = waiting.pop()
        if any(link is other for other in seen):
            continue
        seen.append(link)
        yield link
        inner = (
            link.__cause__,
            None if link.__suppress_context__ else link.__context__,
            getattr(link, "inner_exception", None),
        )
        waiting += [wrapped for wrapped in inner if isinstance(wrapped, BaseException)]


def _describe(error: BaseException) -> OutOfMemory:
    functions = frozenset(
        frame.f_code.co_name
        for link in _chain(error)
        for frame, _ in traceback.walk_tb(link.__traceback__)
    )
    asked = next(
        (
            found[1]
            for link in _chain(error)
            if (found := re.search(r"ried to allocate ([\d.]+ \w+)", str(link)))
        ),
        None,
    )
    return OutOfMemory(functions, asked)
