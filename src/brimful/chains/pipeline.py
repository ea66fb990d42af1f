"""The whole run, stage by stage: recipe, hardware, plan, data, model, train, generate, evaluate,
report. Start reading here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from rich.console import Console

from brimful.base.console import Say, console_printer, waiting, width_of
from brimful.chains.base_model import named_model, recipe_of_base
from brimful.chains.checks import (
    refuse_breaking_versions,
    refuse_unfit,
    refuse_unsupported,
)
from brimful.chains.opening import Opening, RunOptions, greeting, plan_lines
from brimful.chains.phases import folder_of, names_recipe
from brimful.chains.ranks import (
    begin_together,
    dismiss,
    follow,
    follow_jobs,
    for_rank,
    make_room,
    meet,
    read_together,
    tell_that_it_is_finished,
)
from brimful.chains.run_plan import (
    earlier_plans,
    refuse_years,
    session_notes,
    settle_plan,
)
from brimful.chains.score_files import discard_scores, is_scored, model_manifest
from brimful.chains.training_session import train_session
from brimful.data.first_look import first_look
from brimful.hardware.device import Device
from brimful.kinds.run_data import AnyRunData, gather
from brimful.mirror.mirroring import catch_up, open_mirror
from brimful.planning.plan import Plan
from brimful.recipe import Recipe
from brimful.report.live.progress import data_progress
from brimful.training.admission import admit, claim, refuse_unwritable, write_status
from brimful.training.checkpoint import mend
from brimful.training.world import ALONE, World


@dataclass(frozen=True)
class Run:
    """A finished run: its folder and whether this call did the training."""

    folder: Path
    trained_now: bool


def run(recipe: Recipe, console: Console, **options: Unpack[RunOptions]) -> Path:
    """Plan, train, sample, evaluate and report; return the report's path."""
    from brimful.chains.scoring import (  # noqa: PLC0415 - no training needs it
        SCORING,
        evaluate_base,
        evaluate_rest,
        lead_evaluation,
    )
    from brimful.chains.task_checks import refuse_unreadable_tasks  # noqa: PLC0415
    from brimful.report.text import evaluation_lines  # noqa: PLC0415

    world = options.get("world", ALONE)
    if not world.is_first:
        folder = follow(recipe, world)
        follow_jobs(world, SCORING)
        return folder
    say = console_printer(console)
    if not is_scored(folder_of(recipe), recipe):
        refuse_unreadable_tasks(recipe)
    trained = _train(recipe, console, world, options)
    if trained.trained_now:
        scores = lead_evaluation(trained.folder, console, world)
        say("\n".join(evaluation_lines(scores, width_of(console))))
    else:
        evaluate_rest(trained.folder, trained.folder, recipe, console, world)
    evaluate_base(trained.folder, console, world)
    dismiss(world)
    from brimful.report.page.html import write_report  # noqa: PLC0415 - half a second, for figures

    with waiting(console, "writing the report"):
        report = write_report(trained.folder)
    _say_what_tuning_changed(trained.folder, console)
    catch_up(recipe, trained.folder, say)
    return report


def train(recipe: Recipe, console: Console, **options: Unpack[RunOptions]) -> Run:
    """Train a recipe, or continue its unfinished run; at the end the model is exported and used
    once.
    """
    world = options.get("world", ALONE)
    if not world.is_first:
        return Run(follow(recipe, world), trained_now=True)
    trained = _train(recipe, console, world, options)
    if trained.trained_now:
        _say_what_tuning_changed(trained.folder, console)
    return trained


def _say_what_tuning_changed(folder: Path, console: Console) -> None:
    from brimful.report.base_to_tuned import base_lines  # noqa: PLC0415 - after the training
    from brimful.runs.folder import read_run  # noqa: PLC0415

    if lines := base_lines(read_run(folder), width_of(console)):
        console_printer(console)("\n".join(lines))


