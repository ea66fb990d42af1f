"""Exact commands: how a run that is not finished goes on, and what a finished one is for. They work
when typed where this ran.
"""

import shlex
from pathlib import Path

from brimful.base.env import runs_folder
from brimful.base.errors import BrimfulError
from brimful.recipe import Recipe, load
from brimful.recipe.base import folder_name
from brimful.runs.runfiles import RunFiles, kind_of, section

RECIPE_FILE, STUDY_RECIPE = "recipe.yaml", "study.yaml"
STUDY_FILES = (STUDY_RECIPE, "study.json")
OF_ITS_PLACE = ("folder", "mirror", "session")
"""Keys of a recipe's `run` that belong to the machine and the hour, and not to what is trained."""


def name_of(folder: Path) -> str:
    """What a run is called on the command line: its place below the runs folder, else its path."""
    try:
        name = str(folder.resolve().relative_to(runs_folder().resolve()))
    except (ValueError, OSError):
        return str(folder)
    return str(folder) if name == "." else name


def continue_command(
    run_folder: Path, *, command: str = "", is_mirrored: bool = False
) -> str | None:
    """What continues a run from the recipe in its folder; None where nothing does. Of a run in a
    study or a chain: the whole.

    Nothing continues a run without its recipe, one whose folder's name no run can have, and a chain
    that was moved: its runs name their data in its old place.

    Args:
        run_folder: Also of a study or a chain.
        command: By which it was started; `brimful run` goes on to scores and a report.
        is_mirrored: The folder is a run's copy in a mirror: the run goes on in the runs folder,
            from that copy.
    """
    whole = run_folder.parent if is_several(run_folder.parent) else run_folder
    file = whole / (STUDY_RECIPE if is_several(whole) else RECIPE_FILE)
    try:
        recipe = load(str(file))
    except (BrimfulError, OSError, ValueError):
        return None
    verb = "run" if is_several(whole) or command.split()[1:2] == ["run"] else "train"
    changes = _to_mirror(recipe, whole) if is_mirrored else _to_folder(recipe, whole)
    was_moved = bool(changes) and not is_mirrored
    return (
        None
        if changes is None or (was_moved and recipe.rft is not None)
        else shlex.join(["brimful", verb, str(file), *changes])
    )


def is_several(folder: Path) -> bool:
    """Whether a folder holds a study or a chain."""
    return any((folder / name).is_file() for name in STUDY_FILES)


def _to_folder(recipe: Recipe, folder: Path) -> list[str] | None:
    """What must be said so that the recipe's run is the one in this folder; None where its name can
    be no run's.
    """
    place = Path(recipe.run.folder) if recipe.run.folder else runs_folder()
    changes = []
    if recipe.run_name != folder.resolve().name:
        try:
            changes.append(f"run.name={folder_name(folder.resolve().name)}")
        except ValueError:
            return None
    if place.resolve() != folder.resolve().parent:
        changes.append(f"run.folder={folder.resolve().parent}")
    return changes


def _to_mirror(recipe: Recipe, folder: Path) -> list[str] | None:
    """The same for a copy in a mirror, whose folder is named like the run."""
    changes = (
        [] if recipe.run_name == folder.resolve().name else [f"run.name={folder.resolve().name}"]
    )
    mirror = folder.resolve().parent
    return (
        changes
        if recipe.run.mirror and Path(recipe.run.mirror).resolve() == mirror
        else [*changes, f"run.mirror={mirror}"]
    )


def repeat_command(run: RunFiles, recipe: str) -> str:
    """What trains a run once more from its resolved recipe: under another name, where runs are
    kept, without its mirror and its session.

    Args:
        recipe: Path of the recipe, as it is to be typed.
    """
    kept = section(run.recipe, "run")
    changes = [
        f"run.name={run.name}-again",
        *(f"run.{key}=null" for key in OF_ITS_PLACE if kept.get(key) is not None),
    ]
    return shlex.join(["brimful", "run", recipe, *changes])


def use_command(run: RunFiles) -> str:
    """What a finished run is for."""
    name, kind = shlex.quote(name_of(run.folder)), kind_of(run)
    if kind == "labels":
        return f"brimful predict {name} FILE"
    return (
        f"brimful evaluate {name}"
        if kind == "masked"
        else f'brimful generate {name} --prompt "..."'
    )
