"""The plan of one run: refused early if it can never fit, settled once the data are known, kept
when a run continues.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from brimful.base.console import Say, silent
from brimful.base.errors import PlanError, RequestError
from brimful.base.types import Json
from brimful.base.warning_codes import as_note
from brimful.chains.devices import conditions, facts_of
from brimful.hardware.device import Device
from brimful.kinds.run_data import AnyRunData, plan_of
from brimful.model.published import import_adapters
from brimful.planning.cost import Conditions, checkpoint_seconds, costed, respaced
from brimful.planning.derive import (
    Facts,
    derive,
    derive_with_memory,
    planned_threads,
    refuse_what_cannot_fit,
)
from brimful.planning.pinned import load_plan, with_choices_of
from brimful.planning.plan import Plan
from brimful.planning.spacing import short_run_notes, usual_interval
from brimful.planning.spread import refuse_unshardable, share_of, spread_of, spread_plan
from brimful.recipe import PlanChoices, Recipe
from brimful.rehearsal.kept_traces import kept_traces
from brimful.training.admission import Admission
from brimful.training.memory_errors import DECIDES_MEMORY
from brimful.training.setup import Deadline

_DECIDES_PLAN = ("plan.", "batch.", "training.", "optimizer.clip_norm")
"""Fields that may change between sessions and on which the plan depends; of data and model none
may.
"""


_DECIDES_INTERVAL = ("evaluation.every", "evaluation.patience", "training.", "batch.")
"""Fields on which the interval between evaluations depends."""
YEAR_S = 365 * 24 * 3600.0
_BASE_KEY = "evaluation.base"
_SESSION_LINES = 2
"""Of `session_notes`, those that are always told: when this session ends, how many it takes."""


@dataclass(frozen=True)
class EarlierPlans:
    """Plans that were made before this session.

    Attributes:
        stored: Plan of the run's last session; None for a new run.
        stands: Whether the run goes on by the stored plan: neither recipe nor device changed in a
            way that asks for another.
        pinned: The plan of the file that the user gave; None without one.
        choices: What is fixed of the plan, with the device of this rank.
        devices: How many share an optimizer step.
        machines: Number of machines that they are in.
    """

    stored: Plan | None
    stands: bool
    pinned: Plan | None
    choices: PlanChoices
    devices: int = 1
    machines: int = 1


def earlier_plans(
    recipe: Recipe,
    device: Device,
    admission: Admission,
    plan_file: Path | None,
    part: tuple[Recipe, str] | None = None,
    progress: Say = silent,
    several: tuple[int, int] = (1, 1),
) -> EarlierPlans:
    """Return the plans that there are, before any data are read. `progress` is told what is being
    done. `several`: how many devices share a step, and in how many machines. `part`: as in
    `load_plan`.

    A run that goes on by its own plan needs no other: nothing is derived for it.

    Raises:
        PlanError: not even one sequence fits on the device; or the run surely takes years.
        RequestError: the file is no plan of this recipe for this device.
    """
    devices, machines = several
    stored = _stored_plan(admission.folder) if admission.continues else None
    stands = (
        stored is not None
        and plan_file is None
        and not _is_outdated(stored, recipe, device, admission, devices)
    )
    if plan_file is not None and devices > 1:
        raise RequestError(
            f"--plan {plan_file} is the plan of one device, and {devices} share this run. Leave"
            " --plan or --devices out."
        )
    if devices > 1:  # whether the whole model fits decides only how it is spread
        return EarlierPlans(stored, stands, None, recipe.plan, devices, machines)
    if stored is not None and stands and _fits_now(stored, device):
        return EarlierPlans(stored, stands, None, recipe.plan)
    pinned = None if plan_file is None else load_plan(plan_file, recipe, device, part)
    chosen = recipe if pinned is None else with_choices_of(pinned, recipe)
    with kept_traces(progress) as traces:
        plan = derive(chosen, device, traces, facts_of(device))
    # Every row counts as full here. Only those of documents are; others hold a token at least.
    at_least = 1.0 if chosen.kind.rows == "documents" else 1 / chosen.sequence_length
    refuse_years(chosen, costed(chosen, plan, conditions(device)), at_least=at_least)
    return EarlierPlans(stored, stands, pinned, recipe.plan)


def settle_plan(
    data: AnyRunData,
    device: Device,
    admission: Admission,
    earlier: EarlierPlans,
    progress: Say = silent,
) -> tuple[Plan, list[str]]:
    """Return the plan with the data known, and notes for the user. A compiled step is traced as
    such, which takes some ten seconds; `progress` is told.

    A continued run keeps its plan, so that it goes on bit for bit, unless a changed recipe or
    device asks for a new one. A plan from a file is used as it is; if it counts examples as full
    sequences, its choices are kept and its figures are predicted anew.
    """
    plan = _settled(data, device, admission, earlier, progress)
    notes = short_run_notes(data.recipe, plan.total_steps, data.validation_count)
    changes = "" if earlier.stored is None else _rounding_changes(earlier.stored, plan)
    if changes:
        notes.append(
            f"this run goes on by another plan than before ({changes}): steps are rounded"
            " differently"
        )
    return plan, notes


def _settled(
    data: AnyRunData,
    device: Device,
    admission: Admission,
    earlier: EarlierPlans,
    progress: Say,
) -> Plan:
    stored, pinned = earlier.stored, earlier.pinned
    known = replace(
        conditions(device),
        train_sequences=data.train_rows,
        validation_sequences=data.validation_rows,
    )
    if stored is not None:
        base = None if _BASE_KEY in _changed_keys(admission) else stored.base
        known = replace(known, evaluate_every=_kept_interval(stored, admission), base=base)
    if pinned is not None and data.planned is data.recipe:
        return respaced(data.recipe, pinned, known)
    if earlier.devices > 1:
        return _of_several(data, device, earlier, known)
    if stored is not None and earlier.stands:
        if not _fits_now(stored, device):
            _derived(
                data, data.planned, device, stored, progress
            )  # raises if not even one sequence fits
        return costed(data.planned, stored, known) if admission.changed else stored
    recipe = data.planned if pinned is None else with_choices_of(pinned, data.planned)
    return costed(recipe, _derived(data, recipe, device, stored, progress), known)


def _derived(
    data: AnyRunData, recipe: Recipe, device: Device, stored: Plan | None, progress: Say
) -> Plan:
    """Return the plan of a recipe with its data known; a new run's step is timed for it."""
    facts = _facts(data, recipe, device, measures=stored is None)
    with kept_traces(progress, compiles=True) as traces:
        return derive(recipe, device, traces, facts)


