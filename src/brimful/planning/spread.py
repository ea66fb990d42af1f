"""How a recipe is spread over several devices: what one of them gets, and what is predicted."""

from dataclasses import replace
from functools import partial

from brimful.base.errors import PlanError, RequestError
from brimful.base.units import format_bytes, format_duration
from brimful.hardware.groups import Group, growing
from brimful.planning.communication import Exchange, waiting_time
from brimful.planning.derive import Derived, Facts, derive_with_memory, total_steps_of
from brimful.planning.memory import Footprint, standing_bytes
from brimful.planning.plan import Choice, Plan, Prediction, Spread
from brimful.planning.survey import Memory, Prepared, Sharing, Tracer
from brimful.planning.timing import StepTime
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
            f" {recipe.effective_batch}, or a larger effective batch"
            f" (batch.sequences={devices} --accept-change batch, if the run has begun)."
        )


def refuse_unshardable(recipe: Recipe, spread: Spread) -> None:
    """Raise PlanError if a recipe cannot be trained with its model in parts."""
    if spread == "replicated":
        return
    told = {
        f"optimizer.kind={recipe.optimizer.kind}": recipe.optimizer.kind != "adamw",
        "optimizer.weights=bf16": recipe.optimizer.weights != "fp32",
        "plan.offload=activations": recipe.plan.offload != "none",
        "plan.recompute=selective": recipe.plan.recompute == "selective",
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
        recipe: Recipe as planning counts, in rows of the sequence length.
        devices: That share an optimizer step.
        train_rows: Rows of one epoch; None: unknown.
    """
    rows = -(-recipe.effective_batch // devices)
    steps = total_steps_of(recipe, train_rows)
    changed: dict[str, object] = {"batch": BatchRecipe(sequences=rows)}
    if steps is not None:
        changed["training"] = TrainingRecipe(steps=steps)
    return recipe.model_copy(update=changed)


def spread_of(
    asked: str, footprint: Footprint, devices: int, machines: int = 1
) -> tuple[Spread, str]:
    """Return how a model is spread over several devices, and why.

    Args:
        asked: `plan.spread` of the recipe.
        footprint: The footprint of a rank that holds the whole model.
        devices: That share an optimizer step.
        machines: Number of machines, with as many devices in each.

    Raises:
        PlanError: hybrid is asked for, and there is one machine.
    """
    if asked == "hybrid" and machines == 1:
        raise PlanError(_ONE_MACHINE)
    needed = format_bytes(footprint.driver.value)
    room = format_bytes(footprint.usable_bytes)
    fits = footprint.verdict != "does not fit"
    if asked in {"sharded", "hybrid"} or (asked == "auto" and not fits):
        reason = "chosen in the recipe"
        if asked == "auto":
            reason = f"the whole model needs about {needed} of the {room} that a device has"
        held = f"{reason}; weights, gradients and optimizer states lie in"
        fits_a_machine = machines > 1 and _surely_fits_in_parts(footprint, devices // machines)
        if asked == "hybrid" or (asked == "auto" and fits_a_machine):
            return "hybrid", (
                f"{held} {devices // machines} parts within each machine, so that blocks are"
                f" gathered by its own links; only gradients go between the {machines} machines"
            )
        return "sharded", f"{held} {devices} parts, blocks are gathered while they compute"
    return "replicated", (
        f"the whole model fits each device ({needed} of {room}), so only gradients are exchanged,"
        " while the last backward pass goes on"
    )


_ONE_MACHINE = (
    "plan.spread=hybrid keeps all parts of the model in each of several machines, with as many"
    " devices in each, and there is one machine. Use plan.spread=sharded."
)
_IN_PARTS = ("weights", "gradients", "optimizer states")
_SURELY = 0.9
"""Of the memory to use: what blocks need while they are gathered is not counted (assumption)."""


def _surely_fits_in_parts(footprint: Footprint, parts: int) -> bool:
    """Return whether a device holds one of so many parts, judged from one that holds them all."""
    held = sum(footprint.terms.get(name, 0) for name in _IN_PARTS)
    needed = footprint.driver.value - held * (1 - 1 / parts)
    return needed <= _SURELY * footprint.usable_bytes


def spread_plan(plan: Plan, recipe: Recipe, devices: int, how: tuple[Spread, str]) -> Plan:
    """Return the plan of several devices from that of one rank's share.

    Args:
        plan: The plan of `share_of` the recipe.
        recipe: Recipe in the units that planning counts in.
        devices: That share an optimizer step.
        how: Way of dividing, as `spread_of` says.
    """
    spread, reason = how
    other = "sharded" if spread == "replicated" else "replicated"
    predicted = {name: _of_a_rank(entry) for name, entry in plan.predicted.items() if name in KEPT}
    if "step_time_s" in plan.predicted:
        predicted[RANK_STEP] = _of_a_rank(plan.predicted["step_time_s"])
    terms = plan.memory_terms
    if spread != "replicated":  # what a part of the model needs is not predicted yet
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


def derive_spread(recipe: Recipe, group: Group, tracer: Tracer, facts: Facts) -> Derived:
    """Return the plan of several devices, and the memory of the one with the largest share.

    Args:
        recipe: The whole one, as planning counts.
        group: The devices.
        tracer: Returns traces.
        facts: The facts of one device.

    Raises:
        RequestError: there are more devices than sequences in a step.
        PlanError: the recipe asks for a model in parts, and cannot be trained so.
    """
    refuse_too_many(recipe, group.count)
    asked = recipe.plan.spread
    share = share_of(recipe, group.count, facts.train_sequences)

    parts_of: dict[Spread, int] = {
        "replicated": 1,
        "sharded": group.count,
        "hybrid": group.per_machine,
    }

    def derived(spread: Spread) -> Derived:
        refuse_unshardable(recipe, spread)
        ranks = parts_of[spread]
        counted = share if spread == "replicated" else _unscored(share)
        sharing = Sharing(group.count, ranks, partial(_waiting_s, group, spread))
        alone = derive_with_memory(counted, group.named_device, tracer, facts, sharing)
        plan = replace(
            alone.plan, devices=group.count, whole_batch=recipe.effective_batch, spread=spread
        )
        return _with_communication(replace(alone, plan=plan), group, recipe.sequence_length)

    if asked == "hybrid" and group.machines == 1:
        raise PlanError(_ONE_MACHINE)
    if asked != "auto":
        other: Spread = "sharded" if asked == "replicated" else "replicated"
        return _told(derived(asked), "chosen in the recipe", other)
    whole = derived("replicated")
    if _surely_quickest(whole):
        return _told(
            whole,
            "the whole model fits each device in one pass without recomputation, so only gradients"
            " are exchanged, while the last backward pass goes on",
            "sharded",
        )
    ways: list[Spread] = ["sharded", "hybrid"] if group.machines > 1 else ["sharded"]
    try:
        found = [whole, *map(derived, ways)]
    except PlanError as error:
        return _told(whole, f"a model in parts cannot be had: {error}", "sharded")
    best, second = sorted(found, key=_worth)[:2]
    return _told(best, _compared(best, second), second.plan.spread)


def enough(recipe: Recipe, group: Group, tracer: Tracer, facts: Facts) -> str | None:
    """Return the smallest of the groups with twice, four times, ... as many devices that surely
    holds a recipe; None where none does.
    """
    for larger in growing(group.device, recipe.effective_batch):
        if larger.count <= group.count:
            continue
        try:
            derived = derive_spread(recipe, larger, tracer, facts)
        except PlanError:
            return None
        if derived.footprint.verdict == "fits":
            return larger.name
    return None


def _surely_quickest(whole: Derived) -> bool:
    """Return whether no model in parts can be quicker than a whole one on each device."""
    is_one_pass = len(whole.plan.micro_batches) == 1 and not whole.plan.recompute
    return whole.footprint.verdict == "fits" and is_one_pass


def _worth(derived: Derived) -> tuple[int, float]:
    """Return what is least for the better plan: surely fitting comes before quick, and where none
    fits, what needs least memory.
    """
    footprint, step = derived.footprint, derived.plan.predicted.get("step_time_s")
    order = ("fits", "uncertain", "does not fit").index(footprint.verdict)
    if footprint.verdict == "does not fit":
        return order, footprint.driver.value
    return order, 0.0 if step is None else step.value


def _compared(chosen: Derived, other: Derived) -> str:
    """Return why one plan is better than the other."""
    name = {
        "replicated": "the whole model on each",
        "sharded": "a model in parts",
        "hybrid": "all parts in each machine",
    }
    spread, verdict = other.plan.spread, other.footprint.verdict
    if "does not fit" in (verdict, chosen.footprint.verdict) or verdict != chosen.footprint.verdict:
        needed = format_bytes(other.footprint.driver.value)
        room = format_bytes(other.footprint.usable_bytes)
        whether = "may fit" if verdict == "uncertain" else "does not fit"
        return f"{name[spread]} needs {needed} of {room} and {whether}"
    times = [each.plan.predicted.get("step_time_s") for each in (chosen, other)]
    mine, others = (None if each is None else format_duration(each.value) for each in times)
    if mine is None:
        return "no step time is known, and gradients alone are less to exchange"
    return f"a step takes {mine}, with {name[spread]} {others}"


def _told(derived: Derived, reason: str, other: Spread) -> Derived:
    """Return the plan with the choice of its spread; `other` is the second best."""
    plan = derived.plan
    choice = Choice("devices", f"{plan.devices}, {plan.spread}", reason, other)
    return replace(derived, plan=replace(plan, choices=(*plan.choices, choice)))


def _unscored(recipe: Recipe) -> Recipe:
    """Return the recipe without scores of the model before tuning: a model in parts has none."""
    evaluation = recipe.evaluation.model_copy(update={"base": "never"})
    return recipe.model_copy(update={"evaluation": evaluation})


def _with_communication(derived: Derived, group: Group, length: int) -> Derived:
    """Return the plan with the time that a step takes on all devices together."""
    plan = derived.plan
    step = plan.predicted.get("step_time_s")
    if step is None:
        return derived
    waiting = waiting_time(
        StepTime(step.value, plan.time_terms, 0.0, 0.0),
        len(plan.micro_batches),
        group,
        plan.spread,
        _exchange_of(derived.prepared, derived.memory),
    )
    together = Prediction(
        step.value + waiting.value,
        step.low + waiting.low,
        step.high + waiting.high,
        f"{step.basis}; {waiting.basis}",
    )
    tokens = plan.effective_batch * length
    predicted = {
        **plan.predicted,
        "step_time_s": together,
        "tokens_per_s": Prediction(
            tokens / together.value,
            tokens / together.high,
            tokens / together.low,
            f"of all {plan.devices} devices, from the step time",
        ),
    }
    if "mfu" in predicted:
        mfu = predicted["mfu"]
        flop_s = mfu.value * step.value  # seconds that the arithmetic would take at the peak
        low, high = flop_s / together.high, flop_s / together.low
        predicted["mfu"] = Prediction(flop_s / together.value, low, high, mfu.basis)
    terms = {**plan.time_terms, "communication": waiting.value}
    plan = replace(plan, predicted=predicted, time_terms=terms)
    return replace(derived, plan=plan)


def _waiting_s(
    group: Group, spread: Spread, prepared: Prepared, memory: Memory, time: StepTime, passes: int
) -> float:
    return waiting_time(time, passes, group, spread, _exchange_of(prepared, memory)).value


def _exchange_of(prepared: Prepared, memory: Memory) -> Exchange:
    trace = memory.replayed(1).trace
    part_bytes = standing_bytes(trace, ("weights", "adapters"))
    return Exchange(
        gathered_bytes=prepared.ranks * part_bytes,
        gradient_bytes=4 * trace.trainable,
        units=int(trace.layers_S.max()) + 2,
    )
