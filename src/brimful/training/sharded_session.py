"""What a session does otherwise if every rank holds a part of the model."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from brimful.base.errors import CheckpointError
from brimful.base.types import Json, JsonDict
from brimful.training.checkpoint import (
    IN_PARTS,
    CheckpointStore,
    Snapshot,
    num_bytes_of,
    write_tensors,
)
from brimful.training.method import Method
from brimful.training.pace import Spans
from brimful.training.sharding import gathering, own_rows, scored, shard
from brimful.training.tensorfile import Tensors
from brimful.training.world import World


class InParts:
    """A model that lies in parts on several ranks, as its session sees it.

    Args:
        model: Whole, with the same weights on every rank; it is spread over them in place.
        world: The ranks.
        device: Device of this rank.
        talking: Takes the time of what ranks exchange.
        copies: Number of copies of the model, each in parts among as many ranks in a row.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        world: World,
        device: torch.device,
        talking: Spans,
        copies: int,
    ) -> None:
        self._model, self._world = model, world
        self._parts = world.size // copies
        shard(model, world, device, talking, copies)

    def method(self, whole: Method) -> Method:
        """Return the method with a loss that may use any part of the model."""
        return replace(whole, loss_sum=gathering(whole.loss_sum))

    def compute(self, gradients: Callable[[], Tensor]) -> Tensor:
        """Compute gradients, which FSDP2 adds up; return the loss of all ranks."""
        loss = gradients()
        self._world.add_up(loss)
        return loss

    def score(self, score: Callable[[], Json]) -> Json:
        """Let every rank score the same sequences, because each holds a part of the model; return
        what rank 0 found.

        Raises:
            BrimfulError: of this rank. If it is of this rank alone, the others wait in a pass, and
                notice when this one ends.
        """
        record: JsonDict = scored(self._model, lambda: dict(score()))
        found: Json = self._world.tell(record)
        return found

    def save(self, store: CheckpointStore, snapshot: Snapshot, protect_step: int | None) -> int:
        """Commit a checkpoint of which every rank of the first copy writes its part; return its
        size in bytes.

        Args:
            store: Checkpoints of the run.
            snapshot: State of this rank. Random generators, state and identity are those of rank 0.
            protect_step: Step whose checkpoint stays, as of `CheckpointStore.save`.

        Raises:
            CheckpointError: as `CheckpointStore.save`, on every rank.
        """
        world = self._world
        own = {}
        if world.rank < self._parts:
            own = {name: _own_part(snapshot.tensors[name], world) for name in IN_PARTS}
        part = replace(snapshot, tensors=own)
        (most,) = world.largest([num_bytes_of(part)])
        aside = Path(world.first(lambda: str(store.begin(snapshot.step, self._parts * most))))

        def write() -> dict[str, dict[str, str | int]]:
            with store.abandoned_if_it_fails(aside, removes=False):
                return write_tensors(aside, own, world.rank)

        try:
            entries = world.gather(world.check(write))
        except CheckpointError:  # on all ranks, so that none writes any more
            if world.is_first:
                shutil.rmtree(aside, ignore_errors=True)
            raise

        def commit() -> int:
            files = {name: entry for each in entries for name, entry in each.items()}
            with store.abandoned_if_it_fails(aside):
                files |= write_tensors(aside, {"random": snapshot.tensors["random"]})
            parts = self._parts
            return store.commit(aside, snapshot, files, protect_step=protect_step, parts=parts)

        num_bytes: int = world.first(commit)
        return num_bytes


def _own_part(tensors: Tensors, world: World) -> Tensors:
    """Return this rank's rows of each tensor. What is the same on every rank is in rank 0's."""
    return {
        name: own_rows(tensor)[0]
        for name, tensor in tensors.items()
        if world.is_first or hasattr(tensor, "to_local")
    }
