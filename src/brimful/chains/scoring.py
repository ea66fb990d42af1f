"""Finished runs, scored: likelihood of held-out text or answers, labels, and tasks. An overview: it
sees every stage.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from brimful.base.dotted import format_yaml
from brimful.base.errors import RequestError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically, write_text_atomically
from brimful.evaluation.lm_eval import PREFIX, evaluate_with_lm_eval, require_lm_eval
from brimful.evaluation.nats import FOLDER
from brimful.evaluation.task import Task, load_task
from brimful.evaluation.task_data import load_examples
from brimful.evaluation.task_run import evaluate_tasks
from brimful.generation.load import (
    recipe_of,
    trained_folder,
)
from brimful.hardware.probe import probe, torch_device
from brimful.kinds.run_data import AnyRunData, FinishedRun, gather, run_data_class
from brimful.recipe import Recipe
from brimful.report.live.progress import data_progress
from brimful.report.tuned import UNTUNED_FOLDER
from brimful.verify.sandbox import Sandbox

SCORES_FILE = "scores.json"


@dataclass(frozen=True)
class EvaluationRequest:
    """What to score beside or in place of the likelihood.

    Attributes:
        tasks: Names, `lm-eval:NAME` for the harness's; empty: the recipe's own, after the
            likelihood.
        paths: Where tasks' data lie, over the recipe's.
        max_examples: Per task, in place of the recipe's.
        accept_unsandboxed: Run generated programs where nothing isolates them.
        samples: Answers per example, in place of the task's number.
        temperature: They are drawn at, in place of the task's.
    """

    tasks: tuple[str, ...] = ()
    paths: Mapping[str, str] = field(default_factory=dict)
    max_examples: int | None = None
    accept_unsandboxed: bool = False
    samples: int | None = None
    temperature: float | None = None

    @property
    def sampling(self) -> tuple[str, ...]:
        """As overrides of a task."""
        chosen = {"samples": self.samples, "temperature": self.temperature}
        return tuple(
            f"sampling.{name}={value}" for name, value in chosen.items() if value is not None
        )


def evaluate(
    run_folder: Path,
    console: Console,
    *,
    split: str | None = None,
    stride: int | None = None,
    request: EvaluationRequest = EvaluationRequest(),
    untuned: bool = False,
) -> dict[str, Any]:
    """Score a finished run on its whole validation and test splits (or the one named) and on tasks;
    writes scores.json and evaluations/.

    Tasks that are named are all that is scored.

    Args:
        untuned: Score the model that the run tuned, as it was before, into the folder `untuned` of
            the run.

    Returns:
        By split the likelihood's record, under "layers" what goes on inside kernel attention and
        feedback alignment, under "tasks" each task's summary.

    Raises:
        RequestError: no such split, or a task cannot be run here; DataError: a task's data cannot
            be read.
    """
    return evaluate_into(
        run_folder / UNTUNED_FOLDER if untuned else run_folder,
        run_folder,
        console,
        split=split,
        stride=stride,
        request=request,
    )


def evaluate_into(
    folder: Path,
    run_folder: Path,
    console: Console,
    *,
    split: str | None = None,
    stride: int | None = None,
    request: EvaluationRequest = EvaluationRequest(),
) -> dict[str, Any]:
    """As `evaluate`; another folder than the run's own gets the scores of the untuned model."""
    recipe, untuned = recipe_of(run_folder), folder != run_folder
    only_splits = stride is None and request == EvaluationRequest()
    kind = run_data_class(recipe.kind)
    kind.refuse_evaluation(run_folder, untuned=untuned, only_splits=only_splits)
    run = finished_run(run_folder, console, untuned=untuned)
    if untuned:
        _describe_untuned(folder, run_folder, run.loaded.recipe)
    names = _splits(run_folder, run.data, split)
    tasks = request.tasks
    if not (tasks or split or stride or recipe.kind.gives_labels):
        tasks = tuple(recipe.evaluation.tasks)
    own, foreign = _checked(tasks, request.sampling)
    if foreign and request.sampling:
        raise RequestError(
            f"{', '.join(foreign)}: lm-eval draws answers as its own tasks say. Leave out"
            " --samples and --temperature."
        )
    _checked(tuple(request.paths))
    scores: dict[str, Any] = {}
    if not request.tasks:
        with data_progress(console) as progress:
            scores = run.data.score_finished(run, folder, names, stride, progress)
        _add_scores(folder, scores)
    if "validation" in scores and not untuned and (layers := run.data.look_into_layers(run)):
        _add_scores(folder, layers)
        scores |= layers
    if tasks:
        scores["tasks"] = _on_tasks(folder, run, own, foreign, request, console)
    return scores


def _add_scores(folder: Path, made: Mapping[str, Any]) -> None:
    path = folder / SCORES_FILE
    write_json_atomically(path, (read_json(path) if path.exists() else {}) | dict(made))


def refuse_unknown_tasks(recipe: Recipe) -> None:
    """Raises RequestError where the recipe names tasks, or files for tasks, that there are not."""
    _checked([*recipe.evaluation.tasks, *recipe.evaluation.data])


