"""A run folder read once, leniently: what is there, and in words what is not."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from brimful.base.dotted import parse_yaml
from brimful.base.errors import RunFolderError
from brimful.base.manifest import require_sound
from brimful.base.rundir import CHECKSUM, read_journal
from brimful.base.types import Bounds, JsonDict
from brimful.hardware.monitored import Monitored, read_monitor
from brimful.planning.plan import Plan
from brimful.recipe.kinds import KINDS, Kind
from brimful.runs.deciding import OWN, lost_records, problem_of, read_object, read_recipe_text
from brimful.runs.facts import (
    DataFacts,
    DeviceFacts,
    EnvironmentFacts,
    MirrorFacts,
    RecipeFacts,
    SampledText,
)
from brimful.runs.files import (
    CHECKPOINTS_FOLDER,
    DATA_FILE,
    ENVIRONMENT_FILE,
    EVALUATIONS_FOLDER,
    JOURNAL_FILE,
    MIRROR_FILE,
    MODEL_FOLDER,
    PLAN_FILE,
    PURPOSE,
    RECIPE_FILE,
    SAMPLES_FILE,
    SCORES_FILE,
    STATUS_FILE,
)
from brimful.runs.parsing import parse
from brimful.runs.plans import interval_of, read_plan
from brimful.runs.records import (
    BaseRecord,
    CheckpointRecord,
    EvaluationRecord,
    EventRecord,
    LoaderRecord,
    OutOfMemoryRecord,
    RanksRecord,
    Record,
    SessionEnd,
    SessionStart,
    StepRecord,
    read_record,
)
from brimful.runs.scores import RunScores, read_scores
from brimful.runs.sessions import Session, sessions_of
from brimful.runs.tasks import TaskEvaluations, read_evaluations

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class RunFolder:
    """Everything that a run folder holds. What could not be read is empty, and `problems` says
    why.

    Attributes:
        plan: Plan of the last session; None where there is none.
        records: Records of the journal, in order.
        samples: Texts of the model.
        monitored: Samples of device and machine over all sessions; none in a run from before there
            was a monitor.
        problems: File name -> a sentence about what is missing or damaged.
    """

    folder: Path
    recipe: RecipeFacts
    plan: Plan | None
    environment: EnvironmentFacts
    data: DataFacts
    scores: RunScores
    records: tuple[Record, ...]
    samples: tuple[SampledText, ...]
    monitored: Monitored
    problems: dict[str, str]

    @property
    def name(self) -> str:
        return self.recipe.run.name or self.folder.resolve().name

    @cached_property
    def planned_device(self) -> DeviceFacts:
        """Return the device that the plan is for; nothing is known of it without a plan."""
        return parse(DeviceFacts, {} if self.plan is None else self.plan.device)

    @property
    def is_tuned(self) -> bool:
        """Return whether the run tunes a published model."""
        return bool(self.recipe.published_model) or self.data.base is not None

    @cached_property
    def kind(self) -> Kind:
        """Return the kind of run: of its method or, if that is unknown, what the scores show."""
        for kind in KINDS.values():
            if self.recipe.method in kind.methods:
                return kind
        if self.scores.labels:
            return KINDS["labels"]
        if any(score.is_masked for score in self.scores.likelihood.values()):
            return KINDS["masked"]
        return KINDS["examples" if self.is_tuned else "documents"]

    @cached_property
    def steps(self) -> tuple[StepRecord, ...]:
        return self.records_of(StepRecord)

    @cached_property
    def evaluations(self) -> tuple[EvaluationRecord, ...]:
        """Return the evaluations while training; those on tasks are in `tasks`."""
        return self.records_of(EvaluationRecord)

    @property
    def base_scores(self) -> tuple[BaseRecord, ...]:
        """Return the losses by which the tuned model is compared with its base."""
        return self.records_of(BaseRecord)

    @property
    def ranks(self) -> RanksRecord | None:
        """Return how the ranks got on by the last checkpoint; None for a run on one device."""
        records = [each for each in self.records_of(RanksRecord) if each.ranks]
        return records[-1] if records else None

    @cached_property
    def checkpoints(self) -> tuple[CheckpointRecord, ...]:
        return self.records_of(CheckpointRecord)

    @property
    def events(self) -> tuple[EventRecord, ...]:
        return self.records_of(EventRecord)

    @property
    def starts(self) -> tuple[SessionStart, ...]:
        return self.records_of(SessionStart)

    @property
    def out_of_memory(self) -> tuple[OutOfMemoryRecord, ...]:
        return self.records_of(OutOfMemoryRecord)

    @property
    def loader_records(self) -> tuple[LoaderRecord, ...]:
        return self.records_of(LoaderRecord)

    def records_of(self, kind: type[R]) -> tuple[R, ...]:
        """Return the records of one kind, in order."""
        return tuple(record for record in self.records if isinstance(record, kind))

    @cached_property
    def sessions(self) -> tuple[Session, ...]:
        return sessions_of(self.records)

    @property
    def lost_scores(self) -> bool:
        """Return whether scores.json, which was written once, is missing or cannot be read."""
        was_written = (self.folder / SCORES_FILE).exists() or _has_nats(self.folder)
        return SCORES_FILE in self.problems and was_written and self.scores == RunScores()

    @property
    def last_step(self) -> int:
        return max((record.step for record in self.records), default=0)

    @property
    def total_steps(self) -> int | None:
        return self.starts[-1].total_steps if self.starts else None

    @property
    def end(self) -> SessionEnd | None:
        """Return how the last session ended; None while it runs or when it was killed."""
        edges = [each for each in self.records if isinstance(each, SessionStart | SessionEnd)]
        last = edges[-1] if edges else None
        return last if isinstance(last, SessionEnd) else None

    @property
    def is_finished(self) -> bool:
        if self.end is None:
            return False
        return self.end.reason == "finished" or self.last_step == self.total_steps

    def predicted(self, name: str) -> float | None:
        """Return what the plan predicts, by the name of a prediction or "parameters"; None where
        it predicts nothing of that name.
        """
        if self.plan is None:
            return None
        if name == "parameters":
            return self.plan.parameters or None
        prediction = self.plan.predicted.get(name)
        return None if prediction is None else prediction.value

    def predicted_interval(self, name: str) -> Bounds | None:
        """Return the interval of a prediction, None where it has none."""
        prediction = self.plan.predicted.get(name) if self.plan else None
        return None if prediction is None else interval_of(prediction)

    @property
    def device_kind(self) -> str:
        """Return "cpu", "cuda" or "mps" as the plan has it, "" without a plan."""
        return str(self.plan.device.get("kind", "")) if self.plan else ""

    @cached_property
    def tasks(self) -> TaskEvaluations:
        """Return the evaluations on tasks, those of the recipe first; read when first asked for."""
        return read_evaluations(self.folder, self.recipe.evaluation.tasks)

    @cached_property
    def model_problem(self) -> str:
        """Return what is wrong with the exported model's files, empty where nothing is."""
        try:
            require_sound(self.folder / MODEL_FOLDER)
        except RunFolderError as error:
            return str(error)
        return ""

    @cached_property
    def mirror(self) -> MirrorFacts | None:
        """Return what mirror.json says, None where there is none to read."""
        try:
            return parse(MirrorFacts, read_object(self.folder / MIRROR_FILE))
        except RunFolderError:
            return None


