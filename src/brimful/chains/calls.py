"""What `import brimful` offers to a script or a notebook: train, run, plan and evaluate. They take
the names that the command line takes, and need no console.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

from rich.console import Console

from brimful.base.env import runs_folder
from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.chains import pipeline, plans, rounds, scoring, study
from brimful.chains.opening import RunOptions
from brimful.chains.phases import folder_of
from brimful.chains.ranks import dismiss, follow_jobs
from brimful.chains.task_scores import DEFAULT_REQUEST, EvaluationRequest
from brimful.hardware.device import Device
from brimful.planning.plan import Plan
from brimful.recipe import Recipe, load
from brimful.runs.named import resolve_run
from brimful.training.world import ALONE


def train(
    recipe: Recipe | str | Path,
    console: Console | None = None,
    *,
    fresh: bool = False,
    accept: Sequence[str] = (),
    plan_file: Path | None = None,
) -> pipeline.Run:
    """Train a recipe, or continue its unfinished run, and return the finished run.

    Args:
        recipe: A recipe, the name of a shipped one, or a file. `load_recipe` makes changes to one.
        console: Where progress is shown; None: standard output.
        fresh: Start over; unfinished work is moved aside.
        accept: Keys whose changed values a continued run accepts.
        plan_file: A saved plan to use as it is.

    Raises:
        BrimfulError: with what is wrong, where, and what to do next.
        RequestError: the recipe makes several runs (a study, or rounds); `run` trains those.
    """
    resolved = _recipe_of(recipe)
    if resolved.makes_several_runs:
        raise RequestError(
            f"recipe {resolved.name} makes several runs, and train makes one. Call brimful.run."
        )
    return pipeline.train(
        resolved, console or Console(), fresh=fresh, accept=accept, plan_file=plan_file
    )


def run(
    recipe: Recipe | str | Path,
    console: Console | None = None,
    *,
    fresh: bool = False,
    accept: Sequence[str] = (),
    plan_file: Path | None = None,
) -> Path:
    """Plan, train, sample, evaluate and report, of a study or of rounds for every run; return the
    path of the report.

    Args and errors are those of `train`.
    """
    resolved, shown = _recipe_of(recipe), console or Console()
    if not resolved.makes_several_runs:
        return pipeline.run(resolved, shown, fresh=fresh, accept=accept, plan_file=plan_file)
    return run_several(resolved, shown, fresh=fresh, accept=accept, plan_file=plan_file)


def run_several(
    recipe: Recipe,
    console: Console,
    side_by_side: study.SideBySide | None = None,
    **options: Unpack[RunOptions],
) -> Path:
    """Run every variant of a study, or every round of rejection-sampling fine-tuning; compare the
    runs and return the path of the report.

    Args:
        side_by_side: Whether variants run at once, as in `study.run_study`.
    """
    run_all = rounds.run_rounds
    if recipe.rft is None:
        run_all = partial(study.run_study, side_by_side=side_by_side)
    options["part"] = (recipe, "")
    return _led(run_all, recipe, console, options)


def sample(recipe: Recipe, console: Console, **options: Unpack[RunOptions]) -> Path:
    """Draw the samples of a recipe's first round and return their folder; see `rounds.sample`."""
    return _led(rounds.sample, recipe, console, options)


def _led(act: Callable[..., Path], recipe: Recipe, console: Console, options: RunOptions) -> Path:
    """Let the first rank act; the others help, and return the recipe's folder."""
    world = options.get("world", ALONE)
    if not world.is_first:
        follow_jobs(world, rounds.ROUNDS)
        return folder_of(recipe)
    path = act(recipe, console, **options)
    dismiss(world)
    return path


def plan(
    recipe: Recipe | str | Path,
    device: Device | str | None = None,
    *,
    trust_custom_code: bool = False,
) -> Plan:
    """Return how a recipe runs on a device: choices, the micro-batch, the peak memory by term.

    Args:
        recipe: A recipe, the name of a shipped one, or a file.
        device: A Device, a name of the catalog ("T4"), or None for this machine's.
        trust_custom_code: Consent to run code that comes with a published model.

    Raises:
        PlanError: it does not fit, or cannot be traced.
        DeviceError: no such device.
    """
    return plans.plan(_recipe_of(recipe), device, trust_custom_code=trust_custom_code)


def evaluate(
    run_folder: str | Path,
    console: Console | None = None,
    *,
    split: str | None = None,
    stride: int | None = None,
    request: EvaluationRequest = DEFAULT_REQUEST,
    untuned: bool = False,
) -> JsonDict:
    """Score a finished run on its held-out splits (or the one named) and on tasks; return the
    scores, which are also written to its scores.json.

    Args:
        run_folder: A run's name or folder.
        console: Where progress is shown; None: standard output.
        split: One split instead of all held-out ones.
        stride: New tokens per window.
        request: Which tasks, and how.
        untuned: Score the model that the run tuned, as it was before.

    Raises:
        RequestError: no such split, or a task cannot be run here.
        DataError: a task's data cannot be read.
    """
    return scoring.evaluate(
        resolve_run(run_folder, runs_folder()),
        console or Console(),
        split=split,
        stride=stride,
        request=request,
        untuned=untuned,
    )


def _recipe_of(recipe: Recipe | str | Path) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else load(str(recipe))
