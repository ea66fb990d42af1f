"""Planning a file of another tool on one device or many."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.base.console import Say, silent
from brimful.base.errors import DeviceError, PlanError, RequestError
from brimful.base.types import JsonDict
from brimful.chains.devices import process_bytes, rates_of, this_machine
from brimful.hardware import catalog
from brimful.hardware.device import Device
from brimful.hardware.groups import is_group
from brimful.other_trainers.file import read_file
from brimful.other_trainers.job import ReadJob
from brimful.other_trainers.planned import (
    JobTraces,
    LookedUpModel,
    PlannedJob,
    UnplannedJob,
    job_traces,
    look_up,
    plan_job,
)
from brimful.recipe import PlanChoices
from brimful.report.plan.jobs import described


@dataclass(frozen=True)
class JobPlans:
    """A file of another tool on devices.

    Attributes:
        name: The file.
        read: What it says, by device: some defaults depend on that.
        entries: The devices, in the order asked for.
        model: The job's model; None where something that decides is not understood.
    """

    name: str
    read: Sequence[ReadJob]
    entries: Sequence[PlannedJob | UnplannedJob]
    model: LookedUpModel | None

    def to_json(self) -> JsonDict:
        """Plain values for JSON."""
        first = self.read[0]
        return {
            "file": self.name,
            "tool": first.tool.title,
            "tool_version": first.tool.version,
            "facts": {name: described(name, value) for name, value in first.values.items()},
            "said_by": dict(first.said_by),
            "assumed": list(first.assumed),
            "unknown": [each.describe() for each in first.unknown],
            "devices": [entry.to_json() for entry in self.entries],
        }


def plan_file(
    path: Path,
    tool: str,
    changes: Sequence[str] = (),
    on: str = "here",
    *,
    trust_custom_code: bool = False,
    progress: Say = silent,
) -> JobPlans:
    """Plan the job that a file of another tool describes.

    Args:
        path: The file.
        tool: The tool's name.
        changes: Changes as `key=value`, in the tool's keys.
        on: Devices as the command line names them: here, all, or names separated by commas.
        trust_custom_code: Consent to run code that comes with a model.
        progress: Is told what is being done.

    Raises:
        RecipeError: the file cannot be read.
        DeviceError: no such device.
        RequestError: several devices are to share the job.
        PlanError: the model is unknown.
    """
    devices = _devices(on)
    read = [read_file(path, tool, changes, native_bf16=device.abilities.bf16) for device in devices]
    jobs = [each.job for each in read]
    model = None
    if jobs[0] is not None:
        model = _model_of(jobs[0].model, read[0], trust_custom_code=trust_custom_code)
    with job_traces(progress) as traces:
        entries = [
            _entry(device, each, model, traces) for device, each in zip(devices, read, strict=True)
        ]
    return JobPlans(path.name, read, entries, model)


def _model_of(name: str, read: ReadJob, *, trust_custom_code: bool) -> LookedUpModel:
    try:
        return look_up(name, trust_custom_code=trust_custom_code)
    except PlanError as error:
        said = read.said_by["model"].rsplit(", ")[-1]
        key = said.partition(":")[0]
        raise PlanError(
            f"{said}: {error} After the file, `{key}=FOLDER` names a folder with the model's"
            " config.json in its place."
        ) from error


def _devices(on: str) -> list[Device]:
    if on == "all":
        return [catalog.get(name) for name in catalog.names()]
    names = [name.strip() for name in on.split(",") if name.strip()]
    if not names:
        raise DeviceError("--on names no device. Write here, all, or names separated by commas.")
    if shared := next((name for name in names if is_group(name)), None):
        raise RequestError(
            f"--on {shared!r}: files of other tools are planned for one device. For several that"
            " share a job, plan the recipe: --as-recipe prints it."
        )
    return [
        this_machine(PlanChoices()) if name == "here" else catalog.get(name)
        for name in dict.fromkeys(names)
    ]


def _entry(
    device: Device, read: ReadJob, model: LookedUpModel | None, traces: JobTraces
) -> PlannedJob | UnplannedJob:
    if read.job is None or model is None:
        keys = ", ".join(each.key for each in read.unknown)
        return UnplannedJob(device, f"not understood: {keys}")
    try:
        return plan_job(
            read.job,
            model,
            device,
            traces,
            rates_of(device),
            process_bytes=process_bytes(device),
        )
    except PlanError as error:
        return UnplannedJob(device, str(error))
