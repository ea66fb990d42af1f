"""*Will it fit?*: a question in, the recipe and what it takes on each device out. Numbers are those
of `brimful plan`; nothing here draws them.
"""

import functools
import threading
from dataclasses import dataclass
from typing import Literal

from brimful.base.errors import DeviceError
from brimful.base.units import format_bytes
from brimful.chains.plans import KeptTraces, survey_devices, this_machine
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.planning.plan import Choice, Prediction
from brimful.planning.survey import Remedy, remedies
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import PlanChoices, Recipe
from brimful.studio.question import Question, asked

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
            closely.
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
    """The answer.

    Attributes:
        recipe_yaml: The recipe as it was asked about, for `brimful plan FILE`.
        title: One line.
        devices: In the order they were asked for.
        notes: What else to know.
        parameters: Of the model; trainable ones among them.
        trainable: Parameters that train.
    """

    recipe_yaml: str
    title: str
    devices: tuple[DeviceFit, ...]
    notes: tuple[str, ...] = ()
    parameters: int = 0
    trainable: int = 0


def answer(question: Question, *, closely: bool = False, local_folders: bool = True) -> Fit:
    """What a question's recipe takes on each device.

    The first answer for a model and a method traces its step, which takes seconds; later ones reuse
    that.

    Args:
        question: As the page has it.
        closely: Also look for what would make it fit where it does not; the first time this traces
            more.
        local_folders: Whether a folder of this machine may be named; a page that strangers see says
            no.

    Raises:
        BrimfulError: the question cannot be answered; its message is for the page.
    """
    found = asked(question, local_folders=local_folders)
    with _ONE_AT_A_TIME:
        devices = _devices(question.devices, found.recipe)
        traces = _traces()
        surveyed = survey_devices(found.recipe, devices, traces, model=found.model)
        fits = tuple(_fit(entry, traces if closely else None) for entry in surveyed)
        traces.keep()
    counted = next(
        (entry.derived.footprint for entry in surveyed if isinstance(entry, Surveyed)), None
    )
    counts = (0, 0) if counted is None else (counted.parameters, counted.trainable)
    return Fit(found.to_yaml(), found.title, fits, found.notes, *counts)


@functools.cache
def _traces() -> KeptTraces:
    return KeptTraces()


def _devices(names: tuple[str, ...], recipe: Recipe) -> list[Device]:
    if not names:
        raise DeviceError("no device is chosen. Choose at least one.")
    return [
        _this_machine(recipe.plan) if name == "here" else catalog.get(name)
        for name in dict.fromkeys(names)
    ]


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
    found = (
        ()
        if traces is None or footprint.verdict == "fits"
        else remedies(derived.prepared, traces, recomputes=plan.recompute)
    )
    return DeviceFit(
        entry.device.name,
        footprint.usable_bytes,
        footprint.verdict,
        _reason(entry),
        tuple(footprint.terms.items()),
        footprint.driver,
        footprint.micro_batch,
        len(plan.micro_batches),
        derived.largest,
        **{name: predicted.get(name) for name in _PREDICTED},
        remedies=tuple(map(told, found)),
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
    footprint, recipe = entry.derived.footprint, entry.derived.prepared.recipe
    size = footprint.micro_batch
    what = f"{size} sequence{'s' * (size != 1)} of {recipe.sequence_length:,} tokens"
    numbers = (
        f"about {format_bytes(footprint.driver.value)} of {format_bytes(footprint.usable_bytes)}"
    )
    if footprint.verdict == "fits":
        return f"{what} at a time take {numbers}"
    if footprint.verdict == "uncertain":
        return f"{what} at a time take {numbers}, which is too close to be sure"
    return (
        f"even {what} would take {numbers}"
        if size == 1
        else f"{what} at a time would take {numbers}"
    )


def told(remedy: Remedy) -> str:
    """What a remedy changes and what then fits, in a line."""
    one = (
        "one sequence may fit"
        if remedy.footprint.verdict == "uncertain"
        else "one sequence still does not fit"
    )
    fits = (
        f"up to {remedy.largest} sequence{'s' * (remedy.largest != 1)} at a time fit"
        if remedy.largest
        else one
    )
    how = f" ({remedy.set})" if remedy.set else ""
    return (
        f"{remedy.name}{how}: {format_bytes(remedy.footprint.driver.value)} for one sequence,"
        f" {fits}; {remedy.change}"
    )
