"""The verbs that train: train, run, sample. Nothing heavy is imported before one runs."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.base.errors import RequestError
from brimful.cli.inputs import load_recipe, look_at_data
from brimful.cli.options import (
    Accept,
    Explain,
    Fresh,
    Overrides,
    PlanFile,
    RecipeName,
    Session,
    Yes,
)
from brimful.cli.output import loading, open_console, say

if TYPE_CHECKING:
    from brimful.recipe import Recipe


def train(
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
    plan_file: PlanFile = None,
    session: Session = None,
    yes: Yes = False,
    explain: Explain = False,
) -> None:
    """Train a recipe; of a study every variant, of rft every round, and compare them. The same
    command again continues what is unfinished.
    """
    resolved = load_recipe(recipe, overrides, session=session, yes=yes)
    with loading():
        look_at_data(resolved)
        from brimful.chains import pipeline
        from brimful.mirror.opening import catch_up
    if resolved.makes_several_runs:
        _run_several(resolved, fresh, accept_change, plan_file, explain)
        return
    finished = pipeline.train(
        resolved,
        open_console(),
        fresh=fresh,
        accept=accept_change or [],
        plan_file=plan_file,
        explain=explain,
    )
    name = finished.folder.name
    if not finished.trained_now:
        catch_up(resolved, finished.folder, say)
        say(f"for another run of this recipe: run.name={name}-2")
    _say_next([f"brimful evaluate {name}", *_uses(resolved, name), f"brimful report {name}"])


def _uses(recipe: "Recipe", run: str) -> list[str]:
    """Return the command that uses the model of a run; none where it only fills masks."""
    if recipe.kind.gives_labels:
        return [f"brimful predict {run} FILE"]
    beside = " --beside-base" * recipe.kind.answers_prompts
    return [f"brimful generate {run} --prompt TEXT{beside}"] * recipe.kind.writes_text


def _say_next(commands: list[str]) -> None:
    if commands:
        say("next: " + "\n      ".join(commands))


def run(
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
    plan_file: PlanFile = None,
    session: Session = None,
    yes: Yes = False,
    explain: Explain = False,
) -> None:
    """The whole chain of a recipe: plan, train, sample, evaluate, report; of a study for every
    variant, of rft for every round, and one table.
    """
    resolved = load_recipe(recipe, overrides, session=session, yes=yes)
    with loading():
        look_at_data(resolved)
        from brimful.chains import pipeline
    if resolved.makes_several_runs:
        _run_several(resolved, fresh, accept_change, plan_file, explain)
        return
    path = pipeline.run(
        resolved,
        open_console(),
        fresh=fresh,
        accept=accept_change or [],
        plan_file=plan_file,
        explain=explain,
    )
    print(f"report: {path}")
    _say_next(_uses(resolved, path.parent.name))


def sample(
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
) -> None:
    """Draw answers to a recipe's questions, verify them, and keep distinct right ones to train on.
    The same command again goes on where it stopped.
    """
    resolved = load_recipe(recipe, overrides)
    with loading():
        look_at_data(resolved)
        from brimful.chains import rounds

    folder = rounds.sample(resolved, open_console(), fresh=fresh, accept=accept_change or [])
    print(f"samples: {folder / 'samples.jsonl'}")
    print(f"training set: {folder / 'train.jsonl'}")
    say(f"next: brimful run {shlex.join([recipe, *(overrides or [])])}")


def _run_several(
    recipe: "Recipe",
    fresh: bool,
    accept: list[str] | None,
    plan_file: Path | None,
    explain: bool,
) -> None:
    from brimful.chains.calls import run_several

    if plan_file is not None:
        raise RequestError(
            f"--plan is the plan of one run, but {recipe.name} makes several. Leave it out."
        )
    if explain:
        raise RequestError(
            f"--explain shows the plan of one run, but {recipe.name} makes several. Leave it out;"
            " `brimful plan` and the reports show every choice."
        )
    path = run_several(recipe, open_console(least_width=120), fresh=fresh, accept=accept or [])
    print(f"report: {path}")
