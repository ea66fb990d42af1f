"""The folder of a study or of a chain of rounds: claimed at the start, filled at the end."""

from pathlib import Path

from rich.console import Console

from brimful.base.console import Say, console_printer
from brimful.base.errors import RunFolderError
from brimful.base.rundir import write_json_atomically, write_text_atomically
from brimful.base.types import JsonDict
from brimful.base.warning_codes import as_note
from brimful.mirror.folder import make_mirror
from brimful.recipe import Recipe
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.study import write_study_report
from brimful.report.comparison.text import comparison_markdown, comparison_text
from brimful.runs.deciding import read_object, write_recipe
from brimful.runs.files import STUDY_FILE, STUDY_RECIPE

TABLE_FILE = "study.md"


def claim(folder: Path, recipe: Recipe, say: Say) -> None:
    """Make the study's folder, or continue in it where it is this study's.

    A damaged study.json is moved aside, and said to be: the study writes it anew.

    Raises:
        RunFolderError: it holds something else, or a study of another recipe.
    """
    path = folder / STUDY_FILE
    try:
        is_study = path.exists() or (folder / STUDY_RECIPE).exists()
        if folder.exists() and any(folder.iterdir()) and not is_study:
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
    stored = _read_or_move_aside(path, say).get("recipe")
    if stored not in {None, recipe.name}:
        raise RunFolderError(
            f"{folder} holds the study {stored}, not {recipe.name}. Choose another name with"
            " run.name=NAME."
        )
    if stored is None:
        note(folder, {"recipe": recipe.name})
    write_recipe(folder, recipe.to_yaml(), STUDY_RECIPE)


def _read_or_move_aside(path: Path, say: Say) -> JsonDict:
    """Return what a study's JSON file holds; nothing where it is missing or damaged."""
    try:
        return read_object(path) if path.exists() else {}
    except RunFolderError as error:
        aside = path.replace(path.with_name(f"damaged-{path.name}"))
        say(
            as_note(
                f"{error}\nIt is damaged, is now called {aside.name}, and is written again", "B314"
            )
        )
        return {}


def note(folder: Path, facts: JsonDict) -> None:
    """Add facts to study.json."""
    path = folder / STUDY_FILE
    before = read_object(path) if path.exists() else {}
    write_json_atomically(path, before | facts, with_checksum=True)


def publish(
    recipe: Recipe,
    folder: Path,
    comparison: RunComparison,
    console: Console,
    *,
    facts: JsonDict,
    remarks: str = "",
) -> Path:
    """Print the table; write it, the facts and the page into the folder; return the page.

    Args:
        facts: Added to study.json.
        remarks: Stand below the table.
    """
    write_text_atomically(
        folder / TABLE_FILE,
        f"# {recipe.name}\n\n{recipe.description}\n\n{comparison_markdown(comparison)}{remarks}",
    )
    note(folder, {**facts, "comparison": comparison.to_json()})
    page = write_study_report(folder, comparison)
    say = console_printer(console)
    say(comparison_text(comparison, console.width))
    say(remarks)
    return page
