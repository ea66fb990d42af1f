"""The runs of a study: each is trained and scored like a run of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.types import JsonDict
from brimful.chains import pipeline
from brimful.chains.opening import RunOptions
from brimful.chains.phases import Member
from brimful.chains.ranks import Jobs, lead
from brimful.chains.score_files import is_scored
from brimful.chains.scoring import SCORING, evaluate_rest, lead_evaluation
from brimful.mirror.mirroring import catch_up
from brimful.recipe import BASE, Recipe
from brimful.training.admission import Status, status_of
from brimful.training.checkpoint import mend
from brimful.training.world import ALONE, World


def train_and_score(member: Member, console: Console, **options: Unpack[RunOptions]) -> None:
    """Train a member, or continue it, and make the scores that its recipe asks for and that it
    does not have yet.

    Raises:
        BrimfulError: as training and evaluation do.
    """
    trained, world = train_member(member, console, **options), options.get("world", ALONE)
    if trained.trained_now:
        lead_evaluation(trained.folder, console, world)
    else:
        evaluate_rest(trained.folder, trained.folder, member.recipe, console, world)
    catch_up(member.recipe, trained.folder, console_printer(console))


def train_member(member: Member, console: Console, **options: Unpack[RunOptions]) -> pipeline.Run:
    """Train a member as `pipeline.train` does; `fresh` leaves a finished one as it is.

    Raises:
        BrimfulError: as training does.
    """
    recipe = member.recipe
    lead(options.get("world", ALONE), "train", recipe=recipe.model_dump(mode="json"))
    if mended_status(member.folder, console) == "finished":
        options["fresh"] = False
    if part := options.get("part"):
        options["part"] = (part[0], member.variant)
    return pipeline.train(recipe, console, **options)


def mended_status(folder: Path, console: Console) -> Status | None:
    """Return a member's status, after damaged files of it were brought back from its checkpoints.

    Raises:
        RunFolderError: no checkpoint holds one of them.
    """
    for line in mend(folder):
        console_printer(console)(line)
    return status_of(folder)


def _help_to_train(world: World, recipe: JsonDict) -> None:
    pipeline.train(Recipe.model_validate(recipe), Console(quiet=True), world=world)


TRAINING: Jobs = {"train": _help_to_train, **SCORING}
"""What ranks after the first do while the first one trains and scores members."""


def score_base(
    done: Sequence[Member], folder: Path, console: Console, world: World = ALONE
) -> Path:
    """Score the model that the members were tuned from, into a folder of its own, and return
    that folder. Other ranks of a `world` follow jobs.
    """
    plainest = next((member for member in done if member.recipe.quantize == "none"), done[0])
    if not is_scored(folder / BASE, plainest.recipe):
        console.rule("base, untuned")
        evaluate_rest(folder / BASE, plainest.folder, plainest.recipe, console, world)
    return folder / BASE
