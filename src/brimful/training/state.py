"""Where a run is: one value, which is stored in checkpoints and restored from them, with the random
generators that each rank's dropout draws from.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from brimful.base.errors import CheckpointError
from brimful.base.types import Counts, Json, JsonDict, Texts
from brimful.model.published import has_adapters
from brimful.runs.deciding import MONITORED_UNTIL
from brimful.training.checkpoint import CheckpointStore, Loaded, Snapshot, load
from brimful.training.optim import StepGuard, load_named_states, named_states
from brimful.training.precision import Precision
from brimful.training.spikes import SpikeWatch
from brimful.training.tensorfile import Tensors
from brimful.training.world import World


@dataclass
class Progress:
    """Where training stands at a step boundary.

    Attributes:
        step: Optimizer updates done, skipped ones counted.
        samples_consumed: Sequences read in their fixed order; the data cursor.
        target_tokens: Target tokens trained on so far.
        evaluated_step: Last step that was evaluated.
        best_loss, best_step: Best full-validation score so far, None before the first: the loss, or
            another objective of which lower is better.
        best_tie: The loss at that step; it decides between equal objectives.
        evaluations_since_best: Evaluations in a row that were no better.
        rollbacks: Rollbacks after non-finite steps.
        guard: Device-side counters and the loss scale.
        spikes: Losses and norms of the last steps, on the device.
    """

    guard: StepGuard
    spikes: SpikeWatch
    step: int = 0
    samples_consumed: int = 0
    target_tokens: int = 0
    evaluated_step: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    best_tie: float | None = None
    evaluations_since_best: int = 0
    rollbacks: int = 0

    @classmethod
    def fresh(cls, precision: Precision, device: torch.device) -> "Progress":
        return cls(guard=StepGuard.fresh(precision, device), spikes=SpikeWatch.fresh(device))

    @property
    def is_in_doubt(self) -> bool:
        """Whether a rollback may have to return to before the last steps; waits for the device."""
        return bool((self.guard.bad_in_a_row + self.spikes.undo).item())

    def advance(self, *, sequences: int, target_tokens: int) -> None:
        self.step += 1
        self.samples_consumed += sequences
        self.target_tokens += target_tokens

    def skip_to(self, samples_consumed: int, *, rollbacks: int) -> None:
        """Continue after the sequences that led to a rollback."""
        self.samples_consumed, self.rollbacks = samples_consumed, rollbacks
        self.guard.bad_in_a_row = torch.zeros_like(self.guard.bad_in_a_row)
        self.spikes.undo = torch.zeros_like(self.spikes.undo)

    def note_score(self, score: float, loss: float) -> bool:
        """Record a validation score and its loss at the current step; return whether the score is
        the lowest so far. A non-finite score never is.
        """
        self.evaluated_step = self.step
        if math.isfinite(score) and self._is_better(score, loss):
            self.best_loss, self.best_tie, self.best_step = score, loss, self.step
            self.evaluations_since_best = 0
            return True
        self.evaluations_since_best += 1
        return False

    def _is_better(self, score: float, loss: float) -> bool:
        if self.best_loss is None:
            return True
        # Checkpoints of earlier versions have no tie: their score was the loss.
        best_tie = self.best_loss if self.best_tie is None else self.best_tie
        return (score, loss) < (self.best_loss, best_tie)

    def to_json(self) -> JsonDict:
        values = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        return {**values, "guard": self.guard.to_list(), "spikes": self.spikes.to_list()}

    @classmethod
    def from_json(cls, values: Json, device: torch.device) -> "Progress":
        # Checkpoints of earlier versions have no spikes.
        spikes = SpikeWatch.fresh(device)
        if "spikes" in values:
            spikes = SpikeWatch.from_list(values["spikes"], device)
        return cls(
            guard=StepGuard.from_list(values["guard"], device),
            spikes=spikes,
            **{name: values[name] for name in _PLAIN_FIELDS if name in values},
        )


_PLAIN_FIELDS = (
    "step",
    "samples_consumed",
    "target_tokens",
    "evaluated_step",
    "best_loss",
    "best_step",
    "best_tie",
    "evaluations_since_best",
    "rollbacks",
)


def snapshot_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    *,
    identity: Texts,
    journal_bytes: int,
    run_files: Texts | None = None,
    records: Counts | None = None,
    monitored_until: int = 0,
    other_ranks: Tensors | None = None,
) -> Snapshot:
    """Return everything that continues the run bit for bit: weights, optimizer states, random
    generators, progress, journal length.

    Args:
        run_files: Texts of the files that decide the run's answers, by name.
        records: How many records each journal of the run holds.
        monitored_until: Time of the monitor's newest record, in whole Unix seconds.
        other_ranks: Random generators of the other ranks, by names that differ from this one's.
    """
    tensors = {
        "model": _model_tensors(model),
        "optimizer": named_states(model, optimizer),
        "random": {**generator_states(), **(other_ranks or {})},
    }
    return Snapshot(
        progress.step,
        tensors,
        {
            "progress": progress.to_json(),
            "journal_bytes": journal_bytes,
            "run_files": dict(run_files or {}),
            "records": dict(records or {}),
            MONITORED_UNTIL: monitored_until,
        },
        identity,
    )


def restore(
    snapshot: Snapshot,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    *,
    random: Tensors | None = None,
) -> Progress:
    """Restore model, optimizer and generators from the snapshot; return its progress.

    Args:
        random: States of the generators, in place of those of the snapshot.

    Raises:
        CheckpointError: the snapshot's tensors are not those of this model.
    """
    load_weights(snapshot, model)
    load_named_states(model, optimizer, dict(snapshot.tensors["optimizer"]))
    _set_random_states(snapshot.tensors["random"] if random is None else random)
    return Progress.from_json(snapshot.state["progress"], device)


def put_rows(tensor: Tensor, whole: Tensor) -> None:
    """Copy into a tensor, or into this rank's part of it, from all its rows."""
    if not hasattr(tensor, "to_local"):
        tensor.copy_(whole)
        return
    from brimful.training.sharding import own_rows  # noqa: PLC0415 - of several ranks only

    local, first = own_rows(tensor)
    local.copy_(whole[first : first + len(local)])


