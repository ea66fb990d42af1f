"""A study: one recipe in several variants, trained and scored alike, and one table at the end."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Unpack

from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import (
    BrimfulError,
    DeviceError,
    PlanError,
    RequestError,
)
from brimful.base.types import Texts
from brimful.chains import pipeline
from brimful.chains.measured_phases import phases_beside_measured
from brimful.chains.opening import RunOptions
from brimful.chains.parallel_study import Failed
from brimful.chains.phases import BaseScores, Member, folder_of, members, phases_of
from brimful.chains.score_files import is_scored
from brimful.chains.study_folder import claim, publish
from brimful.chains.study_members import score_base, train_and_score
from brimful.chains.task_checks import refuse_unreadable_tasks
from brimful.data.first_look import first_look
from brimful.planning import scaling
from brimful.recipe import BASE, Recipe
from brimful.report.comparison.compare import compare
from brimful.training.world import ALONE

SideBySide = Callable[[Path, Sequence[str]], Mapping[str, Failed]]
"""Runs variants by their names, given the study's folder, and returns what failed."""


class VariantsFailed(BrimfulError):
    """Some variants of a study failed; the others are in the table."""

    exit_code = 1


def run_study(
    recipe: Recipe,
    console: Console,
    side_by_side: SideBySide | None = None,
    **options: Unpack[RunOptions],
) -> Path:
    """Train and score what is not done yet, then compare; return the path of the study's page. The
    same command again continues where it stopped.

    A variant that does not fit this device, or that has no kernels here, is left out, with the
    reason in the table.

    Args:
        side_by_side: Runs variants in processes of their own, one on each device.

    Raises:
        BrimfulError: as training and evaluation do.
        VariantsFailed: variants that ran side by side failed; the table has the others.
    """
    unfinished = _unfinished(recipe)
    folder = folder_of(recipe)
    claim(folder, recipe, console_printer(console))
    model = pipeline.source_of(recipe, console) or recipe.model
    planned = members(recipe.model_copy(update={"model": model}))
    failed: Mapping[str, Failed] = {}
    if side_by_side is None:
        done, left_out = _train_all(recipe, planned, console, options)
    else:
        failed = side_by_side(folder, [each.folder.name for each in unfinished])
        done = [each for each in planned if each.folder.name not in failed]
        left_out = {name: each.reason for name, each in failed.items()}
    _refuse_none(recipe, done, left_out)
    runs = [member.folder for member in done]
    if any(isinstance(phase, BaseScores) for phase in phases_of(recipe)):
        runs.insert(0, score_base(done, folder, console, options.get("world", ALONE)))
    remarks = "".join(f"\nLeft out: {name}: {reason}\n" for name, reason in left_out.items())
    base = folder / BASE if folder / BASE in runs else None
    facts = {"left_out": left_out, "phases": phases_beside_measured(recipe, base, done)}
    page = publish(recipe, folder, compare(runs), console, facts=facts, remarks=remarks)
    _tell_broken(recipe, failed, page)
    return page


def _unfinished(recipe: Recipe) -> list[Member]:
    """Return the members to be trained or scored, once their data and tasks were looked at.

    Every variant is made into a recipe first: a mistake in one shows before anything is trained.
    """
    unfinished = [each for each in members(recipe) if not is_scored(each.folder, each.recipe)]
    by_data = {(each.recipe.method, str(each.recipe.data)): each.recipe for each in unfinished}
    for one in by_data.values():
        first_look(one)
    if unfinished:
        refuse_unreadable_tasks(recipe)
    return unfinished


def _refuse_none(recipe: Recipe, done: Sequence[Member], left_out: Texts) -> None:
    if not done:
        reasons = "\n".join(f"  - {name}: {reason}" for name, reason in left_out.items())
        raise PlanError(f"no variant of {recipe.name} can be trained here:\n{reasons}")


def _tell_broken(recipe: Recipe, failed: Mapping[str, Failed], page: Path) -> None:
    """Raise VariantsFailed if variants failed that this machine can train."""
    if broken := [name for name, each in failed.items() if not each.is_left_out]:
        raise VariantsFailed(
            f"{len(broken)} of {len(members(recipe))} variants of {recipe.name} failed:"
            f" {', '.join(broken)}. The reasons are above and in {page}, and the table has the"
            " others. The same command goes on with what is missing."
        )


def run_variant(recipe: Recipe, name: str, console: Console, **options: Unpack[RunOptions]) -> Path:
    """Train and score one variant of a study, as `run_study` does; return its folder.

    Args:
        name: Name of its folder: the variant's, with `-seedN` where the study has several seeds.

    Raises:
        RequestError: there is no such variant.
        BrimfulError: as training and evaluation do.
    """
    known = [each.folder.name for each in members(recipe)]
    if name not in known:
        raise RequestError(
            f"--only {name}: {recipe.name} has no such variant. It has {', '.join(known)}."
        )
    claim(folder_of(recipe), recipe, console_printer(console))
    model = pipeline.source_of(recipe, console) or recipe.model
    planned = members(recipe.model_copy(update={"model": model}))
    member = planned[known.index(name)]
    for note in scaling.notes(recipe, member.recipe):
        console_printer(console)(note)
    options["part"] = (recipe, "")
    train_and_score(member, console, **options)
    return member.folder


def _train_all(
    recipe: Recipe, planned: Sequence[Member], console: Console, options: RunOptions
) -> tuple[list[Member], dict[str, str]]:
    """Train and score every member; return the finished ones, and by name why others are not."""
    say = console_printer(console)
    done: list[Member] = []
    left_out: dict[str, str] = {}
    for number, member in enumerate(planned, start=1):
        console.rule(f"{member.folder.name} ({number} of {len(planned)})")
        for note in scaling.notes(recipe, member.recipe):
            say(note)
        try:
            train_and_score(member, console, **options)
        except (PlanError, DeviceError) as error:
            left_out[member.folder.name] = str(error)
            say(f"left out: {error}")
        else:
            done.append(member)
    return done, left_out
