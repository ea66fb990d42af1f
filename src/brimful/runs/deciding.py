"""The files of a run folder that decide its answers: each carries a checksum, and checkpoints hold
copies of them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from brimful.base.errors import RecipeError, RunFolderError
from brimful.base.rundir import (
    checksum_of,
    is_torn,
    num_records,
    read_json,
    records_lost,
    write_text_atomically,
)
from brimful.base.text import plural, reason_of
from brimful.base.types import Counts, JsonDict, Texts
from brimful.hardware.monitored import FILE_NAME as MONITOR_FILE
from brimful.hardware.monitored import monitored_until
from brimful.recipe import Recipe, load_text
from brimful.runs.files import (
    CHECKPOINTS_FOLDER,
    CLASSIFIER_FILE,
    DATA_FILE,
    ENVIRONMENT_FILE,
    JOURNAL_FILE,
    MIRROR_FILE,
    PLAN_FILE,
    RECIPE_FILE,
    SAMPLES_FILE,
    SCORES_FILE,
    SIDE_BY_SIDE_FILE,
    STATUS_FILE,
    STUDY_FILE,
)

DECIDING_FILES = (RECIPE_FILE, STATUS_FILE, PLAN_FILE, DATA_FILE, ENVIRONMENT_FILE)
_JOURNALS = (JOURNAL_FILE, SAMPLES_FILE, SIDE_BY_SIDE_FILE, MONITOR_FILE)
OWN = {
    STATUS_FILE: {"status"},
    PLAN_FILE: {"predicted"},
    DATA_FILE: {"fingerprints"},
    ENVIRONMENT_FILE: {"brimful"},
    SCORES_FILE: {"train", "validation", "test"},
    MIRROR_FILE: {"durable_step"},
    STUDY_FILE: {"recipe"},
    CLASSIFIER_FILE: {"labels"},
}
"""Keys of which a JSON file always has one, and by which it is told, where it has no checksum, from
what another program wrote.
"""
MONITORED_UNTIL = "monitored_until"
"""Key in the state of a checkpoint of the time of the monitor's newest record then, in whole Unix
seconds.
"""
ADAPTERS = "adapters"
"""Key, in data.json's facts on the base, of the fingerprint of adapters that a run went on with."""
_SEAL = "# checksum of all that follows: "


def write_recipe(folder: Path, text: str, name: str = RECIPE_FILE) -> None:
    """Write a run's or a study's recipe. Its first line, a comment, is the checksum of the rest."""
    write_text_atomically(folder / name, f"{_SEAL}{checksum_of(text)}\n{text}")


def read_recipe_text(path: Path) -> str:
    """Return the text of a run's or a study's recipe, without its checksum. Earlier versions wrote
    none.

    Raises:
        RunFolderError: it cannot be read, or differs from its checksum.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}") from error
    if text.lstrip().startswith("{"):
        raise RunFolderError(f"{path} holds something else: JSON.")
    first, _, rest = text.partition("\n")
    if first.endswith(checksum_of(rest)):
        return rest
    if text.startswith("#"):
        raise RunFolderError(
            f"{path} differs from the checksum in its first line, so it is damaged or was edited."
        )
    return text


def recipe_of_run(run_folder: Path) -> Recipe:
    """Return the recipe in a run folder.

    Raises:
        RunFolderError: recipe.yaml is missing or damaged; RecipeError: it is no recipe.
    """
    path = run_folder / RECIPE_FILE
    text = _with_remedy(read_recipe_text, path)
    try:
        return load_text(text, str(path))
    except RecipeError as error:
        raise RecipeError(f"{error}\n{_remedy(path)}") from error


def read_deciding(run_folder: Path, name: str) -> JsonDict:
    """Return what one of the JSON files of `DECIDING_FILES` holds.

    Raises:
        RunFolderError: it is missing or damaged; says how to bring it back.
    """
    values: JsonDict = _with_remedy(read_object, run_folder / name)
    return values


def problem_of(path: Path) -> str:
    """Return what is wrong with one of `DECIDING_FILES`; empty where it is sound."""
    try:
        if path.name == RECIPE_FILE:
            # Without a checksum, from an earlier version or by damage, it has to be a recipe.
            is_sealed = read_recipe_text(path) != path.read_text(encoding="utf-8")
            _ = is_sealed or recipe_of_run(path.parent)
        else:
            read_object(path)
    except (RunFolderError, RecipeError) as error:
        return reason_of(error)
    return ""


def texts_of(run_folder: Path) -> Texts:
    """Return the texts of `DECIDING_FILES` that are there and sound, by name."""
    paths = [run_folder / name for name in DECIDING_FILES]
    return {path.name: path.read_text(encoding="utf-8") for path in paths if not problem_of(path)}


def read_object(path: Path) -> JsonDict:
    """Return what a JSON file of a run holds.

    Raises:
        RunFolderError: it is missing, damaged, or another file in its place.
    """
    values = read_json(path)
    if not OWN.get(path.name, values.keys()) & values.keys():
        raise RunFolderError(f"{path} holds something else than was written there.")
    return values


def _with_remedy(read: Callable[[Path], Any], path: Path) -> Any:
    try:
        return read(path)
    except RunFolderError as error:
        raise RunFolderError(f"{str(error).rstrip('.')}.\n{_remedy(path)}") from error


def _remedy(path: Path) -> str:
    return (
        f"Run the command that trained it again: it brings {path.name} back from a checkpoint, or"
        " says why it cannot."
    )


def num_records_of(run_folder: Path, *, is_growing: bool = False) -> Counts:
    """Return how many records each journal of a run folder holds.

    Args:
        is_growing: Whether the run is being trained. Its monitor then merges samples as it goes, so
            its journal counts as one record however many it has.
    """
    paths = (run_folder / name for name in _JOURNALS)
    counts = {path.name: num_records(path) for path in paths if path.exists()}
    if is_growing and MONITOR_FILE in counts:
        counts[MONITOR_FILE] = min(1, counts[MONITOR_FILE])
    return counts


def lost_records(run_folder: Path) -> dict[str, str]:
    """Return, by file name, a sentence about each journal that is damaged or has lost its end."""
    checkpoints = (run_folder / CHECKPOINTS_FOLDER).glob("step-*/state.json")
    noted = [_noted(run_folder / STATUS_FILE), *map(_noted, sorted(checkpoints)[-1:])]
    problems = {}
    for name in _JOURNALS:
        path, num_noted = run_folder / name, max(each.get(name, 0) for each in noted)
        lost = records_lost(path, num_noted)
        if lost:
            problems[name] = (
                f"{name}: {plural(lost, 'record')} damaged or missing, left out of"
                " all that is shown."
            )
        elif is_torn(path):
            problems[name] = (
                f"{name}: the last record is cut off, so it is left out of all that is shown."
            )
    until_s = max(each.get(MONITORED_UNTIL, 0) for each in noted)
    if MONITOR_FILE not in problems and monitored_until(run_folder) < until_s:
        problems[MONITOR_FILE] = f"{MONITOR_FILE}: it has lost its end, records are missing."
    return problems


def _noted(path: Path) -> Counts:
    """Return the lengths of journals, and until when was monitored, which run.json or the state of
    a checkpoint names.
    """
    try:
        values = read_json(path)
        counts = {**values.get("records", {}), MONITORED_UNTIL: values.get(MONITORED_UNTIL, 0)}
        return {str(name): int(count) for name, count in counts.items()}
    except (RunFolderError, AttributeError, TypeError, ValueError):
        return {}
