"""Finished runs, scored: likelihood of held-out text or answers, labels, and tasks. An overview: it
sees every stage.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console

from brimful.base.dotted import format_yaml
from brimful.base.errors import PlanError, RequestError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically, write_text_atomically
from brimful.data.chat import Template
from brimful.data.examples import ExampleSplit
from brimful.data.tokens import TokenSplit
from brimful.evaluation.layers import has_layers_to_look_at, measure_layers
from brimful.evaluation.lm_eval import PREFIX, evaluate_with_lm_eval, require_lm_eval
from brimful.evaluation.nats import FOLDER, Nats, write_nats
from brimful.evaluation.task import Task, load_task
from brimful.evaluation.task_data import load_examples
from brimful.evaluation.task_prompts import Subject, text_ending_of
from brimful.evaluation.task_run import evaluate_tasks
from brimful.generation.load import (
    LoadedRun,
    base_of,
    load_run,
    load_untuned,
    recipe_of,
    trained_folder,
)
from brimful.hardware.probe import probe, torch_device
from brimful.kinds.labels import LabelledRunData
from brimful.kinds.run_data import AnyRunData, ScoringOptions, gather
from brimful.planning.plan import Plan, plan_from_json
from brimful.planning.step import EVALUATION_FACTOR
from brimful.recipe import Recipe
from brimful.report.live.progress import data_progress
from brimful.report.tuned import UNTUNED_FOLDER
from brimful.runs.runfiles import LAYERS
from brimful.verify.sandbox import Sandbox

SCORES_FILE = "scores.json"


@dataclass(frozen=True)
class Asked:
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
    asked: Asked = Asked(),
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
        asked=asked,
    )


def evaluate_into(
    folder: Path,
    run_folder: Path,
    console: Console,
    *,
    split: str | None = None,
    stride: int | None = None,
    asked: Asked = Asked(),
) -> dict[str, Any]:
    """As `evaluate`; another folder than the run's own gets the scores of the untuned model."""
    if recipe_of(run_folder).kind.gives_labels:
        return _labels(folder, run_folder, console, split, stride, asked)
    with finished_run(run_folder, console, untuned=folder != run_folder) as (
        loaded,
        material,
        device,
    ):
        if folder != run_folder:
            _describe_untuned(folder, run_folder, loaded)
        names = _splits(run_folder, material, split)
        tasks = asked.tasks or (() if split or stride else tuple(loaded.recipe.evaluation.tasks))
        own, foreign = _checked(tasks, asked.sampling)
        if foreign and asked.sampling:
            raise RequestError(
                f"{', '.join(foreign)}: lm-eval draws answers as its own tasks say. Leave out"
                " --samples and --temperature."
            )
        _checked(tuple(asked.paths))
        made: dict[str, Any] = {}
        if not asked.tasks:
            made = _likelihoods(
                folder, loaded, material, device, names, stride, console, plan_of(run_folder)
            )
        if "validation" in made and folder == run_folder:
            made |= _layers(folder, loaded, material)
        if tasks:
            made["tasks"] = _on_tasks(folder, loaded, material, own, foreign, asked, console)
    return made


def _labels(
    folder: Path,
    run_folder: Path,
    console: Console,
    split: str | None,
    stride: int | None,
    asked: Asked,
) -> dict[str, Any]:
    """A classifier's scores on its own splits."""
    if folder != run_folder:
        raise RequestError(
            f"{run_folder.name} is a classifier: before it was tuned its head knew no labels. Leave"
            " out --untuned."
        )
    if stride is not None or asked != Asked():
        raise RequestError(
            f"{run_folder.name} is a classifier: it is scored on the labels of its own splits."
            " Leave out tasks and all but --split."
        )
    device = torch_device(probe("auto"))
    with data_progress(console) as progress:
        material = gather(recipe_of(run_folder), str(trained_folder(run_folder)), progress)
        refuse_changed_data(run_folder, material)
        names = _splits(run_folder, material, split)
        labelled = cast(LabelledRunData, material)
        made = labelled.score_labels(run_folder, names, device, progress)
    _add_scores(run_folder, made)
    return made


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
        asked = Asked(missing, recipe.evaluation.data, recipe.evaluation.max_examples)
        evaluate_into(folder, run_folder, console, asked=asked)