def _train(recipe: Recipe, console: Console, world: World, options: RunOptions) -> Run:
    say, opening = console_printer(console), Opening(console, explain=options.get("explain", False))
    fresh, accept = options.get("fresh", False), options.get("accept", ())
    _mend(folder_of(recipe), say, fresh=fresh)
    mirror = open_mirror(recipe, folder_of(recipe), opening.remark, fresh=fresh, accept=accept)
    admission = admit(recipe, folder := folder_of(recipe), fresh=fresh, accept=accept)
    if admission.finished:
        say(f"{folder} is finished; nothing to train.")
        tell_that_it_is_finished(recipe, world, folder)
        return Run(folder, trained_now=False)
    refuse_unwritable(folder)
    first_look(recipe)
    with waiting(console, "looking at this machine"):
        device = meet(recipe, world)
    with world.telling_failures():
        refuse_unsupported(recipe, device)
        if admission.continues:
            refuse_breaking_versions(folder, device, accept)
        source, own = source_of(recipe, console), for_rank(recipe, world)
        with waiting(console, "planning") as show:
            saved = (options.get("plan_file"), options.get("part"))
            earlier = earlier_plans(
                own, device, admission, *saved, show, (world.size, world.machines)
            )
    with claim(admission) as lease, mirror.kept(fresh=fresh):
        begin_together(world, folder, source, lease)
        opening.say(greeting(recipe, device, admission, opening.width), "data")
        with world.telling_failures(), data_progress(console, brief=True) as progress:
            data = gather(recipe, source, progress)
            refuse_unfit(recipe, data, folder if admission.continues else None)
        read_together(world, data)
        opening.say(data.lines(), "plan")
        with world.telling_failures(), waiting(console, "planning with the data known") as show:
            plan, notes = settle_plan(data, device, admission, earlier, show)
            refuse_years(recipe, plan)
        world.tell(plan.to_json())
        _say_plan(plan, notes, device, recipe, opening)
        scored = model_manifest(folder)
        step = train_session(data, plan, device, admission, lease, console, mirror, world)
        say(f"best model: step {step}, saved in {folder / 'model'}")
        _finish(data, plan, device, folder, scored, console)
    say("\n" + _outcome(folder, plan, recipe))
    return Run(folder, trained_now=True)


def _outcome(folder: Path, plan: Plan, recipe: Recipe) -> str:
    """Return what was measured beside the plan; later plans learn from it."""
    from brimful.chains.outcome import outcome_lines, remember_run  # noqa: PLC0415 - as above

    return "\n".join([*outcome_lines(folder), *remember_run(folder, plan, recipe)])


def _finish(
    data: AnyRunData, plan: Plan, device: Device, folder: Path, scored: bytes, console: Console
) -> None:
    """Use the trained model once, and write that the run is finished. `scored`: what identifies
    the model that older scores are of.
    """
    discard_scores(folder, scored)
    make_room(device)
    data.finish(folder, plan, console)
    write_status(folder, "finished", data.recipe)


def _say_plan(
    plan: Plan, notes: Sequence[str], device: Device, recipe: Recipe, opening: Opening
) -> None:
    explained = plan.explain(opening.width).splitlines() if opening.explain else None
    opening.say([*notes, *(explained or plan_lines(plan, device, recipe.plan.leave_gib))], "steps")
    opening.say(session_notes(recipe, plan, device, every=opening.explain), "steps")


def _mend(folder: Path, say: Say, *, fresh: bool) -> None:
    """Bring damaged files back from checkpoints, and say so. What is replaced is not mended."""
    for line in [] if fresh else mend(folder):
        say(line)


def source_of(recipe: Recipe, console: Console) -> str:
    """Return the hub id or absolute folder of the published model that a recipe names; empty for a
    fresh model. A model that another recipe trains is trained first.
    """
    if not names_recipe(recipe):
        return named_model(recipe, console_printer(console))
    with data_progress(console) as progress:
        first = recipe_of_base(recipe, progress)
    return str((train(first, console).folder / "model").resolve())