def read_run(run_folder: Path) -> RunFolder:
    """Read what there is in a run folder.

    Raises:
        RunFolderError: no such folder, or none of a run's files in it.
    """
    if not run_folder.is_dir():
        raise RunFolderError(
            f"{run_folder} is not a folder. Give the folder of a run, such as runs/quickstart."
        )
    if not any((run_folder / name).exists() for name in PURPOSE):
        raise RunFolderError(
            f"{run_folder} is not a run folder: it has none of {', '.join(PURPOSE)}."
        )
    problems: dict[str, str] = {}
    files = {
        name: _read_file(run_folder / name, reader, problems) for name, reader in _READERS.items()
    }
    problems |= lost_records(run_folder) | _status_problem(run_folder)
    problems |= _mirror_problem(run_folder)
    if SCORES_FILE in problems and _has_nats(run_folder):
        problems[SCORES_FILE] += f" `brimful evaluate {run_folder.name}` writes it again."
    for name in _without_checksum(run_folder):
        problems.setdefault(
            name,
            f"{name} has no checksum, other files of the run have one: what it says was edited, or"
            " written by another program.",
        )
    recipe_file = run_folder / RECIPE_FILE
    recipe_text = _read_file(recipe_file, _TEXT, problems) if recipe_file.exists() else ""
    return folder_of(run_folder, files, recipe_text, read_monitor(run_folder), problems)