def _of_several(data: AnyRunData, device: Device, earlier: EarlierPlans, known: Conditions) -> Plan:
    """Return the plan of several devices: that of the share of one, with what that predicts."""
    if earlier.stored is not None and earlier.stands:
        return earlier.stored
    devices = earlier.devices
    recipe = data.planned.model_copy(update={"plan": earlier.choices})
    share = share_of(recipe, devices, data.train_rows)
    facts = _facts(data, recipe, device, measures=earlier.stored is None, devices=devices)
    if facts.tokens_per_step is not None:
        facts = replace(facts, tokens_per_step=max(1, facts.tokens_per_step // devices))
    with kept_traces() as traces:
        derived = derive_with_memory(share, device, traces, facts)
    how = spread_of(recipe.plan.spread, derived.footprint, devices, earlier.machines)
    if how[0] == "replicated":
        refuse_what_cannot_fit(derived)
    refuse_unshardable(recipe, how[0])
    return spread_plan(costed(share, derived.plan, known), recipe, devices, how)


def _facts(
    data: AnyRunData, recipe: Recipe, device: Device, *, measures: bool, devices: int = 1
) -> Facts:
    """Return what is known of a run whose data are known."""
    if recipe.adapter is not None and device.kind == "cpu":
        import_adapters(quantized=recipe.quantize != "none")
    computed = data.computed_share(device.kind)
    return facts_of(
        device,
        measures=measures,
        vocabulary=len(data.tokenizer),
        train_sequences=data.train_rows,
        tokens_per_step=data.tokens_computed(device.kind),
        fill=computed * data.fill,
        scored=data.scored / computed,
        has_many_lengths=data.has_many_lengths,
        examples=data.recipe.kind.rows_per_sample * data.recipe.effective_batch // devices,
        longest_pass_of=data.longest_pass_of(device.kind, devices),
    )


def _changed_keys(admission: Admission) -> list[str]:
    """Return the keys of the recipe that change with this session."""
    return [change.partition(":")[0] for change in admission.changed]


def _kept_interval(stored: Plan, admission: Admission) -> int | None:
    """Return the steps between evaluations of the run that goes on, so that its best model and
    early stopping are judged as before; None where the recipe now asks for something else.
    """
    if any(key.startswith(_DECIDES_INTERVAL) for key in _changed_keys(admission)):
        return None
    if stored.evaluate_every is not None or stored.total_steps is None:
        return stored.evaluate_every
    return usual_interval(stored.total_steps)


def _fits_now(plan: Plan, device: Device) -> bool:
    """Return whether as much memory is free as the plan expects to need."""
    peak, free_bytes = plan.predicted.get("peak_memory_bytes"), device.free_memory_bytes
    return peak is None or free_bytes is None or peak.value <= free_bytes


def _is_outdated(
    stored: Plan, recipe: Recipe, device: Device, admission: Admission, devices: int
) -> bool:
    """Return whether the recipe or the devices changed in a way that asks for a new plan."""
    return (
        stored.devices != devices
        or any(change.startswith(_DECIDES_PLAN) for change in admission.changed)
        or stored.device["name"] != device.name
        or stored.threads != planned_threads(recipe, device)
    )


def _stored_plan(run_folder: Path) -> Plan | None:
    """Return the plan of a run's last session; None if that ended before it had one."""
    return plan_of(run_folder) if (run_folder / "plan.json").exists() else None


def refuse_years(recipe: Recipe, plan: Plan, *, at_least: float | None = None) -> None:
    """Raise PlanError if the run is predicted to take more than a year, unless the recipe says that
    it may.

    Args:
        at_least: Where the data are not known yet: raise only if this share of the low end of the
            prediction's interval is more than a year.
    """
    total = plan.predicted.get("total_time_s")
    if total is None or recipe.run.long:
        return
    if (total.value if at_least is None else at_least * total.low) < YEAR_S:
        return
    raise PlanError(
        f"this run would take about {total.value / YEAR_S:,.1f} years"
        f" ({plan.total_steps or 0:,} steps of {plan.effective_batch:,} sequences). Did you mean"
        " fewer steps or a smaller batch? If it is meant: --yes, or run.long=true."
    )


def _rounding_changes(before: Plan, now: Plan) -> str:
    """Return what differs of the choices that decide how a step is rounded, as
    `precision fp32 -> bf16`; empty if the run goes on bit for bit.
    """
    old, new = _rounding_choices(before), _rounding_choices(now)
    return ", ".join(f"{name} {old[name]} -> {new[name]}" for name in old if old[name] != new[name])


def _rounding_choices(plan: Plan) -> Json:
    return {
        "device": plan.device["name"],
        "threads": plan.threads,
        "devices": plan.devices,
        "spread": plan.spread,
        "packs_experts": plan.packs_experts,
        **{name: getattr(plan, name) for name in DECIDES_MEMORY},
        "micro_batches": f"{len(plan.micro_batches)} of up to {plan.micro_batches[0]}",
    }


def session_notes(recipe: Recipe, plan: Plan, device: Device, *, every: bool) -> list[str]:
    """Return when this session ends, and how many such sessions the run is predicted to take;
    `every`: with the reasons.
    """
    session_s = recipe.run.session_s
    if session_s is None:
        return []
    lines = [f"{Deadline.of_process(session_s).describe()}; a checkpoint comes before"]
    if "training_time_s" not in plan.predicted:
        return lines
    from brimful.planning.budget import sessions  # noqa: PLC0415 - few sessions have an end
    from brimful.report.plan.budgets import session_sentences  # noqa: PLC0415

    checkpoint_s = checkpoint_seconds(recipe, plan, conditions(device)).value
    try:
        lines += session_sentences(sessions(session_s, plan.predicted, checkpoint_s))
    except RequestError as error:
        lines.append(as_note(str(error), "B103"))
    return lines if every else lines[:_SESSION_LINES]
