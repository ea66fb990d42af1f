"""Scores of a finished run on tasks: what is asked for, and the tasks themselves."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from brimful.base.errors import RequestError
from brimful.base.rundir import write_json_atomically
from brimful.base.types import JsonDict, Texts
from brimful.chains.score_files import summary_file
from brimful.chains.watched_progress import watched_progress
from brimful.evaluation.asking import Ask
from brimful.evaluation.lm_eval import evaluate_with_lm_eval
from brimful.evaluation.nats import FOLDER
from brimful.evaluation.task import Task, checked_tasks, task_changes
from brimful.evaluation.task_run import evaluate_tasks
from brimful.kinds.finished import TrainedRun
from brimful.recipe import EvaluationRecipe, Recipe
from brimful.verify.sandbox import Sandbox


@dataclass(frozen=True)
class EvaluationRequest:
    """What to score beside or in place of the likelihood.

    Attributes:
        tasks: Names, `lm-eval:NAME` for the harness's; empty: the recipe's own, after the
            likelihood.
        paths: Where tasks' data lie, over the recipe's.
        max_examples: Examples of a task at most, in place of the recipe's.
        accept_unsandboxed: Run generated programs where nothing isolates them.
        samples: Answers per example, in place of the task's number.
        temperature: They are drawn at, in place of the task's.
        max_new_tokens: The most tokens of an answer, in place of the task's.
        shots: Solved examples before a question asked as text to continue, in place of the task's.
        ask: How a model before tuning is asked, in place of the recipe's.
    """

    tasks: tuple[str, ...] = ()
    paths: Texts = field(default_factory=dict)
    max_examples: int | None = None
    accept_unsandboxed: bool = False
    samples: int | None = None
    temperature: float | None = None
    max_new_tokens: int | None = None
    shots: int | None = None
    ask: Ask | None = None

    @property
    def _chosen(self) -> JsonDict:
        """What the user asked for, by its key of the recipe's section evaluation."""
        keys = ("samples", "temperature", "max_new_tokens", "shots")
        return {key: value for key in keys if (value := getattr(self, key)) is not None}

    def rules_of(self, recipe: Recipe) -> EvaluationRecipe:
        """Return the recipe's section evaluation with what the user asked for in its place."""
        asked = {"ask": self.ask} if self.ask else {}
        return recipe.evaluation.model_copy(update={**self._chosen, **asked})

    def tasks_to_run(self, tasks: Sequence[str], recipe: Recipe) -> tuple[list[Task], list[str]]:
        """Return our own tasks, with the settings of the recipe and the user's, and the harness's
        by name.

        Raises:
            RequestError: no such task, settings that do not suit one, or settings for the harness's
                tasks.
        """
        own, foreign = checked_tasks(tasks, task_changes(self.rules_of(recipe)))
        if foreign and self._chosen:
            options = (f"--{key.replace('_', '-')}" for key in self._chosen)
            raise RequestError(
                f"{', '.join(foreign)}: tasks of lm-eval set their own sampling and prompts. Leave"
                f" out {', '.join(options)}."
            )
        checked_tasks(tuple(self.paths))
        return own, foreign


DEFAULT_REQUEST = EvaluationRequest()
"""The likelihood, then the recipe's own tasks."""


def score_tasks(
    folder: Path,
    run: TrainedRun,
    own: list[Task],
    foreign: list[str],
    request: EvaluationRequest,
    console: Console,
) -> JsonDict:
    """Score a finished run on tasks and write every result into `folder`; return the summaries by
    task.

    Args:
        folder: Gets the results, in its folder of evaluations.
        run: The run, loaded with its data.
        own: Tasks that brimful runs itself.
        foreign: Names of the harness's tasks.
        request: Limits and settings of the user.
        console: Shows the progress.

    Raises:
        DataError: a task's data cannot be read.
    """
    subject, recipe = run.data.subject(run.loaded, request.ask), run.data.recipe
    most = request.max_examples or recipe.evaluation.max_examples
    with ExitStack() as stack:
        progress = stack.enter_context(watched_progress(console, run.folder, recipe))
        sandbox = None
        if run.world.is_first and any(task.needs_sandbox for task in own):
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
            world=run.world,
        )
    made = {result.task.name: result.to_json() for result in results}
    if foreign and run.world.is_first:
        summaries = evaluate_with_lm_eval(subject, foreign, max_examples=most, seed=recipe.seed)
        for summary in summaries:
            made[summary["task"]] = summary
            write_json_atomically(
                summary_file(folder, summary["task"]), summary, with_checksum=True
            )
    return made
