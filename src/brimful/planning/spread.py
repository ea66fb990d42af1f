"""How a recipe is spread over several devices: what one of them gets, and what is not predicted."""

from dataclasses import replace

from brimful.base.errors import PlanError, RequestError
from brimful.base.units import format_bytes
from brimful.planning.derive import total_steps_of
from brimful.planning.memory import Footprint
from brimful.planning.plan import Choice, Plan, Prediction, Spread
from brimful.recipe import BatchRecipe, Recipe, TrainingRecipe

MEMORY = ("peak_memory_bytes", "allocated_memory_bytes", "device_memory_bytes")
KEPT = (
    *MEMORY,
    "evaluation_time_s",
    "checkpoint_time_s",
    "start_time_s",
)
"""Predictions of one rank that hold among several. What depends on how long ranks wait for each
other is not predicted, so throughput, total time, energy and cost are left out.
"""
RANK_STEP = "rank_step_time_s"
"""The prediction of how long a rank computes its share of a step."""
_OF_A_RANK = "; of one rank, which computes its share; waiting for the others is not predicted"


def refuse_too_many(recipe: Recipe, devices: int) -> None:
    """Raise RequestError if an optimizer step has fewer sequences than there are devices."""
    if recipe.effective_batch < devices:
        raise RequestError(
            f"an optimizer step of {recipe.name} has {recipe.effective_batch} sequences, too few"
            f" for {devices} devices: each takes at least one. Use at most"
            f" --devices {recipe.effective_batch}, or a larger effective batch"
            f" (batch.sequences={devices} --accept-change batch, if the run has begun)."
        )


def refuse_unshardable(recipe: Recipe, spread: Spread) -> None:
    """Raise PlanError if a recipe cannot be trained with its model in parts."""
    if spread != "sharded":
        return
    told = {
        "quantize=nf4": recipe.quantize == "nf4",
        "optimizer.kind=adamw_8bit": recipe.optimizer.kind != "adamw",
        "run.replay_check": recipe.run.replay_check is not None,
    }
    refused = [name for name, is_asked in told.items() if is_asked]
    if refused:
        raise PlanError(
            f"{', '.join(refused)} cannot be combined with a model in parts on several devices."
            " Use plan.spread=replicated if the whole model fits each device, or leave"
            f" {'them' if len(refused) > 1 else 'it'} out."
        )


def share_of(recipe: Recipe, devices: int, train_rows: int | None) -> Recipe:
    """Return the recipe as the rank with the largest share sees it: as many steps, of fewer
    sequences.

    Args:
        recipe: As planning counts, in rows of the sequence length.
        devices: That share an optimizer step.
        train_rows: Rows of one epoch; None: unknown.
    """
    rows = -(-recipe.effective_batch // devices)
    steps = total_steps_of(recipe, train_rows)
    changed: dict[str, object] = {"batch": BatchRecipe(sequences=rows)}
    if steps is not None:
        changed["training"] = TrainingRecipe(steps=steps)
    return recipe.model_copy(update=changed)


def spread_of(asked: str, footprint: Footprint, devices: int) -> tuple[Spread, str]:
    """Return how a model is spread over several devices, and why.

    Args:
        asked: `plan.spread` of the recipe.
        footprint: Of a rank that holds the whole model.
        devices: That share an optimizer step.
    """
    needed = format_bytes(footprint.driver.value)
    room = format_bytes(footprint.usable_bytes)
    fits = footprint.verdict != "does not fit"
    if asked == "sharded" or (asked == "auto" and not fits):
        reason = "chosen in the recipe"
        if asked == "auto":
            reason = f"the whole model needs about {needed} of the {room} that a device has"
        return "sharded", (
            f"{reason}; weights, gradients and optimizer states lie in {devices} parts, blocks are"
            " gathered while they compute"
        )
    return "replicated", (
        f"the whole model fits each device ({needed} of {room}), so only gradients are exchanged,"
        " while the last backward pass goes on"
    )


def spread_plan(plan: Plan, recipe: Recipe, devices: int, how: tuple[Spread, str]) -> Plan:
    """Return the plan of several devices from that of one rank's share.

    Args:
        plan: Of `share_of` the recipe.
        recipe: As planning counts.
        devices: That share an optimizer step.
        how: As `spread_of` says.
    """
    spread, reason = how
    other = "replicated" if spread == "sharded" else "sharded"
    predicted = {name: _of_a_rank(entry) for name, entry in plan.predicted.items() if name in KEPT}
    if "step_time_s" in plan.predicted:
        predicted[RANK_STEP] = _of_a_rank(plan.predicted["step_time_s"])
    terms = plan.memory_terms
    if spread == "sharded":  # what a part of the model needs is not predicted yet
        predicted = {name: entry for name, entry in predicted.items() if name not in MEMORY}
        terms = {}
    return replace(
        plan,
        devices=devices,
        whole_batch=recipe.effective_batch,
        spread=spread,
        choices=(*plan.choices, Choice("devices", f"{devices}, {spread}", reason, other)),
        predicted=predicted,
        memory_terms=terms,
        time_terms={},
    )


def _of_a_rank(entry: Prediction) -> Prediction:
    return replace(entry, basis=entry.basis + _OF_A_RANK)
