"""Planning a file of another tool on one device or many."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brimful.base.console import Say, silent
from brimful.base.errors import DeviceError, PlanError
from brimful.base.types import JsonDict
from brimful.chains.devices import process_bytes, rates_of, this_machine
from brimful.hardware import catalog
from brimful.hardware.groups import Group, parse
from brimful.integrations.other_tools.file import read_file
from brimful.integrations.other_tools.job import ReadJob, shared
from brimful.integrations.other_tools.planned import (
    JobTraces,
    LookedUpModel,
    PlannedJob,
    UnplannedJob,
    job_traces,
    look_up,
    plan_job,
)
from brimful.model import catalog as models
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
        on: Devices as the command line names them: here, all, names or groups such as `8 x H100`,
            separated by commas.
        trust_custom_code: Consent to run code that comes with a model.
        progress: Is told what is being done.

    Raises:
        RecipeError: the file cannot be read.
        DeviceError: no such device.
        PlanError: the model is unknown.
    """
    groups = _groups(on)
    read = [
        shared(
            read_file(path, tool, changes, native_bf16=group.device.abilities.bf16),
            group,
        )
        for group in groups
    ]
    jobs = [each.job for each in read]
    model = None
    if jobs[0] is not None:
        model = _model_of(jobs[0].model, read[0], trust_custom_code=trust_custom_code)
    with job_traces(progress) as traces:
        entries = [
            _entry(group, each, model, traces) for group, each in zip(groups, read, strict=True)
        ]
    return JobPlans(path.name, read, entries, model)


def _model_of(name: str, read: ReadJob, *, trust_custom_code: bool) -> LookedUpModel:
    try:
        return look_up(name, trust_custom_code=trust_custom_code)
    except PlanError as error:
        said = read.said_by["model"].rsplit(", ")[-1]
        key = said.partition(":")[0]
        base = tuned_further(name)
        or_that = f" If it is {base} tuned further, `{key}={base}` plans that." if base else ""
        raise PlanError(
            f"{said}: {error} After the file, `{key}=FOLDER` names a folder with the model's"
            f" config.json in its place.{or_that}"
        ) from error


def tuned_further(name: str) -> str | None:
    """Return the hub id of the catalog that stands in the name of a model or folder, the longest of
    several; None for none, or where the name says that the weights are stored in few bits.
    """
    letters, known = models.letters(name), {models.letters(each): each for each in models.names()}
    within = [each for each in known if each in letters and _SIZED.search(each)]
    return known[max(within, key=len)] if within and not _PACKED.search(letters) else None


_SIZED, _PACKED = re.compile(r"[a-z]{3}.*\d"), re.compile(r"gptq|awq|aqlm|\d(bit|bpw)|(int|fp)\d")


def _groups(on: str) -> list[Group]:
    if on == "all":
        return [Group(catalog.get(name)) for name in catalog.names()]
    names = [name.strip() for name in on.split(",") if name.strip()]
    if not names:
        raise DeviceError("--on names no device. Write here, all, or names separated by commas.")
    return [
        Group(this_machine(PlanChoices())) if name == "here" else parse(name)
        for name in dict.fromkeys(names)
    ]


def _entry(
    group: Group, read: ReadJob, model: LookedUpModel | None, traces: JobTraces
) -> PlannedJob | UnplannedJob:
    device, named = group.device, group.named_device
    if read.job is None or model is None:
        keys = ", ".join(each.key for each in read.unknown)
        return UnplannedJob(named, f"not understood: {keys}")
    try:
        planned = plan_job(
            read.job,
            model,
            device,
            traces,
            None if device.architecture else rates_of(device),
            process_bytes=process_bytes(device),
            devices=group.count,
        )
    except PlanError as error:
        return UnplannedJob(named, str(error))
    return replace(planned, device=named)
