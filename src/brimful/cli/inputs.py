"""Turn what several verbs are given into values: a recipe with its changes, the folder of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from brimful.base.errors import BrimfulError, RequestError, RunFolderError
from brimful.cli.output import loading, say

if TYPE_CHECKING:
    from brimful.recipe import Recipe


def load_recipe(
    name: str, overrides: list[str] | None, *, session: str | None = None, yes: bool = False
) -> "Recipe":
    """Return the recipe with its changes. Print to standard error which other values would suit a
    changed effective batch; they are not changed.

    Args:
        name: A shipped recipe or a file.
        overrides: Changes, as dotted.key=value.
        session: Value of `--session`, a change of run.session.
        yes: Whether `--yes` is given, a change of run.long.

    Raises:
        BrimfulError: there is no such recipe, or it is not valid with these changes.
    """
    from brimful.base.env import is_told_by_another_process
    from brimful.planning.scaling import notes
    from brimful.recipe import load
    from brimful.recipe.presets import choosing

    changes = list(overrides or [])
    if session:
        changes.append(f"run.session={session}")
    if yes:
        changes.append("run.long=true")
    recipe = load(name, changes)
    try:
        original = load(name, choosing(changes))
    except BrimfulError:  # the recipe is valid only with the changes
        return recipe
    if is_told_by_another_process():
        return recipe
    if lines := notes(original, recipe):
        say("\n".join(lines), stderr=True)
    return recipe


def say_family_notes(*names: str) -> None:
    """Print to standard error which device is meant by each name of a family of devices, such as
    A100.

    Args:
        names: Names as `--on` takes them, several separated by commas in each.
    """
    from brimful.base.warning_codes import as_note
    from brimful.hardware.groups import family_notes

    for note in family_notes(listed(",".join(names))):
        say(as_note(note, "B108"), stderr=True)


def look_at_data(recipe: "Recipe") -> None:
    """Look at the first rows of a recipe's data before torch is imported, which takes seconds.

    A finished run reads no data any more, be it here or in a mirror. Variants of a study may have
    other data; those are looked at when they start.

    Raises:
        LibraryError: it tunes adapters, and the installed libraries do not fit each other.
        DataError: as `first_look`; RunFolderError: the mirror cannot be used.
    """
    from brimful.base.libraries import refuse_unfit_adapters
    from brimful.data.first_look import first_look

    if recipe.adapter is not None:
        refuse_unfit_adapters()
    if recipe.study is None and not _is_finished(recipe):
        first_look(recipe)


@contextmanager
def with_data_ahead(recipe: "Recipe", devices: str | None) -> Iterator[None]:
    """Look at the first rows of a recipe's data, and then let all of it be prepared beside the
    block, if that gains anything.

    Args:
        recipe: What the block trains; nothing of torch is imported yet.
        devices: Value of `--devices`; several processes prepare data themselves.

    Raises:
        LibraryError, DataError, RunFolderError: as `look_at_data`.
    """
    with loading():
        look_at_data(recipe)
        from brimful.data.prepared_ahead import preparing_ahead
    if devices is not None or recipe.makes_several_runs or _is_finished(recipe):
        yield
        return
    with preparing_ahead(recipe):
        yield


def _is_finished(recipe: "Recipe") -> bool:
    from brimful.base.env import runs_folder
    from brimful.base.rundir import read_json
    from brimful.mirror.place import Place
    from brimful.runs.files import STATUS_FILE

    folder = Path(recipe.run.folder or runs_folder(), recipe.run_name)
    status = folder / STATUS_FILE
    try:
        if status.exists() and read_json(status).get("status") == "finished":
            return True
    except RunFolderError:  # told with what to do about it where the run is admitted
        return False
    return (
        recipe.run.mirror is not None and Place.of(recipe.run.mirror, folder).holds_finished_run()
    )


def run_folder(run: str) -> Path:
    """Return the folder of a run that is named or whose path is given.

    Raises:
        RunFolderError: there is none.
    """
    from brimful.base.env import runs_folder
    from brimful.runs.named import resolve_run

    return resolve_run(run, runs_folder())


def listed(text: str) -> list[str]:
    """`"a, b"` -> `["a", "b"]`; an empty text is an empty list."""
    return [word.strip() for word in text.split(",") if word.strip()]


def listed_numbers(option: str, text: str) -> list[int]:
    """`"512,1024"` -> `[512, 1024]`.

    Raises:
        RequestError: one is not a whole number.
    """
    try:
        return [int(word) for word in listed(text)]
    except ValueError:
        raise RequestError(
            f"--{option} {text!r} must be whole numbers separated by commas, such as 512,2048."
        ) from None
