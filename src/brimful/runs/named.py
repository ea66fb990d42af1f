"""The folder of a run that is given by its name."""

from pathlib import Path

from brimful.base.discover import did_you_mean
from brimful.base.errors import RunFolderError
from brimful.runs.files import RECIPE_FILE, STATUS_FILE


def resolve_run(name_or_path: str | Path, runs_folder: Path) -> Path:
    """The folder of a run given by its name in `runs_folder` or by its path.

    Raises:
        RunFolderError: no such run (names the nearest), or a folder that is not a run.
    """
    named, path = runs_folder / name_or_path, Path(name_or_path)
    for folder in (named, path):
        if is_run(folder):
            return folder
    for folder in (named, path):
        if folder.exists() and folder.resolve() != runs_folder.resolve():
            raise RunFolderError(
                f"{folder} is not a run folder: it has no {RECIPE_FILE}. Give the name of a run in"
                f" {runs_folder} or the path of one."
            )
    known = sorted(recipe.parent.name for recipe in runs_folder.glob(f"*/{RECIPE_FILE}"))
    listing = (
        f" Runs there: {', '.join(known)}."
        if known
        else " There are no runs there yet: `brimful train RECIPE` makes one."
    )
    raise RunFolderError(
        f"no run {str(name_or_path)!r} in {runs_folder}{did_you_mean(path.name, known)}{listing}"
    )


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run, also one whose recipe or status is lost."""
    return any((folder / name).is_file() for name in (RECIPE_FILE, STATUS_FILE))
