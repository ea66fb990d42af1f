"""Planning as a whole: a recipe on one device or on many. Nothing here imports torch unless a trace has to be made or this machine is asked."""

from collections.abc import Iterator
from contextlib import contextmanager

from brimful.base.env import cache_folder
from brimful.base.errors import DeviceError, PlanError
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.planning.derive import Derived, Facts, derive, derive_with_memory
from brimful.planning.memory import Replays
from brimful.planning.plan import Plan
from brimful.planning.specs import ModelFacts, model_facts
from brimful.planning.step import StepSpec
from brimful.planning.survey import Tracer, prepare, remedies, table_sizes
from brimful.planning.surveyed import Surveyed, Unplanned
from brimful.recipe import Recipe
from brimful.rehearsal.store import StoredTraces, canonical_step


class KeptTraces:
    """Traces of declared steps and what replaying them gave, kept in the user's cache folder; a Tracer."""

    def __init__(self) -> None:
        self._folder = cache_folder() / "traces"
        self._replays: dict[StepSpec, tuple[StoredTraces, Replays, int]] = {}

    def __call__(self, spec: StepSpec) -> Replays:
        key = canonical_step(spec)
        if key not in self._replays:
            stored = StoredTraces(key, self._folder)
            known = stored.read_known()
            self._replays[key] = (stored, Replays(stored, known), len(known))
        return self._replays[key][1]

    def keep(self) -> None:
        """Write what was found out since."""
        for key, (stored, replays, written) in self._replays.items():
            if len(replays.known) > written:
                stored.write_known(replays.known)
                self._replays[key] = (stored, replays, len(replays.known))


@contextmanager
def kept_traces() -> Iterator[Tracer]:
    """Traces of declared steps, replayed once for all devices with the same kernels; what was found out is kept at the end, also of a failure."""
    kept = KeptTraces()
    try:
        yield kept
    finally:
        kept.keep()


def plan(recipe: Recipe, device: Device | str | None = None, *, trust_custom_code: bool = False) -> Plan:
    """How a recipe runs on a device: choices, the micro-batch, and the peak memory term by term.

    Args:
        recipe: What to train.
        device: A Device, the exact name of a catalog row, or None for the one of this machine that the recipe would use.
        trust_custom_code: Consent to run code that comes with a published model.

    Raises:
        PlanError: it does not fit, or cannot be traced.
        DeviceError: no such device.
    """
    chosen = device if isinstance(device, Device) else catalog.get(device) if device is not None else here(recipe)
    facts = Facts(process_bytes=process_bytes(chosen), model=model_facts(recipe, trust_custom_code=trust_custom_code))
    with kept_traces() as traces:
        return derive(recipe, chosen, traces, facts)


def survey(recipe: Recipe, on: str = "here", *, trust_custom_code: bool = False) -> list[Surveyed | Unplanned]:
    """A recipe on the devices that `on` names.

    Args:
        recipe: What to train.
        on: "here", "all" (the whole catalog), or exact names separated by commas, "here" among them.
        trust_custom_code: Consent to run code that comes with a published model.

    Raises:
        DeviceError: no such device.
        PlanError: the only device asked for cannot be planned for; or the model is no model.
    """
    devices = devices_of(recipe, on)
    model = model_facts(recipe, trust_custom_code=trust_custom_code)
    with kept_traces() as traces:
        return _survey(recipe, devices, traces, model)


def _survey(recipe: Recipe, devices: list[Device], traces: Tracer, model: ModelFacts) -> list[Surveyed | Unplanned]:
    if len(devices) == 1:
        return [_closely(recipe, devices[0], traces, Facts(process_bytes=process_bytes(devices[0]), model=model))]
    surveyed: list[Surveyed | Unplanned] = []
    for device in devices:
        try:
            surveyed.append(Surveyed(derive_with_memory(recipe, device, traces, Facts(process_bytes=process_bytes(device), model=model))))
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
        raise DeviceError("--on names no device. Write here, all, or exact names separated by commas.")
    return [here(recipe) if name == "here" else catalog.get(name) for name in names]


def here(recipe: Recipe) -> Device:
    """The device of this machine that a recipe would use; a CPU's matrix rates are measured, which takes about half a second."""
    from brimful.hardware.calibrate import measure_matrix_rates  # noqa: PLC0415 - this and the next bring torch
    from brimful.hardware.probe import probe, torch_device  # noqa: PLC0415

    device = probe(recipe.plan.device)
    if device.kind != "cpu":
        return device
    return device.with_rates(measure_matrix_rates(torch_device(device), ("fp32", "bf16")), "matrix rates measured")


def process_bytes(device: Device) -> int:
    """Memory this process holds already, where the device shares it."""
    if device.kind != "cpu":
        return 0
    import torch  # noqa: PLC0415 - as above

    from brimful.training.meter import peak_memory_bytes  # noqa: PLC0415

    return peak_memory_bytes(torch.device("cpu"))


def _closely(recipe: Recipe, device: Device, traces: Tracer, facts: Facts) -> Surveyed:
    derived = derive_with_memory(recipe, device, traces, facts)
    sizes = table_sizes(derived.footprint.micro_batch, derived.memory.largest(recipe.effective_batch), recipe.effective_batch)
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
        if device.kind == "cuda" and device.memory_bytes > min(needed_bytes, derived.prepared.device.memory_bytes):
            prepared = prepare(recipe, device, model=derived.prepared.model)
            if prepared.memory(traces, recompute=derived.plan.recompute).verdict(1) == "fits":
                return device.name
    return None
