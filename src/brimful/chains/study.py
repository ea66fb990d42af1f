"""A study: one recipe in several variants, trained and scored alike, and one table at the end. An
overview: it sees every stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import DeviceError, PlanError, RecipeError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically, write_text_atomically
from brimful.chains import pipeline
from brimful.chains.checks import refuse_unreadable_tasks
from brimful.chains.score_files import is_scored
from brimful.chains.scoring import evaluate, evaluate_rest
from brimful.mirror.folder import make_mirror
from brimful.mirror.opening import catch_up
from brimful.planning import scaling
from brimful.recipe import BASE, Recipe, with_changes
from brimful.report.comparison.compare import RunComparison, compare
from brimful.report.comparison.study import write_study_report
from brimful.report.comparison.text import comparison_markdown, comparison_text
from brimful.runs.files import STUDY_FILE, STUDY_RECIPE
from brimful.training.admission import status_of

TABLE_FILE = "study.md"


@dataclass(frozen=True)
class Member:
    """One run of a study.

    Attributes:
        variant: Its name in the recipe.
        recipe: The recipe with the variant's changes and a seed, in a folder of its own inside the
            study's.
    """

    variant: str
    recipe: Recipe

    @property
    def folder(self) -> Path:
        return Path(str(self.recipe.run.folder)) / self.recipe.run_name


def members(recipe: Recipe) -> list[Member]:
    """Every variant with every seed, in the order of the recipe.

    Raises:
        RecipeError: a variant's changes do not make a recipe; all problems of it are listed.
    """
    if recipe.study is None:
        raise RecipeError(f"{recipe.name} has no study section.")
    folder = pipeline.folder_of(recipe)
    return [
        Member(name, _variant(recipe, name, changes, seed, folder))
        for name, changes in recipe.study.variants.items()
        for seed in recipe.study.seeds
    ]


def run_study(
    recipe: Recipe, console: Console, *, fresh: bool = False, accept: Sequence[str] = ()
) -> Path:
    """Train and score what is not done yet, then compare; returns the path of the study's page. The
    same command again goes on where it stopped.

    A variant that does not fit this device, or that has no kernels here, is left out, with the
    reason in the table.

    Raises:
        BrimfulError: as training and evaluation do.
    """
    say = console_printer(console)
    # A mistake in a variant is reported before anything is trained.
    wanted = members(recipe)
    if not all(is_scored(member.folder, member.recipe) for member in wanted):
        refuse_unreadable_tasks(recipe)
    folder = pipeline.folder_of(recipe)
    claim(folder, recipe)
    planned = members(
        recipe.model_copy(update={"model": pipeline.source_of(recipe, console) or recipe.model})
    )
    left_out: dict[str, str] = {}
    done: list[Member] = []
    for number, member in enumerate(planned, start=1):
        console.rule(f"{member.folder.name} ({number} of {len(planned)})")
        for note in scaling.notes(recipe, member.recipe):
            say(note)
        try:
            train_and_score(member, console, fresh=fresh, accept=accept)
        except (PlanError, DeviceError) as error:
            left_out[member.folder.name] = str(error)
            say(f"left out: {error}")
            continue
        done.append(member)
    if not done:
        raise PlanError(
            f"no variant of {recipe.name} can be trained here:\n"
            + "\n".join(f"  - {name}: {why}" for name, why in left_out.items())
        )
    runs = [member.folder for member in done]
    if (
        recipe.study is not None and recipe.study.baseline and isinstance(recipe.model, str)
    ):  # before training from nothing there was no model
        runs.insert(0, score_base(done, folder, console))
    told = "".join(f"\nLeft out: {name}: {why}\n" for name, why in left_out.items())
    return publish(recipe, folder, compare(runs), console, facts={"left_out": left_out}, told=told)


def train_and_score(
    member: Member, console: Console, *, fresh: bool = False, accept: Sequence[str] = ()
) -> None:
    """Train a member, or finish it, and give it the scores that its recipe asks for and it does not
    have.

    Raises:
        BrimfulError: as training and evaluation do.
    """
    trained = train_member(member, console, fresh=fresh, accept=accept)
    if trained.trained_now:
        evaluate(trained.folder, console)
    else:
        evaluate_rest(trained.folder, trained.folder, member.recipe, console)
    catch_up(
        member.recipe,
        trained.folder,
        console_printer(console),
    )


def train_member(
    member: Member, console: Console, *, fresh: bool = False, accept: Sequence[str] = ()
) -> pipeline.Run:
    """As `pipeline.train`, but that `fresh` leaves a finished member as it is.

    Raises:
        BrimfulError: as training does.
    """
    return pipeline.train(
        member.recipe,
        console,
        fresh=fresh and status_of(member.folder) != "finished",
        accept=accept,
    )


def score_base(done: Sequence[Member], folder: Path, console: Console) -> Path:
    """The scores of the model that the members were tuned from, in a folder of their own, which is
    returned.
    """
    plainest = next((member for member in done if member.recipe.quantize == "none"), done[0])
    if not is_scored(folder / BASE, plainest.recipe):
        console.rule("base, untuned")
        evaluate_rest(folder / BASE, plainest.folder, plainest.recipe, console)
    return folder / BASE


def publish(
    recipe: Recipe,
    folder: Path,
    comparison: RunComparison,
    console: Console,
    *,
    facts: dict[str, Any],
    told: str = "",
) -> Path:
    """Print the table, and write it, the facts and the page into the folder; returns the page."""
    write_text_atomically(
        folder / TABLE_FILE,
        f"# {recipe.name}\n\n{recipe.description}\n\n{comparison_markdown(comparison)}{told}",
    )
    write_json_atomically(
        folder / STUDY_FILE,
        {**read_json(folder / STUDY_FILE), **facts, "comparison": comparison.to_json()},
    )
    page = write_study_report(folder, comparison)
    say = console_printer(console)
    say(comparison_text(comparison, console.width))
    say(told)
    return page


def _variant(recipe: Recipe, name: str, changes: list[str], seed: int, folder: Path) -> Recipe:
    several = recipe.study is not None and len(recipe.study.seeds) > 1
    changed = with_changes(
        recipe.model_copy(update={"study": None}), changes, f"variant {name} of {recipe.name}"
    )
    run = recipe.run.member(f"{name}-seed{seed}" if several else name, folder)
    return changed.model_copy(update={"seed": seed, "run": run})


def claim(folder: Path, recipe: Recipe) -> None:
    """Make the study's folder, or go on in it when it is this study's.

    Raises:
        RunFolderError: it holds something else, or a study of another recipe.
    """
    path = folder / STUDY_FILE
    try:
        if folder.exists() and any(folder.iterdir()) and not path.exists():
            raise RunFolderError(
                f"{folder} is not empty and holds no study. Choose another name with run.name=NAME."
            )
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error}. Choose another place with run.folder=PATH."
        ) from error
    if recipe.run.mirror is not None:
        make_mirror(recipe.run.mirror, folder)
    stored = read_json(path).get("recipe") if path.exists() else None
    if stored not in {None, recipe.name}:
        raise RunFolderError(
            f"{folder} holds the study {stored}, not {recipe.name}. Choose another name with"
            " run.name=NAME."
        )
    if stored is None:
        write_json_atomically(path, {"recipe": recipe.name})
    write_text_atomically(folder / STUDY_RECIPE, recipe.to_yaml())