def load_weights(snapshot: Snapshot, model: nn.Module) -> None:
    """Copy a snapshot's weights into `model`.

    Raises:
        CheckpointError: names or shapes differ.
    """
    own, stored = _model_tensors(model), snapshot.tensors["model"]
    unmatched = sorted(own.keys() ^ stored.keys()) or sorted(
        name for name in own if own[name].shape != stored[name].shape
    )
    if unmatched:
        raise CheckpointError(
            f"the checkpoint of step {snapshot.step} is of another model:"
            f" {', '.join(unmatched[:5])} do"
            " not match"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            put_rows(tensor, stored[name])


def _model_tensors(model: nn.Module) -> Tensors:
    """Return the parameters (tied ones once) and persistent buffers; of a model with adapters only
    the adapters, because its base is frozen.
    """
    parameters = dict(model.named_parameters())
    if has_adapters(model):
        return {name: each.detach() for name, each in parameters.items() if each.requires_grad}
    persistent = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    return {name: parameter.detach() for name, parameter in parameters.items()} | buffers


def own_bits(model: nn.Module) -> int:
    """Return a sum of the bits of the weights that are trained: any change of one bit changes
    it.
    """
    trained = [each.detach() for each in model.parameters() if each.requires_grad]
    sums = [each.contiguous().view(torch.uint8).sum(dtype=torch.int64) for each in trained]
    return int(torch.stack(sums).sum().item())


def generator_states() -> Tensors:
    """Return the states of the random generators of the host and of its devices, by name."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {
            f"cuda:{index}": state for index, state in enumerate(torch.cuda.get_rng_state_all())
        }
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def _set_random_states(states: Tensors) -> None:
    if "cpu" in states:
        torch.set_rng_state(states["cpu"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda:{index}" in states:
                torch.cuda.set_rng_state(states[f"cuda:{index}"], index)
    if torch.backends.mps.is_available() and "mps" in states:
        torch.mps.set_rng_state(states["mps"])


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
