"""Adds the gradients of all ranks up while the last backward pass of a step still computes others.

Parameters lie in buckets, in the order in which gradients usually become known: the reverse of
their own. A bucket is sent when its gradients and those of all buckets before it are complete, so
every rank sends the same buckets in the same order. Sums are made in fp32.
"""

import hashlib
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from brimful.training.memory_errors import (
    FoundOutOfMemory,
    OutOfMemory,
    attempt,
    first_failure,
)
from brimful.training.pace import Spans
from brimful.training.world import World

BUCKET_BYTES = 25 * 1024**2
"""Size of a bucket, as in torch's DistributedDataParallel: large enough that latency hardly counts,
small enough that sending begins early.
"""


class _Bucket:
    """Parameters whose gradients are sent together.

    Attributes:
        missing: Gradients that are not complete in this pass.
        is_used: Which parameters had a gradient on this rank when they were sent.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing = len(parameters)
        self.is_used = [True] * len(parameters)
        self._wait: Callable[[], object] = lambda: None

    def send(self, world: World) -> None:
        """Begin to add up. The gradients become parts of one tensor, which holds the sums later."""
        self.is_used = [each.grad is not None for each in self.parameters]
        pieces = [
            torch.zeros_like(each).flatten() if each.grad is None else each.grad.flatten()
            for each in self.parameters
        ]
        flat = torch.cat(pieces)
        del pieces
        begin = 0
        for each in self.parameters:
            each.grad = flat[begin : begin + each.numel()].view_as(each)
            begin += each.numel()
        self._wait = world.begin_to_add_up(flat)

    def finish(self) -> None:
        self._wait()

    def drop_unused(self) -> None:
        """Leave parameters that had no gradient without one: their weights stay as they are."""
        for each, is_used in zip(self.parameters, self.is_used, strict=True):
            if not is_used:
                each.grad = None


class GradientSum:
    """Computes the gradients of a step on every rank and adds them up.

    Args:
        world: The ranks.
        parameters: Those that are trained, in the same order on every rank.
        talking: Takes the time in which the last gradients are waited for.
    """

    def __init__(
        self, world: World, parameters: Sequence[nn.Parameter], talking: Spans | None = None
    ) -> None:
        self._world = world
        self._talking = talking or Spans(torch.device("cpu"))
        self._buckets = [_Bucket(each) for each in _in_buckets(parameters)]
        self._is_last_pass, self._sent = False, 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._note, bucket))

    def begin_last_pass(self) -> None:
        """Send buckets as soon as they are complete from now on: one backward pass is to come."""
        self._is_last_pass = True

    def compute(self, gradients: Callable[[], Tensor]) -> Tensor:
        """Return the loss of all ranks; their summed gradients are those of the parameters then.

        Args:
            gradients: Computes those of this rank, and returns its loss.

        Raises:
            FoundOutOfMemory: on every rank, if memory ran out on any.
        """
        self._begin()
        loss = attempt(gradients)
        self._is_last_pass = False
        with self._talking.span():
            # What was not sent yet, also after a failure: the other ranks wait for it.
            for bucket in self._buckets[self._sent :]:
                bucket.send(self._world)
            for bucket in self._buckets:
                bucket.finish()
        has_failed = isinstance(loss, OutOfMemory)
        used = bytes(each for bucket in self._buckets for each in bucket.is_used)
        pattern = int.from_bytes(hashlib.sha256(used).digest()[:7])
        any_failed, most, least = self._world.largest([int(has_failed), pattern, -pattern])
        if any_failed:
            raise FoundOutOfMemory(first_failure(self._world, loss))
        if most == -least:
            for bucket in self._buckets:
                bucket.drop_unused()
        assert isinstance(loss, Tensor)  # noqa: S101 - for the type checker
        self._world.add_up(loss)
        return loss

    def _begin(self) -> None:
        self._is_last_pass, self._sent = False, 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def _note(self, bucket: _Bucket, _: nn.Parameter) -> None:
        """Count a complete gradient, and send what can be sent."""
        if not self._is_last_pass:
            return
        bucket.missing -= 1
        if bucket.missing < 0:
            raise RuntimeError("a gradient changed after it was sent to the other ranks")
        while self._sent < len(self._buckets) and not self._buckets[self._sent].missing:
            self._sent += 1
            self._buckets[self._sent - 1].send(self._world)


def _in_buckets(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    buckets: list[list[nn.Parameter]] = []
    room = 0
    for parameter in reversed(parameters):
        room -= parameter.numel() * parameter.element_size()
        if room < 0:
            buckets.append([])
            room = BUCKET_BYTES - parameter.numel() * parameter.element_size()
        buckets[-1].append(parameter)
    return buckets
