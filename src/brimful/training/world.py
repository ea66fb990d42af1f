"""The processes ("ranks") that train one run together, and what they decide together.

A run on one device has a world of one rank, `ALONE`: nothing is exchanged and no process group
exists. Several ranks exchange small decisions as JSON or numbers over gloo, on the host, and
gradients over the backend of their devices. Every rank calls the methods of its world in the same
order; a method that asks all ranks returns the same answer to each.
"""

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from brimful.base import errors
from brimful.base.errors import BrimfulError, DeviceError, RanksParted
from brimful.base.text import reason_of
from brimful.base.types import JsonDict

Result = TypeVar("Result")
LONGEST_WAIT = timedelta(days=7)
"""Longest wait for a rank that is still alive. A dead one is noticed at once, because its
connections close, and one that hangs by the watchdog of those that wait for it.
"""
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
"""What adds gradients up, by the kind of device."""

_GLOO_SAYS = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
"""Parts of messages of its errors, which are plain RuntimeErrors."""


@dataclass(frozen=True)
class World:
    """The ranks of a run, as one of them sees them. This class itself is a world of one rank.

    Attributes:
        rank: This process, from 0.
        size: Number of ranks.
        local_rank: This process among those of its machine, from 0.
        local_size: Ranks on this machine.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the run folder and talks to the user."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    @property
    def machines(self) -> int:
        """How many machines there are, each with as many ranks in a row; else 1."""
        whole, left = divmod(self.size, self.local_size)
        return 1 if left else whole

    def slice_of(self, count: int, rank: int | None = None) -> tuple[int, int]:
        """Return (first, number) of this rank's part of `count` things in a row, or of another
        rank's. Earlier ranks take one more where it does not come out even.
        """
        rank = self.rank if rank is None else rank
        each, more = divmod(count, self.size)
        return rank * each + min(rank, more), each + (rank < more)

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank."""
        return flag

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """Return for each number the largest one of all ranks."""
        return list(numbers)

    def sums(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all ranks of each number, in float64."""
        return list(numbers)

    def tell(self, value: Any) -> Any:
        """Return rank 0's value on every rank. It must be JSON."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, in their order. They must be JSON."""
        return [value]

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all ranks, in place and on its device."""

    def begin_to_add_up(self, tensor: Tensor) -> Callable[[], object]:
        """Begin the same; the sum is there when the function that is returned has been called."""
        return lambda: None

    def first(self, act: Callable[[], Any]) -> Any:
        """Let rank 0 act while the others wait; return its result, which must be JSON, on every
        rank.

        Raises:
            BrimfulError: what rank 0 raised, on every rank.
        """
        return act()

    @contextmanager
    def telling_failures(self) -> Iterator[None]:
        """Around what rank 0 does while all others wait in `hear`: they raise what it raises."""
        yield

    def hear(self) -> Any:
        """Return what rank 0 tells.

        Raises:
            BrimfulError: what rank 0 raised meanwhile (`telling_failures`).
        """
        return None

    def check(self, act: Callable[[], Result]) -> Result:
        """Let every rank act; return this rank's own result.

        Raises:
            BrimfulError: on every rank the error of the first rank that raised one.
        """
        return act()


ALONE = World()


class Agreement:
    """What the ranks decide together at step boundaries: each question is asked once there.

    A rank alone is asked every time, since nobody has to agree.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._answers: dict[str, tuple[Hashable, int]] = {}

    def on(self, question: str, where: Hashable, own: Callable[[], int]) -> int:
        """Return the largest answer of all ranks at a step boundary.

        Args:
            where: The boundary: asked there again, the answer is the same.
            own: This rank's answer.
        """
        if self._world.is_alone:
            return own()
        known_where, answer = self._answers.get(question, (None, 0))
        if known_where != where:
            (answer,) = self._world.largest([int(own())])
            self._answers[question] = (where, answer)
        return answer

    def last(self, question: str, own: int) -> int:
        """Return the last answer that was agreed on; of a rank alone its own."""
        if self._world.is_alone:
            return own
        return self._answers.get(question, (None, own))[1]


@dataclass(frozen=True)
class Ranks(World):
    """Several ranks, each a process of its own.

    Attributes:
        control: The gloo group in which they decide.
        data: The group of their devices, for gradients.
    """

    control: Any = None
    data: Any = None

    def any(self, flag: bool) -> bool:
        return self.largest([int(flag)])[0] > 0

    def largest(self, numbers: Sequence[int]) -> list[int]:
        values = torch.tensor(numbers, dtype=torch.int64)
        _together(partial(dist.all_reduce, values, dist.ReduceOp.MAX, group=self.control))
        largest: list[int] = values.tolist()
        return largest

    def sums(self, numbers: Sequence[float]) -> list[float]:
        values = torch.tensor(numbers, dtype=torch.float64)
        _together(partial(dist.all_reduce, values, group=self.control))
        sums: list[float] = values.tolist()
        return sums

    def tell(self, value: Any) -> Any:
        text = json.dumps(value).encode() if self.is_first else b""
        (count,) = self.largest([len(text)])
        sent = torch.zeros(count, dtype=torch.uint8)
        if self.is_first:
            sent = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        _together(partial(dist.broadcast, sent, group_src=0, group=self.control))
        return json.loads(sent.numpy().tobytes())

    def gather(self, value: Any) -> list[Any]:
        # Spaces behind a JSON value change nothing.
        text = json.dumps(value).encode()
        (longest,) = self.largest([len(text)])
        text = text.ljust(longest)
        own = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        every = [torch.empty_like(own) for _ in range(self.size)]
        _together(partial(dist.all_gather, every, own, group=self.control))
        return [json.loads(each.numpy().tobytes()) for each in every]

    def add_up(self, tensor: Tensor) -> None:
        _together(partial(dist.all_reduce, tensor, group=self.data))

    def begin_to_add_up(self, tensor: Tensor) -> Callable[[], object]:
        work: Any = _together(partial(dist.all_reduce, tensor, group=self.data, async_op=True))
        return partial(_together, work.wait)

    def first(self, act: Callable[[], Any]) -> Any:
        if not self.is_first:
            return self.hear()["result"]
        with self.telling_failures():
            told = {"result": act()}
        return self.tell(told)["result"]

    @contextmanager
    def telling_failures(self) -> Iterator[None]:
        try:
            yield
        except BrimfulError as error:
            self.tell(_told_of(error))
            self._wait_until_told()
            raise

    def hear(self) -> Any:
        told = self.tell(None)
        if isinstance(told, dict) and "error" in told:
            self._wait_until_told()
            raise _as_on_another_rank(told)
        return told

    def check(self, act: Callable[[], Result]) -> Result:
        failure: BrimfulError | None = None
        try:
            result = act()
        except BrimfulError as error:
            failure = error
        if not self.any(failure is not None):
            return result
        told = {} if failure is None else _told_of(failure)
        failures = {rank: each for rank, each in enumerate(self.gather(told)) if each}
        self._wait_until_told()
        first = min(failures)
        if failure is not None and first == self.rank:
            raise failure
        raise _as_on_another_rank(failures[first]) from failure

    def _wait_until_told(self) -> None:
        """Let nobody end while another rank still receives why: what is on the way to it would be
        lost with the connection.
        """
        with suppress(RanksParted):
            self.any(True)


def _told_of(error: BrimfulError) -> JsonDict:
    return {"error": str(error), "class": type(error).__name__, "exit_code": error.exit_code}


def _as_on_another_rank(told: JsonDict) -> BrimfulError:
    """Return an error like the one that another rank raised: of its class, with its message."""
    kind = getattr(errors, told["class"], BrimfulError)
    error: BrimfulError
    try:
        error = kind(told["error"])
    except TypeError:  # a class that takes more than a message
        error = BrimfulError(told["error"])
    error.exit_code = told["exit_code"]
    return error


def _together(act: Callable[[], Result]) -> Result:
    """Run a collective operation.

    Raises:
        RanksParted: another rank has ended, or cannot be reached.
    """
    try:
        return act()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise _parted() from error


@contextmanager
def noticing_lost_ranks() -> Iterator[None]:
    """Around work in which a library exchanges values between ranks.

    Raises:
        RanksParted: another rank has ended, or cannot be reached.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or any(word in str(error) for word in _GLOO_SAYS):
            raise _parted() from error
        raise


def _parted() -> RanksParted:
    return RanksParted(
        "another process of this run has ended or cannot be reached. What was saved before is"
        " kept: run the same command to continue from the newest checkpoint."
    )


def join(
    rank: int,
    size: int,
    *,
    local: tuple[int, int],
    store: Any = None,
    kind: str = "cpu",
    timeout_s: float = 300.0,
) -> World:
    """Return the world of `size` ranks, of which this process is one, once all have come. `leave`
    ends it.

    Args:
        rank, size: Number of this process, and number of all.
        local: The same among those of its machine.
        store: Where the ranks meet; None: where the environment says (MASTER_ADDR, MASTER_PORT).
        kind: Kind of the devices: cpu or cuda.
        timeout_s: How long to wait for ranks that do not come.

    Raises:
        DeviceError: there is no backend for such devices.
        RanksParted: some rank did not come.
    """
    if size == 1:
        return World()
    backend = BACKENDS.get(kind)
    is_there = {"gloo": dist.is_gloo_available, "nccl": dist.is_nccl_available}
    if not dist.is_available() or backend is None or not is_there[backend]():
        raise DeviceError(
            f"this build of torch ({torch.__version__}) cannot train on several {kind} devices: it"
            f" has no backend {backend or 'for them'}. Train on one device (leave --devices out),"
            " or install a build of torch that has it."
        )
    try:
        dist.init_process_group(
            "gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
        )
        control = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        data = control if backend == "gloo" else dist.new_group(backend=backend)
    except (RuntimeError, ValueError) as error:
        reason = reason_of(error)[:200]
        raise RanksParted(
            f"rank {rank} of {size} did not meet the others within {timeout_s:.0f} s ({reason})."
            " Check that every rank was started, with the same number of ranks, and that machines"
            " reach each other; then run the same command again."
        ) from error
    return Ranks(rank, size, *local, control=control, data=data)


def leave(world: World) -> None:
    """End the process group of a world, if it has one."""
    if not world.is_alone and dist.is_initialized():
        dist.destroy_process_group()
