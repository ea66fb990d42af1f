"""*Will it fit?*: what the recipe of a request takes on each device. Numbers are those of `brimful
plan`.
"""

import functools
import threading
from dataclasses import dataclass, replace
from typing import Literal

from brimful.base.errors import DeviceError
from brimful.base.text import plural
from brimful.base.units import format_bytes
from brimful.chains.devices import this_machine
from brimful.chains.plans import survey_groups
from brimful.chains.surveyed_devices import Known
from brimful.data.counts import count
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.groups import Group, group_of
from brimful.planning.plan import Choice, Prediction
from brimful.planning.remedies import Remedy, remedies
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import PlanChoices, Recipe
from brimful.rehearsal.kept_traces import KeptTraces
from brimful.studio.fit_request import FitRequest, recipe_for

FitVerdict = Literal["fits", "uncertain", "does not fit", "unknown"]

_ONE_AT_A_TIME = threading.Lock()
"""Traces are made on fake tensors, which the whole process sees."""


@dataclass(frozen=True)
class DeviceFit:
    """A recipe on one device.

    Attributes:
        device: Its exact name.
        capacity_bytes: What it can give in all.
        verdict: Whether it fits; "unknown" where nothing can be said.
        reason: One sentence for the verdict.
        terms: Bytes by name at the moment of the peak, for a stacked bar; they add up to
            `peak_bytes`.
        peak_bytes: The peak that the driver shows, with its interval; None where nothing is known,
            as all that follows.
        micro_batch, accumulation: Sequences per pass, and passes per optimizer step.
        largest_micro_batch: That surely fits, up to what is worth looking at; 0 where none does.
        step_time_s, total_time_s, cost_usd, energy_wh: With intervals; None where unknown, or where
            it does not fit.
        billion_tokens_s, billion_tokens_usd: In their place where the length of training is not
            known.
        tokens_per_s: Of training.
        remedies: What would take less memory, where it does not surely fit; empty until asked for
            with_remedies.
        choices: What the plan decides, with reasons.
    """

    device: str
    capacity_bytes: int
    verdict: FitVerdict
    reason: str
    terms: tuple[tuple[str, int], ...] = ()
    peak_bytes: Prediction | None = None
    micro_batch: int = 0
    accumulation: int = 0
    largest_micro_batch: int = 0
    step_time_s: Prediction | None = None
    total_time_s: Prediction | None = None
    cost_usd: Prediction | None = None
    energy_wh: Prediction | None = None
    billion_tokens_s: Prediction | None = None
    billion_tokens_usd: Prediction | None = None
    tokens_per_s: Prediction | None = None
    remedies: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Fit:
    """What a recipe takes on each device.

    Attributes:
        recipe_yaml: The recipe, for `brimful plan FILE`.
        title: One line.
        devices: In the order they were asked for.
        notes: What else to know.
        parameters: Of the model; trainable ones among them.
        trainable: Parameters that train.
        words: What names the recipe in a command, as in `FitRecipe`.
    """

    recipe_yaml: str
    title: str
    devices: tuple[DeviceFit, ...]
    notes: tuple[str, ...] = ()
    parameters: int = 0
    trainable: int = 0
    words: tuple[str, ...] = ()


def assess(request: FitRequest, *, with_remedies: bool = False, local_folders: bool = True) -> Fit:
    """Return what the recipe of a request takes on each device.

    The first answer for a model and a method traces its step, which takes seconds; later ones reuse
    that.

    Args:
        request: What the page asks for.
        with_remedies: Also look for changes that would make it fit where it does not; the first
            time this traces more.
        local_folders: Whether a folder of this machine may be named; a page that strangers see says
            no.

    Raises:
        BrimfulError: the request cannot be planned for; the message is for the page.
    """
    found = recipe_for(request, local_folders=local_folders)
    with _ONE_AT_A_TIME:
        groups, alone = _groups(request, found.recipe)
        traces = _traces()
        known = Known(found.model, count(found.recipe) if request.data else None)
        surveyed = survey_groups(found.recipe, groups, traces, known, closely=with_remedies)
        surveyed += alone
        fits = tuple(_fit(entry, traces if with_remedies else None) for entry in surveyed)
        traces.save()
    fit = Fit(found.to_yaml(), found.title, fits, found.notes, words=found.words)
    for entry in surveyed:
        if isinstance(entry, Surveyed):
            footprint = entry.derived.footprint
            return replace(fit, parameters=footprint.parameters, trainable=footprint.trainable)
    return fit


