"""Recovery from running out of memory: smaller micro-batches for the same sequences, kept for the
rest of the run.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from brimful.base.errors import RunFolderError, TrainingStopped
from brimful.base.rundir import SCHEMA_VERSION, read_json, write_json_atomically
from brimful.base.types import Json, JsonDict
from brimful.planning.plan import Plan
from brimful.training.memory_errors import is_out_of_memory

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
