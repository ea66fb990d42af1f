"""A run's evaluations on tasks: a summary and the answers of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_journal, read_json, records_lost
from brimful.base.types import Counts, Json, Numbers
from brimful.runs.files import EVALUATIONS_FOLDER
from brimful.runs.parsing import WHOLE, parse
from brimful.runs.scores import MetricValue


@dataclass(frozen=True, kw_only=True)
class TaskSummary:
    """How a model did on a task, and how it was asked.

    Attributes:
        prompt: "template", "plain" or "few-shot N".
        n, skipped: Examples that were asked, and those that were left out.
        errors: Kinds of failed answers with their counts.
        verifier: What judged the answers.
        isolation: Isolation of the sandbox that programs ran in.
        values: The file as it was written, for the conditions of a comparison.
    """

    task: str = ""
    version: str | None = None
    prompt: str = ""
    n: float | None = None
    skipped: float | None = None
    max_new_tokens: float | None = None
    temperature: float | None = None
    samples: float | None = None
    verifier: str = ""
    isolation: str = ""
    data: str = ""
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    errors: Counts = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    values: Json = field(default_factory=dict, repr=False, metadata=WHOLE)


@dataclass(frozen=True, kw_only=True)
class RecordedAnswer:
    """The model's answer to one example; of several samples the first, with the mean scores.

    Attributes:
        error: What is wrong with it, "" where nothing is.
        status, detail: The verdict of the verifier.
    """

    id: str = ""
    prompt: str = ""
    shots: str = ""
    reference: str = ""
    kind: str = ""
    scores: Numbers = field(default_factory=dict)
    completion: str = ""
    finish: str = ""
    error: str = ""
    status: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskEvaluations:
    """Every evaluation of a run on tasks, by task.

    Attributes:
        answers: Answers of each task whose answers can be read.
        problems: What is damaged.
    """

    summaries: Mapping[str, TaskSummary] = field(default_factory=dict)
    answers: Mapping[str, tuple[RecordedAnswer, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def summary_files(run_folder: Path) -> list[Path]:
    """Return every task's summary in a run, by name; nats of windows lie beside them."""
    files = (run_folder / EVALUATIONS_FOLDER).glob("*.json")
    return sorted(path for path in files if not path.stem.endswith("-nats"))


def read_evaluations(run_folder: Path, order: Sequence[str] = ()) -> TaskEvaluations:
    """Return the evaluations of a run, the tasks of `order` first."""
    places = {name: place for place, name in enumerate(order)}
    files = summary_files(run_folder)
    files.sort(key=lambda path: (places.get(path.stem, len(places)), path.name))
    summaries: dict[str, TaskSummary] = {}
    answers: dict[str, tuple[RecordedAnswer, ...]] = {}
    problems = []
    for path in files:
        try:
            summary = _summary(path)
        except (RunFolderError, OSError, ValueError) as error:
            problems.append(f"{error}.")
            continue
        if summary is None:
            problems.append(
                f"{EVALUATIONS_FOLDER}/{path.name} does not hold the summary of a task."
            )
            continue
        summaries[summary.task] = summary
        journal = path.with_suffix(".jsonl")
        try:
            answers[summary.task] = tuple(
                parse(RecordedAnswer, record) for record in read_journal(journal)
            )
        except (OSError, ValueError) as error:
            problems.append(f"{EVALUATIONS_FOLDER}/{journal.name} cannot be read: {error}")
        written = int(summary.n or 0) if journal.exists() else 0
        if lost := records_lost(journal, written):
            problems.append(
                f"{EVALUATIONS_FOLDER}/{journal.name}: {lost:,} answers damaged or missing."
            )
    names = {path.stem for path in files}
    problems += [
        f"{EVALUATIONS_FOLDER}/{path.stem}.json, the summary of {path.name}, is missing."
        for path in sorted((run_folder / EVALUATIONS_FOLDER).glob("*.jsonl"))
        if path.stem not in names
    ]
    return TaskEvaluations(summaries=summaries, answers=answers, problems=tuple(problems))


def _summary(path: Path) -> TaskSummary | None:
    values = read_json(path)
    if not isinstance(values.get("metrics"), dict):
        return None
    # A metric is written as a mapping; of anything else only the name is known.
    metrics = {
        name: value if isinstance(value, dict) else {} for name, value in values["metrics"].items()
    }
    summary = parse(TaskSummary, {"task": path.stem} | values | {"metrics": metrics})
    return summary if summary.metrics else None
