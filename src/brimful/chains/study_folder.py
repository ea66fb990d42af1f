"""The folder of a study or of a chain of rounds: claimed at the start, filled at the end."""

from pathlib import Path
from typing import Any

from rich.console import Console

from brimful.base.console import console_printer
from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json, write_json_atomically, write_text_atomically
from brimful.mirror.folder import make_mirror
from brimful.recipe import Recipe
from brimful.report.comparison.compare import RunComparison
from brimful.report.comparison.study import write_study_report
from brimful.report.comparison.text import comparison_markdown, comparison_text
from brimful.runs.files import STUDY_FILE, STUDY_RECIPE

TABLE_FILE = "study.md"


def claim(folder: Path, recipe: Recipe) -> None:
    """Make the study's folder, or continue in it where it is this study's.

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


def publish(
    recipe: Recipe,
    folder: Path,
    comparison: RunComparison,
    console: Console,
    *,
    facts: dict[str, Any],
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
    write_json_atomically(
        folder / STUDY_FILE,
        {**read_json(folder / STUDY_FILE), **facts, "comparison": comparison.to_json()},
    )
    page = write_study_report(folder, comparison)
    say = console_printer(console)
    say(comparison_text(comparison, console.width))
    say(remarks)
    return page
