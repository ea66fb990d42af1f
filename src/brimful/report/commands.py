"""Exact commands that continue or repeat a run. They work when typed where this ran."""

import shlex
from pathlib import Path

from brimful.base.env import runs_folder
from brimful.base.errors import BrimfulError
from brimful.recipe import Recipe, load
from brimful.recipe.base import folder_name
from brimful.runs.files import RECIPE_FILE, STUDY_FILE, STUDY_RECIPE
from brimful.runs.folder import RunFolder

STUDY_FILES = (STUDY_RECIPE, STUDY_FILE)


def name_of(folder: Path) -> str:
    """Return how the command line names a run: its place below the runs folder, else its path."""
    try:
        name = str(folder.resolve().relative_to(runs_folder().resolve()))
    except (ValueError, OSError):
        name = "."
    name = str(folder) if name == "." else name
    return f"./{name}" if name.startswith("-") else name  # else it is an option


def continue_command(
    run_folder: Path, *, command: str = "", is_mirrored: bool = False
) -> str | None:
    """Return what continues a run from the recipe in its folder, None where nothing does. A run in
    a study or a chain is continued with the whole study or chain.

    Nothing continues a run without its recipe, one whose folder has a name that no run can have,
    and a chain that was moved: its runs name their data in its old place.

    Args:
        run_folder: Also of a study or a chain.
        command: The command that started it; `brimful run` goes on to scores and a report.
        is_mirrored: The folder is a run's copy in a mirror. The run then continues in the runs
            folder, from that copy.
    """
    whole = run_folder.parent if is_several(run_folder.parent) else run_folder
    file = whole / (STUDY_RECIPE if is_several(whole) else RECIPE_FILE)
    try:
        recipe = load(str(file))
    except (BrimfulError, OSError, ValueError):
        return None
    begins_with_run = is_several(whole) or command.split()[1:2] == ["run"]
    changes = _to_mirror(recipe, whole) if is_mirrored else _to_folder(recipe, whole)
    if changes is None:
        return None
    was_moved = bool(changes) and not is_mirrored
    if was_moved and recipe.rft is not None:
        return None
    verb = "run" if begins_with_run else "train"
    return shlex.join(["brimful", verb, str(file), *changes])


def is_several(folder: Path) -> bool:
    """Return whether a folder holds a study or a chain."""
    return any((folder / name).is_file() for name in STUDY_FILES)


def _to_folder(recipe: Recipe, folder: Path) -> list[str] | None:
    """Return the changes to a recipe after which its run is the one in this folder; None where no
    run can have the folder's name.
    """
    folder = folder.resolve()
    changes = []
    if recipe.run_name != folder.name:
        try:
            changes.append(f"run.name={folder_name(folder.name)}")
        except ValueError:
            return None
    place = Path(recipe.run.folder) if recipe.run.folder else runs_folder()
    if place.resolve() != folder.parent:
        changes.append(f"run.folder={folder.parent}")
    return changes


def _to_mirror(recipe: Recipe, folder: Path) -> list[str]:
    """Return the same for a copy in a mirror, whose folder is named like the run."""
    folder = folder.resolve()
    changes = []
    if recipe.run_name != folder.name:
        changes.append(f"run.name={folder.name}")
    if not recipe.run.mirror or Path(recipe.run.mirror).resolve() != folder.parent:
        changes.append(f"run.mirror={folder.parent}")
    return changes


def repeat_command(run: RunFolder, recipe: str) -> str:
    """Return what trains a run once more from its resolved recipe: under another name, where runs
    are kept, without its mirror and its session.

    Args:
        recipe: Path of the recipe, as it is to be typed.
    """
    section = run.recipe.run
    given = {"folder": section.folder, "mirror": section.mirror, "session": section.session}
    changes = [f"run.{key}=null" for key, value in given.items() if value is not None]
    return shlex.join(["brimful", "run", recipe, f"run.name={run.name}-again", *changes])
