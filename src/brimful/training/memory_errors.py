"""Out of memory on any device: recognising it, freeing what the failed work held, giving back the
device's cache, and going on with smaller micro-batches of the same sequences for the rest of the
run.
"""

import errno
import gc
import math
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from brimful.base.errors import BrimfulError, RunFolderError, StartAgain, TrainingStopped
from brimful.base.rundir import SCHEMA_VERSION, read_json, write_json_atomically
from brimful.base.types import Json, JsonDict
from brimful.planning.plan import Plan
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


FILE_NAME = "micro_batches.json"

DECIDES_MEMORY = (
    "micro_batches",
    "precision",
    "attention",
    "recompute",
    "compile",
    "optimizer",
    "loss_chunk",
)
"""The choices of a plan that decide which micro-batches fit; sizes found under other choices are
not used. The same choices decide how a step is rounded.
"""


def halved(micro_batches: tuple[int, ...]) -> tuple[int, ...]:
    """Split every micro-batch in two, the larger half first; the sequences keep their order:
    (8, 3) -> (4, 4, 2, 1).
    """
    return tuple(part for size in micro_batches for part in (size - size // 2, size // 2) if part)


@dataclass
class RememberedSizes:
    """The micro-batches of a run, smaller than the plan's once memory ran out; stored in its
    folder.

    Attributes:
        micro_batches: Sequences of each pass, as they are used now.
        events: The `out_of_memory` records that led to them, oldest first.
    """

    path: Path
    plan: Json
    micro_batches: tuple[int, ...]
    events: list[JsonDict] = field(default_factory=list)

    @classmethod
    def of(cls, run_folder: Path, plan: Plan) -> "RememberedSizes":
        """Return the sizes that an earlier session found under the same plan, or the plan's own.

        Raises:
            RunFolderError: the file is there and cannot be read.
        """
        key = {
            "device": plan.device.get("name"),
            **{name: getattr(plan, name) for name in DECIDES_MEMORY},
            **({} if plan.devices == 1 else {"devices": [plan.devices, plan.spread]}),
            "micro_batches": list(plan.micro_batches),
        }
        remembered = cls(run_folder / FILE_NAME, key, plan.micro_batches)
        if remembered.path.exists():
            remembered._take(read_json(remembered.path))
        return remembered

    @property
    def evaluation_share(self) -> float:
        """The share of the rows that evaluations were planned with, which fits into memory."""
        noted = [each for each in self.events if each.get("phase") == "evaluation"]
        return float(math.prod(each["to"][0] / each["from"][0] for each in noted))

    def note(self, event: JsonDict, *, writes: bool = True) -> None:
        """Use the sizes in the event's `to` from now on; durable when this returns, unless another
        process writes them.
        """
        if event.get("phase") != "evaluation":
            self.micro_batches = tuple(event["to"])
        self.events.append(event)
        if not writes:
            return
        values = {
            "schema_version": SCHEMA_VERSION,
            "plan": self.plan,
            "micro_batches": list(self.micro_batches),
            "events": self.events,
        }
        write_json_atomically(self.path, values)

    def _take(self, values: Any) -> None:
        try:
            is_of_this_plan, sizes, events = (
                values["plan"] == self.plan,
                tuple(values["micro_batches"]),
                list(values["events"]),
            )
            is_whole = all(size > 0 for size in sizes) and sum(sizes) == sum(self.micro_batches)
        except (KeyError, TypeError) as error:
            raise self._unreadable() from error
        if is_of_this_plan and not is_whole:
            raise self._unreadable()
        if is_of_this_plan:
            self.micro_batches, self.events = sizes, events

    def _unreadable(self) -> RunFolderError:
        return RunFolderError(
            f"{self.path} does not hold the micro-batches of this run. Remove it to go on with"
            " those of the plan."
        )


def random_states(device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Return the states of the generators that a step draws from: the host's and the device's.
    Does not wait for the device.
    """
    if device.type == "cuda":
        return torch.get_rng_state(), torch.cuda.get_rng_state(device)
    if device.type == "mps":
        return torch.get_rng_state(), torch.mps.get_rng_state()
    return torch.get_rng_state(), None


def rewind(states: tuple[Tensor, Tensor | None], device: torch.device) -> None:
    """Set the generators back to `random_states`."""
    torch.set_rng_state(states[0])
    if states[1] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
    elif states[1] is not None:
        torch.mps.set_rng_state(states[1])


@contextmanager
def all_or_nothing(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Around an update: if memory runs out before it wrote anything, drop the new states, so that
    the update can be repeated.

    Every variant of torch's AdamW increments its `step` states before it writes anything else of a
    parameter group, so if those tensors were not written to, the weights are untouched. Fused AdamW
    allocates in the first update only.

    Raises:
        TrainingStopped: memory ran out after the update began to write; half an update can neither
            be undone nor repeated.
    """
    known, count = set(optimizer.state), _step_writes(optimizer)
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if _step_writes(optimizer) != count:
            raise TrainingStopped(
                "memory ran out in the middle of an optimizer update, and half an update can be"
                " neither undone nor repeated. Checkpoints written before are kept: free memory"
                " that other programs hold, then run the same command to continue from the newest"
                " one."
            ) from error
        for parameter in optimizer.state.keys() - known:
            del optimizer.state[parameter]
        raise


def _step_writes(optimizer: torch.optim.Optimizer) -> int:
    steps = [state["step"] for state in optimizer.state.values() if "step" in state]
    return sum(step._version if isinstance(step, Tensor) else int(step) for step in steps)
