"""What each rank of a run has of its own: the random generators that its dropout draws from."""

import numpy as np
import torch

from brimful.base.errors import CheckpointError
from brimful.training.checkpoint import CheckpointStore, Loaded, load
from brimful.training.state import generator_states, own_bits
from brimful.training.tensorfile import Tensors
from brimful.training.world import World


def seed_rank(world: World, seed: int, step: int = 0) -> None:
    """Seed the generators of this rank: rank 0's as on one device, every other one's otherwise."""
    if world.is_first:
        torch.manual_seed(seed)
        return
    drawn = np.random.SeedSequence((seed, world.rank, step)).generate_state(1, dtype=np.uint64)
    torch.manual_seed(int(drawn[0] >> np.uint64(1)))


def gathered_random_states(world: World) -> Tensors:
    """Return the generators' states of all ranks but the first, by `rank1/cpu` and so on."""
    if world.is_alone:
        return {}
    own = {name: state.numpy().tobytes().hex() for name, state in generator_states().items()}
    return {
        f"rank{rank}/{name}": torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
        for rank, states in enumerate(world.gather(own))
        for name, text in states.items()
        if rank
    }


def own_random_states(world: World, stored: Tensors) -> Tensors:
    """Return this rank's states among those of a checkpoint; none where it was written by fewer
    ranks.
    """
    prefix = "" if world.is_first else f"rank{world.rank}/"
    return {
        name.removeprefix(prefix): state
        for name, state in stored.items()
        if name.startswith(prefix) and "/" not in name.removeprefix(prefix)
    }


def newest_checkpoint(store: CheckpointStore, world: World) -> Loaded | None:
    """Return the newest checkpoint that verifies, the same on every rank. Rank 0 puts damaged ones
    aside; the others then read the one that it found.

    Raises:
        CheckpointError: there were checkpoints and none can be trusted; or a rank cannot read the
            one that rank 0 reads.
    """
    found: list[Loaded | None] = [None]

    def look() -> int | None:
        found[0] = store.load_newest()
        return None if found[0] is None else found[0].snapshot.step

    step = world.first(look)

    def read() -> Loaded | None:
        if world.is_first or step is None:
            return found[0]
        if not store.path_of(step).is_dir():
            raise CheckpointError(
                f"rank {world.rank} does not see {store.path_of(step)}, which rank 0 reads. All"
                " ranks need the same run folder: put it on a disk that every machine mounts"
                " (run.folder=PATH)."
            )
        return Loaded(load(store.path_of(step)), ())

    return world.check(read)


def refuse_different_weights(world: World, model: torch.nn.Module, step: int) -> None:
    """Check that every rank has the same weights, bit for bit, before they are saved.

    Raises:
        CheckpointError: one does not.
    """
    if world.is_alone:
        return
    sums = world.gather(own_bits(model))
    others = [rank for rank, each in enumerate(sums) if each != sums[0]]
    if others:
        raise CheckpointError(
            f"after step {step} rank {others[0]} holds other weights than rank 0: one of the two"
            " computes wrongly. This step is not saved; the checkpoints before are kept. Test the"
            " machine of that rank, and run the same command to continue."
        )
