"""Planning as a whole: a recipe on one device or on many. Nothing here imports torch unless a trace
has to be made or this machine is asked.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.base.env import cache_folder
from brimful.base.errors import DeviceError, PlanError, RequestError
from brimful.hardware import calibration, catalog, fitted
from brimful.hardware.device import Device
from brimful.hardware.guessed import guessed_rates
from brimful.hardware.rates import Rates
from brimful.planning.budget import Budget, BudgetCheck, Offer, Sessions, answer, ranked, sessions
from brimful.planning.cost import Conditions, checkpoint_seconds, conditions_of, costed, whole_run
from brimful.planning.derive import (
    Derived,
    Facts,
    derive,
    derive_with_memory,
    refuse_what_cannot_fit,
)
from brimful.planning.memory import Replays
from brimful.planning.pinned import save_plan
from brimful.planning.plan import Plan
from brimful.planning.specs import ModelFacts, model_facts
from brimful.planning.step import StepSpec
from brimful.planning.survey import Tracer, prepare, remedies, table_sizes
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import PlanChoices, Recipe
from brimful.rehearsal.store import StoredFamilies, StoredTraces, canonical_step

if TYPE_CHECKING:
    from brimful.rehearsal.verify import Verification


STEPS_IN_MEMORY = 48
"""Of a process that answers many questions; a step has a few MB."""


class KeptTraces:
    """Traces of declared steps and what replaying them gave, kept in the user's cache folder; a
    Tracer.
    """

    def __init__(self) -> None:
        self._folder = cache_folder() / "traces"
        self._families = StoredFamilies(self._folder)
        self._replays: dict[StepSpec, tuple[StoredTraces, Replays, int]] = {}

    def __call__(self, spec: StepSpec) -> Replays:
        key = canonical_step(spec)
        if key not in self._replays:
            stored = StoredTraces(key, self._folder, self._families)
            known = stored.read_known()
            self._replays[key] = (stored, Replays(stored, known), len(known))
        kept = self._replays[key] = self._replays.pop(key)  # the last used is the last to go
        return kept[1]

    def keep(self) -> None:
        """Write what was found out since, and let go of what a later question finds again
        quickly.
        """
        for key, (stored, replays, written) in self._replays.items():
            if len(replays.known) > written:
                stored.write_known(replays.known)
                self._replays[key] = (stored, replays, len(replays.known))
            replays.release()
        while len(self._replays) > STEPS_IN_MEMORY:
            self._replays.pop(next(iter(self._replays)))


@dataclass(frozen=True)
class Limits:
    """What a user sets beside recipe and devices.

    Attributes:
        budget: Time or money the run may take.
        session_s: Length after which a session is killed.
        prices: US dollars an hour by device name; "" is every device.
    """

    budget: Budget | None = None
    session_s: float | None = None
    prices: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Answers:
    """What comes of the limits, by device name."""

    budget: Mapping[str, BudgetCheck] = field(default_factory=dict)
    sessions: Mapping[str, Sessions] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON; nothing where nothing was asked."""
        budget = {device: entry.to_json() for device, entry in self.budget.items()}
        cut = {device: entry.to_json() for device, entry in self.sessions.items()}
        return ({"budget": budget} if budget else {}) | ({"sessions": cut} if cut else {})


@contextmanager
def kept_traces() -> Iterator[Tracer]:
    """Traces of declared steps, replayed once for all devices with the same kernels; what was found
    out is kept at the end, also of a failure.
    """
    kept = KeptTraces()
    try:
        yield kept
    finally:
        kept.keep()


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


def facts_of(device: Device, **known: Any) -> Facts:
    """What is known of a device beside its row: memory this process holds, its rates, and how
    earlier runs compared with their predictions.
    """
    rates = rates_of(device)
    correction = None
    if rates is not None and device.is_present:
        basis = calibration.basis_of(rates, device)
        correction = calibration.correction(
            device.name, "step_time_s", basis=basis, share=rates.share
        )
    return Facts(process_bytes=process_bytes(device), rates=rates, correction=correction, **known)


def rates_of(device: Device) -> Rates | None:
    """The device's rates: measured on it, else fitted on published runs, else assumed; None where
    nothing is known.
    """
    calibrated = calibration.load(device, device.threads) if device.is_present else None
    return calibrated.rates if calibrated else fitted.rates_of(device) or guessed_rates(device)