@functools.cache
def _traces() -> KeptTraces:
    return KeptTraces()


def _groups(request: FitRequest, recipe: Recipe) -> tuple[list[Group], list[Unplanned]]:
    """Return the devices asked about, and those that cannot share a job with others."""
    if not request.devices:
        raise DeviceError("no device is chosen. Choose at least one.")
    groups, alone = [], []
    for name in dict.fromkeys(request.devices):
        device = _this_machine(recipe.plan) if name == "here" else catalog.get(name)
        try:
            groups.append(group_of(device, request.together))
        except DeviceError as error:
            alone.append(Unplanned(device, str(error)))
    return groups, alone


@functools.cache
def _this_machine(plan: PlanChoices) -> Device:
    """Measured once in a process."""
    return this_machine(plan)


def _fit(entry: Surveyed | Unplanned, traces: KeptTraces | None) -> DeviceFit:
    if isinstance(entry, Unplanned):
        return DeviceFit(entry.device.name, entry.device.memory_bytes, "unknown", entry.reason)
    derived = entry.derived
    footprint, plan = derived.footprint, derived.plan
    predicted = {} if footprint.verdict == "does not fit" else plan.predicted
    lines: tuple[str, ...] = ()
    if entry.smallest_device:
        lines = (f"{entry.smallest_device} holds it",)
    elif traces is not None and footprint.verdict != "fits" and plan.devices == 1:
        helpful = remedies(derived.prepared, traces, recomputes=plan.recompute)
        lines = tuple(map(remedy_line, helpful))
    return DeviceFit(
        device=entry.device.name,
        capacity_bytes=footprint.usable_bytes,
        verdict=footprint.verdict,
        reason=_reason(entry),
        terms=tuple(footprint.terms.items()),
        peak_bytes=footprint.driver,
        micro_batch=footprint.micro_batch,
        accumulation=len(plan.micro_batches),
        largest_micro_batch=derived.largest,
        **{name: predicted.get(name) for name in _PREDICTED},
        remedies=lines,
        choices=plan.choices,
    )


_PREDICTED = (
    "step_time_s",
    "total_time_s",
    "cost_usd",
    "energy_wh",
    "billion_tokens_s",
    "billion_tokens_usd",
    "tokens_per_s",
)


def _reason(entry: Surveyed) -> str:
    """`8 sequences of 1,024 tokens at a time take about 9.5 GiB of 14.6 GiB`."""
    footprint, recipe = entry.derived.footprint, entry.derived.prepared.recipe
    batch = f"{plural(footprint.micro_batch, 'sequence')} of {recipe.sequence_length:,} tokens"
    taken, usable = map(format_bytes, (footprint.driver.value, footprint.usable_bytes))
    size = f"about {taken} of {usable}"
    match footprint.verdict:
        case "fits":
            return f"{batch} at a time take {size}"
        case "uncertain":
            return f"{batch} at a time take {size}, which is too close to be sure"
    if footprint.micro_batch == 1:
        return f"even {batch} would take {size}"
    return f"{batch} at a time would take {size}"


def remedy_line(remedy: Remedy) -> str:
    """Return what a remedy changes and what then fits, in a line."""
    if remedy.largest:
        fits = f"up to {plural(remedy.largest, 'sequence')} at a time fit"
    elif remedy.footprint.verdict == "uncertain":
        fits = "one sequence may fit"
    else:
        fits = "one sequence still does not fit"
    how = f" ({remedy.set})" if remedy.set else ""
    size = format_bytes(remedy.footprint.driver.value)
    return f"{remedy.name}{how}: {size} for one sequence, {fits}; {remedy.change}"
