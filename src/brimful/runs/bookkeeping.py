"""What the small files beside a run's plan, journal and scores say, read leniently: its status, the
best checkpoint, hashes of files, samples of a chain and the comparison of a study.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from brimful.base.errors import RunFolderError
from brimful.base.rundir import SCHEMA_VERSION, read_json
from brimful.base.types import Json, JsonDict, Numbers
from brimful.runs.files import STATUS_FILE, STUDY_FILE
from brimful.runs.parsing import mapping, parse, parse_value


@dataclass(frozen=True, kw_only=True)
class DrawnCounts:
    """Samples of a round by their fate: kept, or the reason why not."""

    fates: Numbers = field(default_factory=dict)

    @property
    def kept(self) -> float | None:
        """How many samples are trained on; None where that is not known."""
        return self.fates.get("kept")


@dataclass(frozen=True, kw_only=True)
class DrawnSamples:
    """What a round of sampling wrote about its samples when it ended.

    Attributes:
        records: How many lines its journal has.
    """

    records: int = 0
    statistics: DrawnCounts = DrawnCounts()


@dataclass(frozen=True, kw_only=True)
class ComparedVariant:
    """A variant in the comparison of a study."""

    runs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StudyRecord:
    """study.json: what a study or a chain of rounds made.

    Attributes:
        comparison: Empty until all its runs were compared.
        left_out: Runs that were not trained, each with the reason.
    """

    comparison: Json = field(default_factory=dict)
    left_out: Json = field(default_factory=dict)

    @property
    def compared_runs(self) -> tuple[str, ...]:
        """Paths of the runs that were compared, variant by variant."""
        variants = parse_value(tuple[ComparedVariant, ...], self.comparison.get("variants")) or ()
        return tuple(run for variant in variants for run in variant.runs)


@dataclass(frozen=True, kw_only=True)
class _RecordedStatus:
    schema_version: int | None = None
    status: Literal["running", "stopped", "finished"] | None = None


def json_or_none(path: Path) -> JsonDict | None:
    """Return the object in a JSON file, None for anything else."""
    try:
        return read_json(path)
    except (RunFolderError, OSError):
        return None


def recorded_status(run_folder: Path) -> str | None:
    """Return the status that run.json names, "unreadable" where it names none that is known, None
    where there is no such file.
    """
    if not (run_folder / STATUS_FILE).exists():
        return None
    recorded = parse(_RecordedStatus, json_or_none(run_folder / STATUS_FILE) or {})
    is_known = recorded.schema_version == SCHEMA_VERSION and recorded.status is not None
    return recorded.status if is_known else "unreadable"


def read_study_record(study_folder: Path) -> StudyRecord | None:
    """Return what study.json says; None where it is missing or cannot be read."""
    values = json_or_none(study_folder / STUDY_FILE)
    return None if values is None else parse(StudyRecord, values)


def read_drawn_samples(path: Path) -> DrawnSamples | None:
    """Return what sampling.json says; None where it is missing, empty or cannot be read."""
    values = json_or_none(path)
    return parse(DrawnSamples, values) if values else None


def hashes_in(path: Path) -> Json:
    """Return the entries of a list of files with their hashes, by file name; empty where the list
    cannot be read.
    """
    return mapping((json_or_none(path) or {}).get("files"))


def best_step_of(checkpoint: Path) -> int | None:
    """Return the step with the best validation loss up to a checkpoint; None without one."""
    state = json_or_none(checkpoint / "state.json") or {}
    best_step: int | None = parse_value(int, mapping(state.get("progress")).get("best_step"))
    return best_step