def conditions(device: Device, prices: Mapping[str, float] | None = None) -> Conditions:
    """What is known of runs on a device: price and power from the catalog, the disk from its
    calibration.
    """
    calibrated = calibration.load(device) if device.is_present else None
    disk = calibrated.extras.get("disk_bytes_per_s") if calibrated else None
    return conditions_of(device.name, prices, disk_bytes_per_s=disk)


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
        surveyed = _survey(recipe, devices, traces, model)
    return [
        _costed(entry, prices or {}) if isinstance(entry, Surveyed) else entry for entry in surveyed
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
    surveyed = _each(recipe, devices, traces, model)
    return [
        _costed(entry, prices or {}) if isinstance(entry, Surveyed) else entry for entry in surveyed
    ]


def answers(recipe: Recipe, surveyed: Sequence[Surveyed | Unplanned], limits: Limits) -> Answers:
    """What comes of a budget and of sessions on every device that holds the recipe.

    A single device that does not surely keep to the budget is answered with the devices of the
    catalog that do.

    Raises:
        RequestError: the only device's time or price is unknown, or a session is too short; of
            several devices, all of them.
    """
    if limits.budget is None and limits.session_s is None:
        return Answers()
    held = [
        entry
        for entry in surveyed
        if isinstance(entry, Surveyed) and entry.verdict != "does not fit"
    ]
    budget: dict[str, BudgetCheck] = {}
    cut: dict[str, Sessions] = {}
    problems = []
    for entry in held:
        name, plan, known = (
            entry.device.name,
            entry.derived.plan,
            conditions(entry.device, limits.prices),
        )
        try:
            total_steps = _known_length(recipe, entry, limits)
            if limits.session_s is not None:
                cut[name] = sessions(
                    limits.session_s, plan.predicted, checkpoint_seconds(recipe, plan, known).value
                )
            if limits.budget is not None:
                budget[name] = answer(
                    limits.budget, functools.partial(whole_run, recipe, plan, known), total_steps
                )
        except RequestError as error:
            problems.append(error)
    if held and len(problems) == len(held):
        raise problems[0]
    if (
        limits.budget is not None
        and len(surveyed) == 1
        and held
        and budget[held[0].device.name].verdict != "fits"
    ):
        name = held[0].device.name
        budget[name] = replace(
            budget[name], others=_catalog_offers(recipe, held[0], limits.budget, limits.prices)
        )
    return Answers(budget, cut)


def refuse_to_save(recipe: Recipe, on: str) -> None:
    """Say before anything is planned that several devices, or variants of a study, have several
    plans.

    Raises:
        RequestError: several devices, or a study.
    """
    _refuse_several(on, "--save writes")
    if recipe.study is not None:
        raise RequestError(
            f"--save writes the plan of one run, but {recipe.name} is a study of several. With"
            " study=null it is one run."
        )


def _refuse_several(on: str, option: str) -> None:
    if on == "all" or "," in on.strip(" ,"):
        raise RequestError(
            f"{option} the plan of one device. Name it: --on here, or one exact name."
        )


def save_surveyed(path: Path, recipe: Recipe, surveyed: Sequence[Surveyed | Unplanned]) -> None:
    """Write the plan of the only device, for `load_plan`.

    Raises:
        PlanError: the recipe does not fit the device.
        RunFolderError: the file cannot be written.
    """
    (entry,) = surveyed
    if isinstance(entry, Unplanned):
        raise PlanError(f"there is no plan to save: {entry.reason}")
    refuse_what_cannot_fit(entry.derived)
    save_plan(path, recipe, entry.derived.plan)


def refuse_to_verify(recipe: Recipe, on: str) -> None:
    """Say before anything is planned what cannot be verified.

    Raises:
        RequestError: several devices, of which each has another plan; or the recipe tunes a
            published model.
    """
    _refuse_several(on, "--verify runs")
    if isinstance(recipe.model, str):
        raise RequestError(
            "--verify runs a step of a smaller model with fresh weights, so it is for fresh models"
            f" only; {recipe.name} tunes {recipe.model}. Leave --verify out."
        )


def verified(recipe: Recipe, surveyed: Sequence[Surveyed | Unplanned]) -> "Verification":
    """One optimizer step of the only device's plan beside the plainest one; see
    `brimful.rehearsal.verify`.
    """
    from brimful.rehearsal.verify import verify  # noqa: PLC0415 - brings torch

    (entry,) = (entry for entry in surveyed if isinstance(entry, Surveyed))
    return verify(recipe, entry.derived.plan, entry.device)


def _known_length(recipe: Recipe, entry: Surveyed, limits: Limits) -> int:
    """Steps of the run. RequestError with the way out where that, time or price is not known."""
    device, plan = entry.device, entry.derived.plan
    if "step_time_s" not in plan.predicted:
        raise RequestError(
            f"the time of {recipe.name} on {device.name} cannot be predicted: no rate is known"
            " for it."
        )
    if plan.total_steps is None:
        raise RequestError(
            f"{recipe.name} trains for {recipe.training.epochs:g} epochs of data that are not read"
            " yet, so its length is unknown. Say how long it is with training.steps=N or"
            " training.tokens=N."
        )
    if limits.budget and limits.budget.kind == "money" and "cost_usd" not in plan.predicted:
        raise RequestError(
            f"no price is known for {device.name}. Say what an hour costs in US dollars:"
            " --price 2.5"
        )
    return plan.total_steps


def _catalog_offers(
    recipe: Recipe, entry: Surveyed, budget: Budget, prices: Mapping[str, float]
) -> tuple[Offer, ...]:
    """What the run takes on every other NVIDIA or AMD device of the catalog that surely holds it
    and whose time and price are known.
    """
    named = {name: price for name, price in prices.items() if name}
    devices = [
        device
        for name in catalog.names()
        if (device := catalog.get(name)).kind == "cuda" and device.name != entry.device.name
    ]
    if budget.kind == "money":
        devices = [device for device in devices if conditions_of(device.name, named).price]
    with kept_traces() as traces:
        others = [
            _costed(other, named)
            for other in _each(recipe, devices, traces, entry.derived.prepared.model)
            if isinstance(other, Surveyed)
        ]
    found = [
        (other.device.name, other.derived.plan.predicted)
        for other in others
        if other.verdict == "fits"
    ]
    offers = [
        Offer(name, predicted["total_time_s"], predicted.get("cost_usd"))
        for name, predicted in found
        if "total_time_s" in predicted
    ]
    return tuple(ranked(offers, budget))


def _costed(entry: Surveyed, prices: Mapping[str, float]) -> Surveyed:
    derived = entry.derived
    plan = costed(derived.prepared.recipe, derived.plan, conditions(entry.device, prices))
    return replace(entry, derived=replace(derived, plan=plan))


def _survey(
    recipe: Recipe, devices: list[Device], traces: Tracer, model: ModelFacts
) -> list[Surveyed | Unplanned]:
    if len(devices) == 1:
        return [_closely(recipe, devices[0], traces, facts_of(devices[0], model=model))]
    return _each(recipe, devices, traces, model)


def _each(
    recipe: Recipe, devices: Sequence[Device], traces: Tracer, model: ModelFacts
) -> list[Surveyed | Unplanned]:
    surveyed: list[Surveyed | Unplanned] = []
    for device in devices:
        try:
            surveyed.append(
                Surveyed(derive_with_memory(recipe, device, traces, facts_of(device, model=model)))
            )
        except (PlanError, DeviceError) as error:
            surveyed.append(Unplanned(device, str(error)))
    return surveyed


def devices_of(recipe: Recipe, on: str) -> list[Device]:
    """The devices that "here", "all" or a list of exact names stand for.

    Raises:
        DeviceError: no such device.
    """
    if on == "all":
        return [catalog.get(name) for name in catalog.names()]
    names = [name.strip() for name in on.split(",") if name.strip()]
    if not names:
        raise DeviceError(
            "--on names no device. Write here, all, or exact names separated by commas."
        )
    return [here(recipe) if name == "here" else catalog.get(name) for name in names]


def here(recipe: Recipe) -> Device:
    """The device of this machine that a recipe would use; a CPU's matrix rates are measured, which
    takes about half a second.
    """
    return this_machine(recipe.plan)


def this_machine(plan: PlanChoices) -> Device:
    """The same by what the recipe fixes of its plan."""
    # This and the next bring torch.
    from brimful.hardware.calibrate import (  # noqa: PLC0415
        measure_matrix_rates,
    )
    from brimful.hardware.probe import probe, torch_device  # noqa: PLC0415

    device = probe(plan.device)
    if device.kind != "cpu":
        return device
    measured = device.with_rates(
        measure_matrix_rates(torch_device(device), ("fp32", "bf16")), "matrix rates measured"
    )
    threads = plan.threads
    if threads == "auto" or device.threads is None:
        return measured
    rates = {
        dtype: rate * min(threads, device.threads) / device.threads
        for dtype, rate in measured.dense_flop_per_s.items()
    }
    return replace(measured.with_rates(rates, f"for {threads} threads"), threads=threads)


def process_bytes(device: Device) -> int:
    """Memory this process holds already, where the device shares it."""
    if device.kind != "cpu":
        return 0
    import torch  # noqa: PLC0415 - as above

    from brimful.training.meter import peak_memory_bytes  # noqa: PLC0415

    return peak_memory_bytes(torch.device("cpu"))


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
