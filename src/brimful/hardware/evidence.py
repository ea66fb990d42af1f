"""Files of evidence: what runs measured beside what was predicted, to be sent to others and read as
truth. Plain JSON; no torch.

A file holds numbers, versions, names of devices and of published models. Names of recipes, people,
machines, folders and files, and texts of data are not in it, nor days and hours.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from brimful.base.env import cache_folder
from brimful.base.errors import RequestError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.types import Json, JsonDict, Numbers, Texts
from brimful.hardware.calibration import Described, RunNote, read_file

FORMAT = "brimful evidence"
FORMAT_VERSION = 1
_NUMBERS = ("measured", "predicted", "memory_terms", "time_terms")


@dataclass(frozen=True, kw_only=True)
class Evidence(Described):
    """One run.

    Attributes:
        device: Exact name of the device.
        month: Month in which it ended, as 2026-11.
        measured, predicted: Values by name, as in `Plan.predicted`; predictions without what
            earlier runs corrected.
        basis: What times were predicted from.
        versions: Versions of libraries.
    """

    device: str
    month: str
    measured: Numbers = field(hash=False)
    predicted: Numbers = field(hash=False)
    basis: str
    versions: Texts = field(hash=False)


def export(path: Path) -> int:
    """Write what every run on this machine measured beside its predictions; return the number of
    runs.

    Raises:
        RequestError: no run is remembered, or the file exists and is none of evidence.
        RunFolderError: it cannot be written.
    """
    if path.exists() and not _is_evidence(path):
        raise RequestError(
            f"{path} exists and is no file of evidence, so it is not overwritten. Name another"
            " file."
        )
    rows = []
    for file in sorted((cache_folder() / "calibration").glob("*.json")):
        kept = read_file(file)
        rows += [_row(kept.device, run) for run in kept.runs]
    if not rows:
        raise RequestError(
            "no run on this machine is remembered yet, so there is no evidence. Finish a run first,"
            " such as `brimful run quickstart`."
        )
    content = {"format": FORMAT, "format_version": FORMAT_VERSION, "runs": rows}
    write_json_atomically(path, content)
    return len(rows)


def read(path: Path) -> list[Evidence]:
    """Return the runs in a file that `export` wrote.

    Raises:
        RequestError: it is none, is damaged, or was written by a later version.
    """
    again = "`brimful evidence export FILE` writes one."
    try:
        content = read_json(path)
    except RunFolderError as error:
        raise RequestError(f"{error}. {again}") from error
    if content.get("format") != FORMAT:
        raise RequestError(f"{path} is no file of evidence. {again}")
    if content.get("format_version") != FORMAT_VERSION:
        raise RequestError(
            f"{path} has version {content.get('format_version')} of the format, this brimful reads"
            f" {FORMAT_VERSION}. {again}"
        )
    try:
        return [_evidence(row) for row in content["runs"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RequestError(f"{path} is damaged: {error!r}. {again}") from error


def _row(device: str, run: RunNote) -> JsonDict:
    return {
        "device": device,
        "month": time.strftime("%Y-%m", time.gmtime(run.made)),
        **{name: dict(getattr(run, name)) for name in _NUMBERS},
        "shown": {name: list(values) for name, values in run.shown.items()},
        "basis": run.basis,
        "memory_kind": run.memory_kind,
        "settings": dict(run.settings),
        "versions": dict(run.versions),
    }


def _evidence(row: Json) -> Evidence:
    numbers = {name: {each: float(value) for each, value in row[name].items()} for name in _NUMBERS}
    shown = {name: tuple(map(float, values)) for name, values in row["shown"].items()}
    if any(len(values) != 3 for values in shown.values()):
        raise ValueError("a prediction is not value, low and high")
    return Evidence(**{**row, **numbers, "shown": shown})


def _is_evidence(path: Path) -> bool:
    try:
        return read_json(path).get("format") == FORMAT
    except (RunFolderError, OSError):
        return False