def refuse_unreadable_tasks(recipe: Recipe) -> None:
    """Read the tasks' data that are not the run's own, so that what lacks is told before the
    training and not after it.

    Raises:
        RequestError: no such task, or its harness is not installed; DataError: its data cannot be
            read.
    """
    own, foreign = _checked(recipe.evaluation.tasks)
    if foreign:
        require_lm_eval()
    for task in own:
        if task.data.run is None:
            load_examples(task, paths=recipe.evaluation.data, own={})


def discard_scores(run_folder: Path) -> None:
    """Remove the scores of weights that further training has replaced."""
    (run_folder / SCORES_FILE).unlink(missing_ok=True)
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)


def is_scored(folder: Path, recipe: Recipe) -> bool:
    """Whether a folder holds the likelihood and every task that the recipe asks for; an evaluation
    that was killed leaves some of them.
    """
    return (folder / SCORES_FILE).exists() and not _missing_tasks(folder, recipe)


def evaluate_rest(folder: Path, run_folder: Path, recipe: Recipe, console: Console) -> None:
    """As `evaluate_into`, but only what the recipe asks for and the folder does not hold yet.

    Raises:
        BrimfulError: as `evaluate`.
    """
    if not (folder / SCORES_FILE).exists():
        evaluate_into(folder, run_folder, console)
    if missing := _missing_tasks(folder, recipe):
        request = EvaluationRequest(missing, recipe.evaluation.data, recipe.evaluation.max_examples)
        evaluate_into(folder, run_folder, console, request=request)


def _missing_tasks(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    return tuple(
        task for task in recipe.evaluation.tasks if not _summary_file(folder, task).exists()
    )


def _summary_file(folder: Path, task: str) -> Path:
    return folder / FOLDER / f"{task.replace(':', '-')}.json"


def finished_run(run_folder: Path, console: Console, *, untuned: bool = False) -> FinishedRun:
    """Return a finished run with the data it was trained and validated on.

    Raises:
        RunFolderError: it is not finished, or its data changed; DataError: they cannot be read.
    """
    recipe = recipe_of(run_folder)
    if not untuned:
        trained_folder(run_folder)
    source = run_data_class(recipe.kind).source_of_finished(run_folder)
    with data_progress(console) as progress:
        data = gather(recipe, source, progress)
    refuse_changed_data(run_folder, data)
    return FinishedRun(run_folder, data, torch_device(probe("auto")), untuned)


def refuse_changed_data(run_folder: Path, data: AnyRunData) -> None:
    """Raises RunFolderError where data or tokenizer are not those the run was trained on."""
    path = run_folder / "data.json"
    stored = read_json(path).get("fingerprints", {}) if path.exists() else {}
    for name, now in data.fingerprints.items():
        if stored.get(name, now) != now:
            raise RunFolderError(
                f"the {name} of {run_folder} changed since it was trained on (fingerprint"
                f" {stored[name]}, now {now}). Put the old one back, start over with --fresh, or"
                " start a new run with run.name=NAME."
            )


def _splits(run_folder: Path, data: AnyRunData, split: str | None) -> list[str]:
    names = [split] if split else [name for name in ("validation", "test") if name in data.splits]
    if unknown := [name for name in names if name not in data.splits]:
        raise RequestError(
            f"{run_folder} has no split {unknown[0]!r}; it has {', '.join(data.splits)}."
        )
    return names


def _checked(tasks: Sequence[str], overrides: tuple[str, ...] = ()) -> tuple[list[Task], list[str]]:
    """Our own tasks, and the harness's by name; an unknown one is told before anything is
    scored.
    """
    own = [load_task(name, overrides) for name in tasks if not name.startswith(PREFIX)]
    return own, [name.removeprefix(PREFIX) for name in tasks if name.startswith(PREFIX)]


def _on_tasks(
    folder: Path,
    run: FinishedRun,
    own: list[Task],
    foreign: list[str],
    request: EvaluationRequest,
    console: Console,
) -> dict[str, Any]:
    subject, recipe = run.data.subject(run.loaded), run.data.recipe
    most = request.max_examples or recipe.evaluation.max_examples
    with ExitStack() as stack:
        progress = stack.enter_context(data_progress(console))
        sandbox = None
        if any(task.needs_sandbox for task in own):
            isolated = Sandbox(accept_unsandboxed=request.accept_unsandboxed)
            sandbox = stack.enter_context(isolated)
        results = evaluate_tasks(
            subject,
            own,
            own=run.data.examples,
            paths={**recipe.evaluation.data, **request.paths},
            max_examples=most,
            seed=recipe.seed,
            sandbox=sandbox,
            keep=lambda result: result.write(folder / FOLDER),
            progress=progress,
        )
    made = {result.task.name: result.to_json() for result in results}
    if foreign:
        summaries = evaluate_with_lm_eval(subject, foreign, max_examples=most, seed=recipe.seed)
        for summary in summaries:
            made[summary["task"]] = summary
            write_json_atomically(_summary_file(folder, summary["task"]), summary)
    return made


def _describe_untuned(folder: Path, run_folder: Path, recipe: Recipe) -> None:
    """Enough of a run folder for comparisons: what the model is, and the data it is scored on."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(
        folder / "recipe.yaml",
        format_yaml({"name": folder.name, "model": recipe.model, "untuned": True}),
    )
    write_json_atomically(folder / "data.json", read_json(run_folder / "data.json"))