def _without_checksum(run_folder: Path) -> list[str]:
    """Return the JSON files of a run that have no checksum; none where an earlier version wrote all
    of them.
    """
    paths = [path for name in OWN if (path := run_folder / name).exists()]
    bare = [path.name for path in paths if f'"{CHECKSUM}":'.encode() not in path.read_bytes()]
    return bare if len(bare) < len(paths) else []


def _has_nats(run_folder: Path) -> bool:
    """Return whether a run was scored: the losses of single windows, or texts, are there."""
    return any((run_folder / EVALUATIONS_FOLDER).glob("*-nats.json"))


def _status_problem(run_folder: Path) -> dict[str, str]:
    """Return what is wrong with run.json, by its name."""
    path = run_folder / STATUS_FILE
    problem = problem_of(path) if path.exists() else ""
    return {STATUS_FILE: f"how the run stands is not known: {problem}"} if problem else {}


def _mirror_problem(run_folder: Path) -> dict[str, str]:
    """Return what is wrong with mirror.json, by its name; a copy in a mirror needs one."""
    path = run_folder / MIRROR_FILE
    is_copy = any((run_folder / CHECKPOINTS_FOLDER).glob("step-*/POINT.json"))
    problem = problem_of(path) if path.exists() or is_copy else ""
    return {MIRROR_FILE: f"how far its mirror is, is not known: {problem}"} if problem else {}


def empty_run(run_folder: Path) -> RunFolder:
    """Return the value of a folder that has none of a run's files yet."""
    files = {name: reader.empty for name, reader in _READERS.items()}
    return folder_of(run_folder, files, "", Monitored(), {})


def folder_of(
    run_folder: Path,
    files: JsonDict,
    recipe_text: str,
    monitored: Monitored,
    problems: dict[str, str],
) -> RunFolder:
    """Return the typed value of a run whose files were read."""
    return RunFolder(
        folder=run_folder,
        recipe=parse(RecipeFacts, files[RECIPE_FILE], text=recipe_text),
        plan=read_plan(files[PLAN_FILE]),
        environment=parse(EnvironmentFacts, files[ENVIRONMENT_FILE]),
        data=parse(DataFacts, files[DATA_FILE]),
        scores=read_scores(files[SCORES_FILE]),
        records=tuple(map(read_record, files[JOURNAL_FILE])),
        samples=tuple(parse(SampledText, each) for each in files[SAMPLES_FILE]),
        monitored=monitored,
        problems=problems,
    )


def _read_file(path: Path, reader: "_Reader", problems: dict[str, str]) -> Any:
    """Return what a file holds; an empty value, and a problem, where it cannot be read."""
    what = f"{path.name} ({PURPOSE[path.name]})"
    if not path.exists():
        problems[path.name] = f"{what} is not in the run folder."
        return reader.empty
    try:
        value = reader.read(path)
    except (RunFolderError, OSError, ValueError) as error:
        problems[path.name] = f"{what} cannot be read: {error}"
        return reader.empty
    if not isinstance(value, type(reader.empty)):
        problems[path.name] = (
            f"{what} holds {type(value).__name__}, not {type(reader.empty).__name__}."
        )
        return reader.empty
    return value


@dataclass(frozen=True)
class _Reader:
    """How a file is read, and what stands for it where it cannot be: a value of the same type."""

    read: Callable[[Path], Any]
    empty: Any


_JSON = _Reader(read_object, {})
_JSON_LINES = _Reader(lambda path: tuple(read_journal(path)), ())
_YAML = _Reader(lambda path: parse_yaml(read_recipe_text(path)), {})
_TEXT = _Reader(read_recipe_text, "")
_READERS = {
    RECIPE_FILE: _YAML,
    PLAN_FILE: _JSON,
    ENVIRONMENT_FILE: _JSON,
    DATA_FILE: _JSON,
    SCORES_FILE: _JSON,
    JOURNAL_FILE: _JSON_LINES,
    SAMPLES_FILE: _JSON_LINES,
}
