"""The verbs that train: train, run, sample, launch. Nothing heavy is imported before one runs."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from brimful.base.errors import RequestError
from brimful.base.light_imports import import_transformers
from brimful.cli.inputs import load_recipe, look_at_data, with_data_ahead
from brimful.cli.options import (
    Accept,
    DeviceCount,
    Explain,
    Fresh,
    Only,
    Overrides,
    Parallel,
    PlanFile,
    RecipeName,
    Restarts,
    Session,
    Yes,
)
from brimful.cli.output import loading, open_console, say

if TYPE_CHECKING:
    from brimful.chains.opening import RunOptions
    from brimful.chains.study import SideBySide
    from brimful.recipe import Recipe


def train(  # noqa: PLR0913 - every option of a verb is a parameter
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
    plan_file: PlanFile = None,
    session: Session = None,
    yes: Yes = False,
    explain: Explain = False,
    *,
    devices: DeviceCount = None,
    restarts: Restarts = 0,
) -> None:
    """Train a recipe; of a study every variant, of rft every round, and compare them. The same
    command again continues what is unfinished.
    """
    resolved = load_recipe(recipe, overrides, session=session, yes=yes)
    options = _options(fresh, accept_change, plan_file, explain)
    with with_data_ahead(resolved, devices):
        _train(resolved, options, devices, restarts)


def _options(
    fresh: bool, accept: list[str] | None, plan_file: Path | None = None, explain: bool = False
) -> "RunOptions":
    return {"fresh": fresh, "accept": accept or [], "plan_file": plan_file, "explain": explain}


def _train(recipe: "Recipe", options: "RunOptions", devices: str | None, restarts: int) -> None:
    with loading():
        import_transformers()
        from brimful.chains import pipeline, ranks
        from brimful.mirror.mirroring import catch_up
    if _started_ranks(recipe, devices, restarts):
        return
    if recipe.makes_several_runs:
        _run_several(recipe, options)
        return
    with ranks.joined() as world:
        options["world"] = world
        finished = pipeline.train(recipe, open_console(), **options)
    if not world.is_first:
        return
    name = finished.folder.name
    if not finished.trained_now:
        catch_up(recipe, finished.folder, say)
        say(f"for another run of this recipe: run.name={name}-2")
    _say_next([f"brimful evaluate {name}", *_uses(recipe, name), f"brimful report {name}"])


def _started_ranks(recipe: "Recipe", devices: str | None, restarts: int) -> bool:
    """Run this very command in several processes if `--devices` asks for that; return whether it
    did.
    """
    if devices is None and restarts:
        raise RequestError("--restarts goes with --devices N. Leave it out, or say how many.")
    if devices is None:
        return False
    from brimful.chains import launching
    from brimful.chains.lost_devices import looking_at
    from brimful.chains.phases import folder_of

    launching.refuse_second_launch()
    count = launching.count_of(devices, recipe)
    if count == 1:
        return False
    command, folder = launching.without_devices(sys.argv[1:]), folder_of(recipe)
    look = looking_at(recipe.plan.device, count)
    launching.launch(command, count, folder, say, restarts=restarts, look=look)
    return True


def _uses(recipe: "Recipe", run: str) -> list[str]:
    """Return the command that uses the model of a run; none where it only fills masks."""
    if recipe.kind.gives_labels:
        return [f"brimful predict {run} FILE"]
    beside = " --beside-base" * recipe.tunes_a_writer
    return [f"brimful generate {run} --prompt TEXT{beside}"] * recipe.kind.writes_text


def _say_next(commands: list[str]) -> None:
    if commands:
        say("next: " + "\n      ".join(commands))


def run(  # noqa: PLR0913 - every option of a verb is a parameter
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
    plan_file: PlanFile = None,
    session: Session = None,
    yes: Yes = False,
    explain: Explain = False,
    *,
    devices: DeviceCount = None,
    restarts: Restarts = 0,
    parallel: Parallel = False,
    only: Only = None,
) -> None:
    """The whole chain of a recipe: plan, train, sample, evaluate, report; of a study for every
    variant, of rft for every round, and one table.
    """
    resolved = load_recipe(recipe, overrides, session=session, yes=yes)
    with with_data_ahead(resolved, devices):
        if parallel or only:
            _refuse_without_study(resolved, devices, parallel=parallel, only=only)
        if only:
            _run_variant(resolved, only, _options(fresh, accept_change, plan_file))
            return
        options = _options(fresh, accept_change, plan_file, explain)
        _run(resolved, options, devices, restarts, parallel)


def _run(
    recipe: "Recipe", options: "RunOptions", devices: str | None, restarts: int, parallel: bool
) -> None:
    with loading():
        import_transformers()
        from brimful.chains import pipeline, ranks
    if not parallel and _started_ranks(recipe, devices, restarts):
        return
    if recipe.makes_several_runs:
        beside = _side_by_side(recipe, str(devices), restarts) if parallel else None
        _run_several(recipe, options, beside)
        return
    with ranks.joined() as world:
        options["world"] = world
        path = pipeline.run(recipe, open_console(), **options)
    if not world.is_first:
        return
    say(f"report: {path}")
    _say_next(_uses(recipe, path.parent.name))


def sample(
    recipe: RecipeName,
    overrides: Overrides = None,
    fresh: Fresh = False,
    accept_change: Accept = None,
    *,
    devices: DeviceCount = None,
    restarts: Restarts = 0,
) -> None:
    """Draw answers to a recipe's questions, verify them, and keep distinct right ones to train on.
    The same command again goes on where it stopped.
    """
    resolved = load_recipe(recipe, overrides)
    with loading():
        look_at_data(resolved)
        import_transformers()
        from brimful.chains import calls, ranks
    if _started_ranks(resolved, devices, restarts):
        return
    with ranks.joined() as world:
        console = open_console()
        console.quiet = not world.is_first
        folder = calls.sample(
            resolved, console, fresh=fresh, accept=accept_change or [], world=world
        )
    if not world.is_first:
        return
    say(f"samples: {folder / 'samples.jsonl'}")
    say(f"training set: {folder / 'train.jsonl'}")
    say(f"next: brimful run {shlex.join([recipe, *(overrides or [])])}")


def launch(
    recipe: RecipeName,
    overrides: Overrides = None,
    *,
    kind: Annotated[
        Literal["torchrun", "slurm", "skypilot"],
        typer.Option("--print", help="For which launcher: torchrun, slurm or skypilot."),
    ] = "torchrun",
    machines: Annotated[int, typer.Option(min=1, metavar="M", help="How many machines.")] = 1,
    devices: Annotated[int, typer.Option(min=1, metavar="N", help="Devices of each machine.")] = 8,
) -> None:
    """Print the script that trains a recipe on many devices or machines, to save and edit; nothing
    is started.
    """
    from brimful.chains.launch_scripts import script

    resolved = load_recipe(recipe, overrides)
    verb = "run" if resolved.makes_several_runs else "train"
    command = [verb, recipe, *(overrides or [])]
    print(script(resolved, kind, command, machines=machines, devices=devices), end="")


def _run_several(
    recipe: "Recipe", options: "RunOptions", side_by_side: "SideBySide | None" = None
) -> None:
    from brimful.chains.calls import run_several
    from brimful.chains.ranks import joined

    if options["explain"]:
        raise RequestError(
            f"--explain shows the plan of one run, but {recipe.name} makes several. Leave it out;"
            " `brimful plan` and the reports show every choice."
        )
    console = open_console(least_width=120)
    with joined() as world:
        console.quiet = not world.is_first
        options["world"] = world
        path = run_several(recipe, console, side_by_side, **options)
    if world.is_first:
        say(f"report: {path}")


def _refuse_without_study(
    recipe: "Recipe", devices: str | None, *, parallel: bool, only: str | None
) -> None:
    """Raise RequestError where variants are named or run side by side that there are none of."""
    option = "--parallel" if parallel else "--only"
    if recipe.study is None:
        raise RequestError(f"{option} is for studies, and {recipe.name} is none. Leave it out.")
    if parallel and only:
        raise RequestError("--only is one variant: nothing runs beside it. Leave --parallel out.")
    if parallel and devices is None:
        raise RequestError("--parallel goes with --devices N. Say how many, or all.")
    if only and devices is not None:
        raise RequestError(f"--only {only} takes one device. Leave out --devices.")


def _run_variant(recipe: "Recipe", name: str, options: "RunOptions") -> None:
    from brimful.base.errors import DeviceError, PlanError
    from brimful.chains.parallel_study import LEFT_OUT
    from brimful.chains.study import run_variant

    try:
        folder = run_variant(recipe, name, open_console(), **options)
    except (DeviceError, PlanError) as error:
        error.exit_code = LEFT_OUT
        raise
    say(f"{name} is trained and scored, in {folder}. The same command without --only compares all.")


def _side_by_side(recipe: "Recipe", devices: str, restarts: int) -> "SideBySide":
    """Return what runs variants of this very command side by side."""
    from brimful.chains import launching, parallel_study

    launching.refuse_second_launch()
    count = launching.number_of(devices, recipe.plan.device)
    command = launching.without_devices(sys.argv[1:])
    here = parallel_study.devices_here(count, recipe.plan.device)

    def run_all(folder: Path, names: Sequence[str]) -> Mapping[str, parallel_study.Failed]:
        run = parallel_study.ParallelVariants(command, folder, here, say, restarts)
        return run.run(names)

    return run_all
