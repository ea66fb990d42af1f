"""Work without a backward pass, divided among ranks that hold the whole model: every rank does some
of the pieces, and all get the results of all. A piece is computed as in one process, so its result
is the same, bit for bit.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from brimful.base.arrays import Floats
from brimful.base.errors import BrimfulError
from brimful.training.world import World


def is_own(world: World, number: int) -> bool:
    """Return whether this rank does the piece of a number, counted from 0."""
    return number % world.size == world.rank


def merged(world: World, own: Mapping[int, Any]) -> list[Any]:
    """Return what all ranks made, by the pieces' numbers.

    Args:
        own: What this rank made, by number; JSON if there are other ranks.
    """
    every = {number: made for part in world.gather(list(own.items())) for number, made in part}
    return [every[number] for number in sorted(every)]


def merged_numbers(world: World, own: Mapping[int, Tensor]) -> Floats:
    """Return the numbers of all pieces in a row, in the order of the pieces.

    Args:
        own: Tensors of one dimension, of this rank's pieces by number.
    """
    if world.is_alone:
        return np.asarray(torch.cat(list(own.values())).cpu().double().numpy())
    lists = merged(world, {number: each.cpu().double().tolist() for number, each in own.items()})
    return np.concatenate([np.asarray(each, dtype=np.float64) for each in lists])


EXCHANGE_EVERY_S = 0.2
_ENDING_S = 10.0
"""How long a rank that failed waits until the others know."""


class HandedOver:
    """Hands what each rank makes to all others while they work: in a thread, so that no device
    waits. Nobody else may use the world until it ends.

    with HandedOver(world) as exchange:
        for piece in own:
            exchange.put(made(piece))
            take(exchange.come())
        for made_elsewhere in exchange.rest():
            take(made_elsewhere)

    Attributes:
        is_broken_off: Whether a rank has failed, so that all end. `World.check` around the work
            raises its error on every rank.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._own: list[Any] = []
        self._come: list[Any] = []
        self._has_ended, self._has_failed = threading.Event(), False
        self.is_broken_off, self._num_exchanges = False, 0
        self._failure: BrimfulError | None = None
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)

    def __enter__(self) -> Self:
        if not self._world.is_alone:
            self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._has_failed = kind is not None
        self._has_ended.set()
        if not self._world.is_alone:
            self._thread.join(_ENDING_S if self._has_failed else None)

    def put(self, made: Any) -> None:
        """Hand over what this rank made; JSON."""
        if not self._world.is_alone:
            self._own.append(made)

    def come(self) -> list[Any]:
        """Return what has come from other ranks since the last call.

        Raises:
            RanksParted: another rank has ended, or cannot be reached.
        """
        if self._failure is not None:
            raise self._failure
        come, self._come = self._come, []
        return come

    def rest(self) -> Iterator[list[Any]]:
        """Yield what still comes, perhaps nothing, after each exchange until all ranks have come
        here. Nothing is yielded while a rank does not answer.
        """
        self._has_ended.set()
        seen = self._num_exchanges
        while not self._world.is_alone and self._thread.is_alive():
            if self._num_exchanges > seen:
                seen = self._num_exchanges
                yield self.come()
            time.sleep(EXCHANGE_EVERY_S / 10)
        yield self.come()

    def _run(self) -> None:
        try:
            while self._exchange():
                self._has_ended.wait(EXCHANGE_EVERY_S)
                time.sleep(EXCHANGE_EVERY_S / 10)  # where others have not ended
        except BrimfulError as error:
            self._failure = error

    def _exchange(self) -> bool:
        """HandedOver what was made; return whether anybody goes on."""
        has_ended = self._has_ended.is_set()
        made, self._own = self._own, []
        every = self._world.gather([made, has_ended, has_ended and self._has_failed])
        self._come += [
            each
            for rank, (made, _, _) in enumerate(every)
            if rank != self._world.rank
            for each in made
        ]
        self._num_exchanges += 1
        self.is_broken_off = any(has_failed for _, _, has_failed in every)
        return not (self.is_broken_off or all(ended for _, ended, _ in every))