def _missing_tasks(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    return tuple(
        task for task in recipe.evaluation.tasks if not _summary_file(folder, task).exists()
    )


def _summary_file(folder: Path, task: str) -> Path:
    return folder / FOLDER / f"{task.replace(':', '-')}.json"


@contextmanager
def finished_run(
    run_folder: Path, console: Console, *, untuned: bool = False
) -> Iterator[tuple[LoadedRun, AnyRunData, torch.device]]:
    """A run's model (or the one it tuned) and the very data it was trained and validated on."""
    device = torch_device(probe("auto"))
    loaded = (
        load_untuned(run_folder, device) if untuned else load_run(run_folder, device, torch.float32)
    )
    with data_progress(console) as progress:
        material = gather(loaded.recipe, base_of(run_folder), progress)
    refuse_changed_data(run_folder, material)
    yield loaded, material, device


def refuse_changed_data(run_folder: Path, material: AnyRunData) -> None:
    """Raises RunFolderError where data or tokenizer are not those the run was trained on."""
    path = run_folder / "data.json"
    stored = read_json(path).get("fingerprints", {}) if path.exists() else {}
    for name, now in material.fingerprints.items():
        if stored.get(name, now) != now:
            raise RunFolderError(
                f"the {name} of {run_folder} changed since it was trained on (fingerprint"
                f" {stored[name]}, now {now}). Put the old one back, start over with --fresh, or"
                " start a new run with run.name=NAME."
            )


def plan_of(run_folder: Path) -> Plan:
    """The plan of a run's last session.

    Raises:
        PlanError: plan.json holds none that this version reads.
    """
    path = run_folder / "plan.json"
    try:
        return plan_from_json(read_json(path))
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def _splits(run_folder: Path, material: AnyRunData, split: str | None) -> list[str]:
    names = (
        [split] if split else [name for name in ("validation", "test") if name in material.splits]
    )
    if unknown := [name for name in names if name not in material.splits]:
        raise RequestError(
            f"{run_folder} has no split {unknown[0]!r}; it has {', '.join(material.splits)}."
        )
    return names


def _checked(tasks: Sequence[str], overrides: tuple[str, ...] = ()) -> tuple[list[Task], list[str]]:
    """Our own tasks, and the harness's by name; an unknown one is told before anything is
    scored.
    """
    own = [load_task(name, overrides) for name in tasks if not name.startswith(PREFIX)]
    return own, [name.removeprefix(PREFIX) for name in tasks if name.startswith(PREFIX)]


def _likelihoods(
    folder: Path,
    loaded: LoadedRun,
    material: AnyRunData,
    device: torch.device,
    names: list[str],
    stride: int | None,
    console: Console,
    plan: Plan,
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    with data_progress(console) as progress:
        for name in names:
            rows = EVALUATION_FACTOR * plan.micro_batches[0]
            options = ScoringOptions(
                plan=plan, device=device, rows=rows, stride=stride, exact=True, progress=progress
            )
            score = material.score(loaded.model, name, options)
            if stride is None:
                write_nats(folder, name, Nats(score.window_nats_N, score.window_tokens_N))
            made[name if stride is None else f"{name}, stride {stride}"] = (
                score.to_json() | material.baselines(name)
            )
    _add_scores(folder, made)
    return made


def _layers(folder: Path, loaded: LoadedRun, material: AnyRunData) -> dict[str, Any]:
    """What kernel attention and feedback alignment do, where the run has them."""
    validation = material.splits["validation"]
    if not has_layers_to_look_at(loaded.recipe) or not isinstance(validation, TokenSplit):
        return {}
    measured = measure_layers(
        loaded.model, loaded.recipe, validation, loss_chunk=plan_of(folder).loss_chunk
    )
    made = {LAYERS: measured.to_json()}
    _add_scores(folder, made)
    return made


def _on_tasks(
    folder: Path,
    loaded: LoadedRun,
    material: AnyRunData,
    own: list[Task],
    foreign: list[str],
    asked: Asked,
    console: Console,
) -> dict[str, Any]:
    subject, recipe = _subject(loaded, material), loaded.recipe
    examples = {
        name: split.examples
        for name, split in material.splits.items()
        if isinstance(split, ExampleSplit)
    }
    most = asked.max_examples or recipe.evaluation.max_examples
    with ExitStack() as stack:
        progress = stack.enter_context(data_progress(console))
        judged = any(task.needs_sandbox for task in own)
        sandbox = (
            stack.enter_context(Sandbox(accept_unsandboxed=asked.accept_unsandboxed))
            if judged
            else None
        )
        results = evaluate_tasks(
            subject,
            own,
            own=examples,
            paths={**recipe.evaluation.data, **asked.paths},
            max_examples=most,
            seed=recipe.seed,
            sandbox=sandbox,
            keep=lambda result: result.write(folder / FOLDER),
            progress=progress,
        )
    made = {result.task.name: result.to_json() for result in results}
    for summary in (
        evaluate_with_lm_eval(subject, foreign, max_examples=most, seed=recipe.seed)
        if foreign
        else ()
    ):
        made[summary["task"]] = summary
        write_json_atomically(_summary_file(folder, summary["task"]), summary)
    return made


def _subject(loaded: LoadedRun, material: AnyRunData) -> Subject:
    template = loaded.template or Template.of(loaded.tokenizer, "plain")
    train = material.splits["train"]
    ending = (
        text_ending_of(train.examples)
        if isinstance(train, ExampleSplit) and loaded.is_tuned
        else None
    )
    stop_ids = loaded.stop_ids | template.stop_ids
    return Subject(
        loaded.model, loaded.tokenizer, template, stop_ids, loaded.is_tuned, loaded.context, ending
    )


def _describe_untuned(folder: Path, run_folder: Path, loaded: LoadedRun) -> None:
    """Enough of a run folder for comparisons: what the model is, and the data it is scored on."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(
        folder / "recipe.yaml",
        format_yaml({"name": folder.name, "model": loaded.recipe.model, "untuned": True}),
    )
    write_json_atomically(folder / "data.json", read_json(run_folder / "data.json"))
