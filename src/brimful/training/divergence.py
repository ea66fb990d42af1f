"""Runs that end before their last step: when training has diverged, what its user is told, and the
checkpoint that is kept.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from brimful.base.errors import RequestError, TrainingStopped
from brimful.data.batches import MicroBatch
from brimful.recipe import Recipe
from brimful.training.method import Network
from brimful.training.precision import Precision
from brimful.training.state import Progress

if TYPE_CHECKING:
    from brimful.training.loop import Parts


LOOK_EVERY = 25
"""Steps between two looks at the guard: a number of steps, not a time, so that a run is
reproducible.
"""
BAD_STEPS_BEFORE_ROLLBACK = 5
ROLLBACKS_BEFORE_STOP = 2


def problem_of_steps(progress: Progress, total_steps: int) -> str:
    """Return why training has diverged by its last steps, as a clause; empty where it has not, or
    no look is due. A look waits for the device.
    """
    is_last = progress.step >= total_steps
    if progress.step % LOOK_EVERY and not is_last:
        return ""
    if progress.spikes.undo.item():
        return f"a spike of the loss or the gradient norm before step {progress.step}"
    bad_steps = int(progress.guard.bad_in_a_row.item())
    if bad_steps >= BAD_STEPS_BEFORE_ROLLBACK:
        return (
            f"{bad_steps} steps in a row had a non-finite loss or gradient (step {progress.step})"
        )
    if is_last and progress.guard.skipped.item() >= progress.step:
        return f"not one of {progress.step} steps had a finite loss and gradient"
    return ""


def noting_states(network: Network, noted: list[Tensor]) -> Network:
    """Return the network, whose passes add the sum of their hidden states to a list: it is finite
    where all of them are.
    """

    def hidden_states(micro: MicroBatch) -> Tensor:
        states_BTD = network.hidden_states(micro)
        noted.append(states_BTD.detach().sum(dtype=torch.float32))
        return states_BTD

    return replace(network, hidden_states=hidden_states)


def refuse_not_finite(loss: Tensor, precision: Precision) -> None:
    """Look at the loss of the first step, which waits for the device.

    Raises:
        TrainingStopped: it is not finite. No update was made yet, so no learning rate is to blame.
    """
    if bool(torch.isfinite(loss)):
        return
    cause = "its weights are damaged, or its config is not theirs: get a whole copy of it."
    if precision.name != "fp32":
        also = ", or plan.precision=bf16 where the device computes in it" * precision.scales_loss
        cause = (
            f"its values leave the range of {precision.name}. Start over in a wider one: the same"
            f" command with plan.precision=fp32 --fresh{also}."
        )
    raise TrainingStopped(
        "the loss or a hidden state of the first step is not finite, and nothing was trained. The"
        f" model cannot be trained like this: {cause}"
    )


def gave_up(
    problem: str, rollbacks: int, recipe: Recipe, precision: Precision, *, has_checkpoint: bool
) -> TrainingStopped:
    """Return the error that ends a run which diverged: why, what is kept and how to go on.

    Args:
        problem: A clause.
        rollbacks: Tried before.
        has_checkpoint: Whether there is one from before the divergence.
    """
    if rollbacks:
        problem += f", also after {rollbacks} rollbacks that left out the sequences before"
    rate = recipe.optimizer.learning_rate
    lower = f"optimizer.learning_rate={rate / 10:g}"
    kept = "There is no checkpoint from before."
    then = f"To start over: the same command with {lower} --fresh."
    if has_checkpoint:
        kept = "The last good checkpoint is kept."
        then = (
            f"To go on from it: the same command with {lower} --accept-change"
            " optimizer.learning_rate."
        )
    if recipe.optimizer.spikes == "rollback":
        then += " Or leave spikes out: optimizer.spikes=skip --accept-change optimizer.spikes."
    causes = [f"learning rate {rate:g} too high for this model"]
    if precision.name != "fp32":
        causes.append(f"precision {precision.name} too narrow (try plan.precision=fp32)")
    return TrainingStopped(
        f"{problem}. {kept} Likely causes: {', '.join(causes)}, or damaged data. Losses are in"
        f" metrics.jsonl. {then}"
    )


def keep(parts: "Parts", progress: Progress) -> None:
    """Write a checkpoint before the run ends, unless its last steps were bad: a rollback has to
    return to before them.
    """
    if progress.step > 0 and not progress.is_in_doubt:
        parts.meter.flush()
        parts.save(progress)


@contextmanager
def kept_where_it_fails(parts: "Parts", progress: Progress, failed: str) -> Iterator[None]:
    """While entered, turn a RequestError into the end of a run whose progress is kept."""
    try:
        yield
    except RequestError as error:
        if not parts.is_sharded:
            keep(parts, progress)
        raise TrainingStopped(f"{failed}: {error} What was trained so far is kept.") from error
