"""A recipe on one surveyed device: its plan, its cost, and what would help if it does not fit."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from brimful.base.errors import DeviceError, PlanError
from brimful.base.types import JsonDict, Numbers
from brimful.chains.devices import conditions, conditions_of_group, facts_of
from brimful.data.counts import Counted, not_here
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.groups import Group
from brimful.planning.cost import Conditions, costed
from brimful.planning.derive import Derived, Facts, derive_with_memory
from brimful.planning.plan import Choice, Plan, Prediction
from brimful.planning.remedies import cheapest_remedy, least_bytes, remedies
from brimful.planning.specs import ModelFacts
from brimful.planning.spread import derive_spread, enough
from brimful.planning.survey import Tracer, prepare, table_sizes
from brimful.planning.surveyed import Surveyed
from brimful.planning.timing import NEW_LENGTHS
from brimful.recipe import Recipe

LENGTH_SPREAD = 1.3
"""The mean length of unread examples may be larger or smaller by this factor (assumption)."""


@dataclass(frozen=True)
class Known:
    """What is known of a recipe on any device.

    Attributes:
        model: The recipe's model, looked up.
        data: How much its data hold; None where that is not known before they are read.
    """

    model: ModelFacts
    data: Counted | None = None

    def facts(self, recipe: Recipe, device: Device, *, measures: bool = False) -> Facts:
        """What is known of a device and of the recipe on it."""
        known: JsonDict = {"model": self.model}
        if self.data is not None:
            known["train_sequences"] = self.data.train
            if self.data.mean_tokens is not None:
                known["expected_fill"] = self.data.mean_tokens / recipe.sequence_length
        return facts_of(device, measures=measures, **known)

    def conditions(self, given: Conditions) -> Conditions:
        """The same with how much the data hold."""
        if self.data is None:
            return given
        train, validation = self.data.train, self.data.validation
        return replace(given, train_sequences=train, validation_sequences=validation)


def cost_surveyed(entry: Surveyed, prices: Numbers, data: Counted | None = None) -> Surveyed:
    """Return the entry with time, energy and cost of the whole run, and how much data it has."""
    return _costed(entry, conditions(entry.device, prices), data)


def _costed(entry: Surveyed, given: Conditions, data: Counted | None) -> Surveyed:
    derived = entry.derived
    known = Known(derived.prepared.model, data).conditions(given)
    if data is None:
        plan = _without_data(derived.plan, derived.prepared.recipe)
    else:
        plan = _with_data(derived.plan, data, derived.prepared.recipe)
    plan = costed(derived.prepared.recipe, plan, known)
    return replace(entry, derived=replace(derived, plan=plan), conditions=known)


def _without_data(plan: Plan, recipe: Recipe) -> Plan:
    """Return the plan with which files of the data are not there, if any."""
    absent = not_here(recipe.data)
    if not absent:
        return plan
    told = f"{', '.join(absent)}: rows count as full, and how many there are is not known"
    return replace(plan, choices=(*plan.choices, Choice("data", "not here", told)))


def _with_data(plan: Plan, data: Counted, recipe: Recipe) -> Plan:
    """Return the plan with what the data hold, and with steps as long as their examples take. Its
    memory stays that of full rows.
    """
    counts = f"{data.train:,} + {data.validation:,}"
    if data.mean_tokens is None:
        told = f"sequences to train on and to validate on; {data.about}"
        return replace(plan, choices=(*plan.choices, Choice("data", counts, told)))
    share = data.mean_tokens / plan.sequence_length
    told = (
        f"examples to train on and to validate on, of about {data.mean_tokens:,.0f} tokens, so that"
        f" a step takes {share:.0%} of one with full rows; {data.about}"
    )
    predicted = dict(plan.predicted)
    if "step_time_s" in predicted:
        step, most = predicted["step_time_s"], min(1.0, LENGTH_SPREAD * share)
        if plan.packing != "packed":  # rows are as long as the longest beside them
            most = 1.0
        # Short examples have as many lengths as long ones.
        fixed = plan.time_terms.get(NEW_LENGTHS, 0.0) / step.value
        value, low, high = (
            (fixed + each * (1 - fixed)) * seconds
            for each, seconds in zip(
                (share, share / LENGTH_SPREAD, most), (step.value, step.low, step.high), strict=True
            )
        )
        predicted["step_time_s"] = Prediction(value, low, high, step.basis)
        tokens = plan.effective_batch * data.mean_tokens
        predicted["tokens_per_s"] = Prediction(
            tokens / value, tokens / high, tokens / low, "of the examples"
        )
    if recipe.training.tokens is not None:  # so many tokens are more steps of short examples
        steps = recipe.training.tokens / (recipe.effective_batch * data.mean_tokens)
        plan = replace(plan, total_steps=max(1, round(steps)))
    choices = (*plan.choices, Choice("data", counts, told))
    terms = {
        name: each if name == NEW_LENGTHS else share * each
        for name, each in plan.time_terms.items()
    }
    return replace(plan, choices=choices, predicted=predicted, time_terms=terms)


def with_remedy(entry: Surveyed, traces: Tracer) -> Surveyed:
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
    known: Known,
    prices: Numbers | None = None,
    *,
    closely: bool = False,
) -> Surveyed:
    """Derive and cost the plan of several devices, with the memory of one at several micro-batches.
    `closely`: where it does not surely fit, look for the number of such devices that holds it.

    Raises:
        RequestError: more devices than sequences in a step.
        PlanError: it cannot be traced, or be trained as the recipe asks.
    """
    facts = known.facts(recipe, group.device)
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
    return _costed(entry, conditions_of_group(group, prices), known.data)


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
