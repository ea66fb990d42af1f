"""Out of memory on any device: recognising it, freeing what the failed work held, and giving back
the device's cache.
"""

import errno
import gc
import re
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from brimful.base.errors import BrimfulError, StartAgain
from brimful.base.types import Json, JsonDict
from brimful.training.world import World

Result = TypeVar("Result")

_MESSAGES = (
    "out of memory",
    "allocate memory",
    "not enough memory",
    "bad_alloc",
    "_alloc_failed",
    "allocation_failed",
    "invalid buffer size",
)
"""Parts of messages, in lower case, of errors that are plain RuntimeErrors: MPS ("MPS backend out
of memory", and "Invalid buffer size" for one buffer above what Metal allows), torch's CPU allocator
("can't allocate memory", on Windows "not enough memory"), C++ (std::bad_alloc), the CUDA driver
("CUDA driver error: out of memory"), cuBLAS, cuDNN and their HIP twins (..._STATUS_ALLOC_FAILED).
"""


@dataclass(frozen=True)
class OutOfMemory:
    """Where memory ran out: the names of the functions that were running, the size of the
    allocation ("2.00 GiB") if the error has it, and the rank if there are several.
    """

    functions: frozenset[str]
    asked_for: str | None

    rank: int | None = None

    def __str__(self) -> str:
        told = [] if self.rank is None else [f"on rank {self.rank}"]
        if self.asked_for is not None:
            told.append(f"tried to allocate {self.asked_for}")
        return f" ({', '.join(told)})" if told else ""

    @property
    def place(self) -> str:
        """The part of a training step that failed."""
        if "guarded_update" in self.functions:
            return "optimizer update"
        return "backward pass" if "backward" in self.functions else "forward pass"

    def to_json(self) -> JsonDict:
        """Return what another rank needs to tell it."""
        return {"functions": sorted(self.functions), "asked_for": self.asked_for}

    @classmethod
    def from_json(cls, values: Json, rank: int) -> "OutOfMemory":
        """Return what `to_json` gave on a rank."""
        return cls(frozenset(values["functions"]), values["asked_for"], rank)


class FoundOutOfMemory(torch.OutOfMemoryError):
    """Memory ran out on one of several ranks; raised on all of them."""

    def __init__(self, failure: OutOfMemory) -> None:
        super().__init__(f"out of memory{failure}")
        self.failure = failure


class CannotHalveAlone(StartAgain):
    """Memory ran out in an evaluation on a rank that holds a part of the model: the others wait in
    the pass that failed, so that this rank cannot go on with a smaller one.

    Attributes:
        failure: Where it ran out.
        larger, smaller: Sizes of the pass that failed and of the one that should be tried.
    """

    def __init__(self, failure: OutOfMemory, larger: int, smaller: int) -> None:
        super().__init__(
            f"out of memory in an evaluation{failure}. Ranks that hold parts of a model cannot"
            " repeat a pass alone, so all end. The next start scores fewer sequences at once: run"
            " the same command to continue from the newest checkpoint."
        )
        self.failure, self.larger, self.smaller = failure, larger, smaller


def refuse_to_halve_in_parts(
    model: nn.Module, failure: OutOfMemory, larger: int, smaller: int
) -> None:
    """Raise CannotHalveAlone if the model lies in parts on several ranks."""
    if lies_in_parts(model):
        raise CannotHalveAlone(failure, larger, smaller)


def lies_in_parts(model: nn.Module) -> bool:
    """Return whether a model's weights lie in parts on several ranks."""
    return getattr(model, "lies_in_parts", False) is True


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one that it wraps, means that memory ran out on CUDA, ROCm, MPS
    or the host; by type first.

    torch.compile wraps errors raised while it compiles. Errors of brimful's own are never out of
    memory, whatever they were raised from.
    """
    return not isinstance(error, BrimfulError) and any(map(_says_out_of_memory, _chain(error)))


def attempt(act: Callable[[], Result]) -> Result | OutOfMemory:
    """Return `act()`, or where memory ran out in it. The frames of the failed call are cleared and
    its error is dropped, so that what they held can be freed.
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


def first_failure(world: World, result: object) -> OutOfMemory:
    """Return where memory ran out on the first rank on which it did; it ran out on one.

    Args:
        world: All ranks, each of which calls this.
        result: What `attempt` returned here.
    """
    told = result.to_json() if isinstance(result, OutOfMemory) else None
    every = enumerate(world.gather(told))
    rank, failure = next((rank, each) for rank, each in every if each is not None)
    return OutOfMemory.from_json(failure, rank)


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
        message in str(error).lower() for message in _MESSAGES
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those that it wraps: its cause, its unsuppressed context, and
    torch.compile's `inner_exception`.
    """
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        link = waiting.pop()
        if any(link is other for other in seen):
            continue
        seen.append(link)
        yield link
        inner = [link.__cause__, getattr(link, "inner_exception", None)]
        if not link.__suppress_context__:
            inner.append(link.__context__)
        waiting += [wrapped for wrapped in inner if isinstance(wrapped, BaseException)]


def _describe(error: BaseException) -> OutOfMemory:
    if isinstance(error, FoundOutOfMemory):
        return error.failure
    functions = frozenset(
        frame.f_code.co_name
        for link in _chain(error)
        for frame, _ in traceback.walk_tb(link.__traceback__)
    )
    messages = "\n".join(str(link) for link in _chain(error))
    size = re.search(r"ried to allocate ([\d.]+ \w+)", messages)
    return OutOfMemory(functions, size and size[1])
