"""Finished runs, scored: likelihood of held-out text or answers, labels, and tasks. An overview: it
sees every stage.
"""

from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import RequestError
from brimful.base.rundir import require_writable
from brimful.base.types import Json, JsonDict
from brimful.base.warning_codes import as_note
from brimful.chains.finished import finished_run
from brimful.chains.ranks import Jobs, lead
from brimful.chains.score_files import (
    add_scores,
    describe_untuned,
    has_scores,
    missing_tasks,
    move_damaged_aside,
)
from brimful.chains.task_scores import DEFAULT_REQUEST, EvaluationRequest, score_tasks
from brimful.chains.watched_progress import watched_progress
from brimful.generation.load import recipe_of
from brimful.kinds.run_data import AnyRunData, plan_of, run_data_class
from brimful.recipe import Recipe
from brimful.report.tuned import UNTUNED_FOLDER
from brimful.runs.files import PLAN_FILE
from brimful.training.world import ALONE, World


def evaluate(
    run_folder: Path,
    console: Console,
    *,
    split: str | None = None,
    stride: int | None = None,
    request: EvaluationRequest = DEFAULT_REQUEST,
    untuned: bool = False,
    world: World = ALONE,
) -> JsonDict:
    """Score a finished run on its whole validation and test splits (or the one named) and on tasks;
    writes scores.json and evaluations/.

    If tasks are named, only they are scored, and no splits.

    Args:
        untuned: Score the model as it was before the run tuned it, and write into the run's folder
            `untuned`.
        world: Ranks that score together; each holds the whole model, and the first one writes.

    Returns:
        By split the likelihood's record, under "layers" diagnostics of kernel attention and
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
        world=world,
    )


def evaluate_into(
    folder: Path,
    run_folder: Path,
    console: Console,
    *,
    split: str | None = None,
    stride: int | None = None,
    request: EvaluationRequest = DEFAULT_REQUEST,
    world: World = ALONE,
) -> JsonDict:
    """As `evaluate`; another folder than the run's own gets the scores of the untuned model."""
    untuned = folder != run_folder
    if world.is_first:
        require_writable(run_folder)
        if problem := move_damaged_aside(folder):
            console_printer(console)(as_note(problem, "B314"))
        return _evaluate(folder, run_folder, untuned, console, split, stride, request, world)
    with TemporaryDirectory() as scrap:  # what other ranks write is what the first one does
        return _evaluate(Path(scrap), run_folder, untuned, console, split, stride, request, world)


def _evaluate(
    folder: Path,
    run_folder: Path,
    untuned: bool,
    console: Console,
    split: str | None,
    stride: int | None,
    request: EvaluationRequest,
    world: World,
) -> JsonDict:
    """Write the scores into the folder, and return them."""
    recipe = recipe_of(run_folder)
    only_splits = stride is None and request == DEFAULT_REQUEST
    kind = run_data_class(recipe.kind)
    kind.refuse_evaluation(run_folder, untuned=untuned, only_splits=only_splits)
    if request.ask and not untuned:
        raise RequestError(
            "--ask is about the model before tuning; a tuned one is asked as in its training. Add"
            " --untuned, or leave --ask out."
        )
    run = finished_run(run_folder, console, untuned=untuned, world=world)
    if untuned:
        describe_untuned(folder, run_folder, run.loaded.recipe)
    names = _splits(run_folder, run.data, split)
    tasks = request.tasks
    if not (tasks or split or stride or recipe.kind.gives_labels):
        tasks = tuple(recipe.evaluation.tasks)
    own, foreign = request.tasks_to_run(tasks, recipe)
    scores: JsonDict = {}
    if not request.tasks:
        with watched_progress(console, run_folder, recipe) as progress:
            scores = run.data.score_finished(run, folder, names, stride, progress)
        if "validation" in scores and not untuned and world.is_first:
            scores |= run.data.look_into_layers(run)
        add_scores(folder, scores)  # all at once: whoever is killed before does it all again
    if tasks:
        scores["tasks"] = score_tasks(folder, run, own, foreign, request, console)
    return scores


def lead_evaluation(
    folder: Path,
    console: Console,
    world: World,
    *,
    run_folder: Path | None = None,
    request: EvaluationRequest = DEFAULT_REQUEST,
) -> JsonDict:
    """As `evaluate_into`, on rank 0, with the help of the other ranks that follow its jobs.

    Args:
        folder: Gets the scores.
        run_folder: Folder of the run; None: the same folder.
    """
    run_folder = run_folder or folder
    told = {"folder": str(folder), "run_folder": str(run_folder), "request": asdict(request)}
    lead(world, "evaluate", **told)
    return evaluate_into(folder, run_folder, console, request=request, world=world)


def _help_to_evaluate(world: World, folder: str, run_folder: str, request: Json) -> None:
    asked = EvaluationRequest(**{**request, "tasks": tuple(request["tasks"])})
    console = Console(quiet=True)
    evaluate_into(Path(folder), Path(run_folder), console, request=asked, world=world)


SCORING: Jobs = {"evaluate": _help_to_evaluate}
"""What ranks after the first do while the first one scores."""


def evaluate_rest(
    folder: Path, run_folder: Path, recipe: Recipe, console: Console, world: World = ALONE
) -> None:
    """As `evaluate_into`, but only what the recipe asks for and the folder does not hold yet.
    Other ranks of a `world` follow jobs.

    Raises:
        BrimfulError: as `evaluate`.
    """
    if not has_scores(folder):
        lead_evaluation(folder, console, world, run_folder=run_folder)
    if missing := missing_tasks(folder, recipe):
        request = EvaluationRequest(missing, recipe.evaluation.data, recipe.evaluation.max_examples)
        lead_evaluation(folder, console, world, run_folder=run_folder, request=request)


def evaluate_base(run_folder: Path, console: Console, world: World = ALONE) -> None:
    """Score the base of a tuned run on the recipe's tasks, if its plan says so and the run's
    folder does not hold the scores yet. Other ranks of a `world` follow jobs.

    Raises:
        BrimfulError: as `evaluate`.
    """
    if not (run_folder / PLAN_FILE).exists():
        return
    recipe, plan, folder = recipe_of(run_folder), plan_of(run_folder), run_folder / UNTUNED_FOLDER
    if plan.base is None or not plan.base.tasks:
        return
    if missing := missing_tasks(folder, recipe):
        console_printer(console)("the tasks, of the model before tuning:")
        request = EvaluationRequest(missing, recipe.evaluation.data, recipe.evaluation.max_examples)
        lead_evaluation(folder, console, world, run_folder=run_folder, request=request)


def _splits(run_folder: Path, data: AnyRunData, split: str | None) -> list[str]:
    names = [split] if split else [name for name in ("validation", "test") if name in data.splits]
    if unknown := [name for name in names if name not in data.splits]:
        raise RequestError(
            f"{run_folder} has no split {unknown[0]!r}; it has {', '.join(data.splits)}."
        )
    return names
