"""Planning as a whole: a recipe on one device or on many. Nothing here imports torch unless a trace
has to be made or this machine is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from brimful.base.errors import DeviceError, PlanError
from brimful.chains.devices import conditions, devices_of, facts_of, here
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.planning.cost import costed
from brimful.planning.derive import (
    Derived,
    Facts,
    derive,
    derive_with_memory,
)
from brimful.planning.plan import Plan
from brimful.planning.specs import ModelFacts, model_facts
from brimful.planning.survey import Tracer, prepare, remedies, table_sizes
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.rehearsal.kept_traces import kept_traces


def plan(
    recipe: Recipe, device: Device | str | None = None, *, trust_custom_code: bool = False
) -> Plan:
    """How a recipe runs on a device: choices, the micro-batch, and the peak memory term by term.

    Args:
        recipe: What to train.
        device: A Device, the exact name of a catalog row, or None for the one of this machine that
            the recipe would use.
        trust_custom_code: Consent to run code that comes with a published model.

    Raises:
        PlanError: it does not fit, or cannot be traced.
        DeviceError: no such device.
    """
    chosen = (
        device
        if isinstance(device, Device)
        else catalog.get(device)
        if device is not None
        else here(recipe)
    )
    facts = facts_of(chosen, model=model_facts(recipe, trust_custom_code=trust_custom_code))
    with kept_traces() as traces:
        return costed(recipe, derive(recipe, chosen, traces, facts), conditions(chosen))


def survey(
    recipe: Recipe,
    on: str = "here",
    *,
    trust_custom_code: bool = False,
    prices: Mapping[str, float] | None = None,
) -> list[Surveyed | Unplanned]:
    """A recipe on the devices that `on` names.

    Args:
        recipe: What to train.
        on: "here", "all" (the whole catalog), or exact names separated by commas, "here" among
            them.
        trust_custom_code: Consent to run code that comes with a published model.
        prices: US dollars an hour by device name, "" for every device, in place of the catalog's.

    Raises:
        DeviceError: no such device.
        PlanError: the only device asked for cannot be planned for; or the model is no model.
    """
    devices = devices_of(recipe, on)
    model = model_facts(recipe, trust_custom_code=trust_custom_code)
    with kept_traces() as traces:
        surveyed = _survey_all(recipe, devices, traces, model)
    return [
        cost_surveyed(entry, prices or {}) if isinstance(entry, Surveyed) else entry
        for entry in surveyed
    ]


def survey_devices(
    recipe: Recipe,
    devices: Sequence[Device],
    traces: Tracer,
    *,
    model: ModelFacts,
    prices: Mapping[str, float] | None = None,
) -> list[Surveyed | Unplanned]:
    """A recipe on several devices, with traces that the caller keeps from one question to the next.

    Args:
        recipe: What to train.
        devices: Catalog rows, or this machine.
        traces: Of declared steps.
        model: The recipe's model, looked up.
        prices: As in `survey`.
    """
    surveyed = survey_each(recipe, devices, traces, model)
    return [
        cost_surveyed(entry, prices or {}) if isinstance(entry, Surveyed) else entry
        for entry in surveyed
    ]


def cost_surveyed(entry: Surveyed, prices: Mapping[str, float]) -> Surveyed:
    """Return the entry with time, energy and cost of the whole run."""
    derived = entry.derived
    plan = costed(derived.prepared.recipe, derived.plan, conditions(entry.device, prices))
    return replace(entry, derived=replace(derived, plan=plan))


def _survey_all(
    recipe: Recipe, devices: list[Device], traces: Tracer, model: ModelFacts
) -> list[Surveyed | Unplanned]:
    if len(devices) == 1:
        return [_closely(recipe, devices[0], traces, facts_of(devices[0], model=model))]
    return survey_each(recipe, devices, traces, model)


def survey_each(
    recipe: Recipe, devices: Sequence[Device], traces: Tracer, model: ModelFacts
) -> list[Surveyed | Unplanned]:
    """Derive a plan for every device; a device that cannot be planned for has the reason."""
    surveyed: list[Surveyed | Unplanned] = []
    for device in devices:
        try:
            surveyed.append(
                Surveyed(derive_with_memory(recipe, device, traces, facts_of(device, model=model)))
            )
        except (PlanError, DeviceError) as error:
            surveyed.append(Unplanned(device, str(error)))
    return surveyed


def _closely(recipe: Recipe, device: Device, traces: Tracer, facts: Facts) -> Surveyed:
    derived = derive_with_memory(recipe, device, traces, facts)
    sizes = table_sizes(
        derived.footprint.micro_batch,
        derived.memory.largest(recipe.effective_batch),
        recipe.effective_batch,
    )
    table = tuple(derived.memory.at(size) for size in sizes)
    if derived.footprint.verdict == "fits":
        return Surveyed(derived, table)
    found = remedies(derived.prepared, traces, recomputes=derived.plan.recompute)
    return Surveyed(derived, table, found, _smallest_device(derived, traces))


def _smallest_device(derived: Derived, traces: Tracer) -> str | None:
    """The smallest device of the catalog that holds one sequence with the kernels that it has."""
    recipe, needed_bytes = derived.prepared.recipe, derived.footprint.allocated.low
    rows = (catalog.get(name) for name in catalog.names())
    for device in sorted(rows, key=lambda row: row.memory_bytes):
        if device.kind == "cuda" and device.memory_bytes > min(
            needed_bytes, derived.prepared.device.memory_bytes
        ):
            prepared = prepare(recipe, device, model=derived.prepared.model)
            if prepared.memory(traces, recompute=derived.plan.recompute).verdict(1) == "fits":
                return device.name
    return None
