"""A recipe on one surveyed device: its plan, its cost, and what would help if it does not fit."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from brimful.base.console import Say, silent
from brimful.base.errors import DeviceError, PlanError
from brimful.chains.devices import conditions, conditions_of_group, facts_of
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.groups import Group
from brimful.planning.cost import Conditions, costed
from brimful.planning.derive import Derived, Facts, derive_with_memory
from brimful.planning.remedies import cheapest_remedy, least_bytes, remedies
from brimful.planning.specs import ModelFacts
from brimful.planning.spread import derive_spread, enough
from brimful.planning.survey import Tracer, prepare, table_sizes
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe


def cost_surveyed(entry: Surveyed, prices: Mapping[str, float]) -> Surveyed:
    """Return the entry with time, energy and cost of the whole run."""
    return _costed(entry, conditions(entry.device, prices))


def _costed(entry: Surveyed, known: Conditions) -> Surveyed:
    derived = entry.derived
    plan = costed(derived.prepared.recipe, derived.plan, known)
    return replace(entry, derived=replace(derived, plan=plan), conditions=known)


def survey_each(
    recipe: Recipe,
    devices: Sequence[Device],
    traces: Tracer,
    model: ModelFacts,
    progress: Say = silent,
    *,
    remedied: bool = False,
) -> list[Surveyed | Unplanned]:
    """Derive a plan for every device, or the reason why there is none.

    Args:
        recipe: What to train.
        devices: Catalog rows, or this machine.
        traces: Of declared steps.
        model: The recipe's model, looked up.
        progress: Is told what is being done.
        remedied: Where it does not surely fit, look for the cheapest change that makes it fit.
    """
    surveyed: list[Surveyed | Unplanned] = []
    for number, device in enumerate(devices, 1):
        progress(f"device {number} of {len(devices)}: {device.name}")
        try:
            entry = Surveyed(
                derive_with_memory(recipe, device, traces, facts_of(device, model=model))
            )
            surveyed.append(_with_remedy(entry, traces) if remedied else entry)
        except (PlanError, DeviceError) as error:
            surveyed.append(Unplanned(device, str(error)))
    return surveyed


def _with_remedy(entry: Surveyed, traces: Tracer) -> Surveyed:
    """Return the entry with the cheapest change that makes it fit, where it does not surely."""
    if entry.verdict == "fits":
        return entry
    derived = entry.derived
    remedy = cheapest_remedy(derived.prepared, traces, recomputes=derived.plan.recompute)
    return replace(entry, remedies=() if remedy is None else (remedy,))


def survey_group(
    recipe: Recipe,
    group: Group,
    traces: Tracer,
    model: ModelFacts,
    prices: Mapping[str, float] | None = None,
    *,
    closely: bool = False,
) -> Surveyed:
    """Derive and cost the plan of several devices, with the memory of one at several micro-batches.
    `closely`: where it does not surely fit, look for the number of such devices that holds it.

    Raises:
        RequestError: more devices than sequences in a step.
        PlanError: it cannot be traced, or be trained as the recipe asks.
    """
    facts = facts_of(group.device, model=model)
    derived = derive_spread(recipe, group, traces, facts)
    share = derived.prepared.recipe
    sizes = table_sizes(
        derived.footprint.micro_batch,
        derived.memory.largest(share.effective_batch),
        share.effective_batch,
    )
    table = tuple(derived.memory.at(size) for size in sizes)
    entry = Surveyed(derived, table)
    if closely and entry.verdict != "fits":
        entry = replace(entry, smallest_device=enough(recipe, group, traces, facts))
    return _costed(entry, conditions_of_group(group, prices))


def survey_closely(
    recipe: Recipe,
    device: Device,
    traces: Tracer,
    facts: Facts,
    answered: Callable[[Surveyed], None] | None = None,
) -> Surveyed:
    """Derive a plan for one device, with the memory at several micro-batches, and with remedies and
    the smallest sufficient device if it does not fit. `answered` is told what is known before
    recomputation is compared, and before remedies are looked for.

    Raises:
        PlanError: it cannot be traced.
    """

    def tell(derived: Derived) -> None:
        if answered is not None:
            answered(Surveyed(derived, ()))

    first = None if answered is None else tell
    derived = derive_with_memory(recipe, device, traces, facts, first=first)
    sizes = table_sizes(
        derived.footprint.micro_batch,
        derived.memory.largest(recipe.effective_batch),
        recipe.effective_batch,
    )
    table = tuple(derived.memory.at(size) for size in sizes)
    if derived.footprint.verdict == "fits":
        return Surveyed(derived, table)
    tell(derived)
    proposed = remedies(derived.prepared, traces, recomputes=derived.plan.recompute)
    return Surveyed(derived, table, proposed, _smallest_device(derived, traces))


def _smallest_device(derived: Derived, traces: Tracer) -> str | None:
    """Return the smallest device of the catalog whose own plan surely fits. None is traced for that
    cannot even hold the weights.
    """
    recipe, model = derived.prepared.recipe, derived.prepared.model
    rows = (catalog.get(name) for name in catalog.names())
    for device in sorted(rows, key=lambda row: row.memory_bytes):
        if device.kind != "cuda":
            continue
        with suppress(PlanError, DeviceError):
            prepared = prepare(recipe, device, model=model)
            if least_bytes(prepared, derived.footprint.parameters) > device.memory_bytes:
                continue
            alone = derive_with_memory(recipe, device, traces, Facts(model=model))
            if alone.footprint.verdict == "fits":
                return device.name
    return None
