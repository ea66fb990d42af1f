"""Whether a recipe may write into a run folder: as a new run, as the continuation of the same one,
or not at all, with the reason.
"""

import shutil
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from brimful.base.errors import RunFolderError
from brimful.base.manifest import MANIFEST, NOTED_AS, problem_of_file, require_sound, sha256_of
from brimful.base.rundir import (
    SCHEMA_VERSION,
    Lease,
    write_json_atomically,
)
from brimful.recipe import Recipe, differences
from brimful.runs.deciding import (
    num_records_of,
    read_deciding,
    read_object,
    recipe_of_run,
    write_recipe,
)
from brimful.runs.files import (
    CHECKPOINTS_FOLDER,
    CLASSIFIER_FILE,
    MODEL_FOLDER,
    RECIPE_FILE,
    STATUS_FILE,
)

Status = Literal["running", "stopped", "finished"]

FREE = (
    "name",
    "description",
    "evaluation.",
    "checkpoint.",
    "sample.",
    "plan.",
    "run.",
    "data.cache_gib",
    "data.bad_rows",  # rows that it leaves out are part of what identifies the data
)
"""Fields that do not change the training trajectory beyond rounding; they may change between
sessions.
"""
DECLARABLE = ("optimizer.", "batch.", "training.", "seed")
"""Fields that change the trajectory from here on; they may change only with --accept-change."""

_BEFORE_THE_START = (Lease.FILE_NAME, RECIPE_FILE)
"""Files that a session which was killed while starting may leave."""


@dataclass(frozen=True)
class Admission:
    """A run folder that may be written.

    Attributes:
        continues: Whether there is earlier work in it.
        finished: Whether that work reached its end.
        changed: `key: old -> new` for every field that changes with this session.
        moved_aside: Where earlier work is moved that `--fresh` replaces.
        lost_model: Why the model of finished work is written again from its checkpoint; empty where
            it is sound.
    """

    folder: Path
    continues: bool
    finished: bool
    changed: tuple[str, ...]
    moved_aside: Path | None = None
    lost_model: str = ""


def status_of(folder: Path) -> Status | None:
    """Return the status in run.json; None if there is no such file."""
    path = folder / STATUS_FILE
    if not path.exists():
        return None
    values = read_deciding(folder, STATUS_FILE)
    if values.get("schema_version") != SCHEMA_VERSION:
        raise RunFolderError(
            f"{path} has schema version {values.get('schema_version')}, this brimful reads"
            f" {SCHEMA_VERSION}."
        )
    status: Status = values["status"]
    return status


def run_id_of(folder: Path) -> str | None:
    """Return the random number that identifies a run wherever its folder lies; None if there is no
    run.json or no number in it.
    """
    if not (folder / STATUS_FILE).exists():
        return None
    run_id: str | None = read_deciding(folder, STATUS_FILE).get("id")
    return run_id


def write_status(folder: Path, status: Status, recipe: Recipe) -> None:
    """Write run.json. The run keeps its number; a new one gets a random number. Of a finished run
    it says how long the journals are, and which model it ended with.
    """
    run_id = run_id_of(folder) or uuid.uuid4().hex
    values = {
        "schema_version": SCHEMA_VERSION,
        "id": run_id,
        "recipe": recipe.name,
        "status": status,
    }
    if status == "finished":
        values["records"] = num_records_of(folder)
        manifest = folder / MODEL_FOLDER / MANIFEST
        if manifest.is_file():
            values[NOTED_AS] = {MODEL_FOLDER: sha256_of(manifest)}
    write_json_atomically(folder / STATUS_FILE, values, with_checksum=True)


def admit(recipe: Recipe, folder: Path, *, fresh: bool, accept: Sequence[str] = ()) -> Admission:
    """Decide whether a recipe may write into a folder. Nothing is changed yet.

    Args:
        fresh: Start over; unfinished work is moved aside, finished work is never replaced.
        accept: Dotted keys (or sections) whose change the user declares.

    Raises:
        RunFolderError: not a run folder, finished with --fresh, or another recipe's.
    """
    status = _status_or_refuse(folder)
    if status is None:
        return Admission(folder, continues=False, finished=False, changed=())
    if fresh:
        if status == "finished":
            raise RunFolderError(
                f"{folder} holds a finished run; --fresh does not overwrite it. Give the new run a"
                f" name: run.name={folder.name}-2"
            )
        return Admission(
            folder, continues=False, finished=False, changed=(), moved_aside=_free_name(folder)
        )
    changes = differences(recipe_of_run(folder), recipe)
    _refuse_undeclared(str(folder), changes, accept, otherwise="start a new run with run.name=NAME")
    changed = tuple(
        f"{key}: {old} -> {new}"
        for key, (old, new) in changes.items()
        if not _is_in(key, ("name", "description", "run."))
    )
    reached_end = status == "finished" and not any(_is_in(key, DECLARABLE) for key in changes)
    lost_model = _lost_model(folder, recipe) if reached_end else ""
    return Admission(
        folder,
        continues=True,
        finished=reached_end and not lost_model,
        changed=changed,
        lost_model=lost_model,
    )


def _lost_model(folder: Path, recipe: Recipe) -> str:
    """Return why the model of a finished run has to be written again; empty where it is sound.

    Raises:
        RunFolderError: there is no checkpoint to write it from.
    """
    try:
        require_sound(folder / MODEL_FOLDER)
        if recipe.kind.gives_labels:
            _require_classifier(folder)
    except RunFolderError as error:
        reason = str(error)
    else:
        if (folder / MODEL_FOLDER).is_dir():
            return ""
        reason = f"{folder / MODEL_FOLDER} is missing"
    if not any((folder / CHECKPOINTS_FOLDER).glob("step-*")):
        raise RunFolderError(
            f"{reason}.\nNo checkpoint of this finished run is left to write the model from. Put a"
            f" copy of {MODEL_FOLDER}/ back, or train again under another name:"
            f" run.name={folder.name}-2"
        )
    return reason


def _require_classifier(folder: Path) -> None:
    """Raise RunFolderError if classifier.json, or the file beside it that it names, is damaged."""
    noted = read_object(folder / CLASSIFIER_FILE).get("validation", {})
    if problem := problem_of_file(folder, str(noted.get("file")), noted):
        raise RunFolderError(f"{problem} in {folder}")


def claim(admission: Admission) -> Lease:
    """Create the folder and become its only writer. With `--fresh` earlier work is moved aside
    first.

    Raises:
        RunFolderError: another process writes it, or it cannot be made or written.
    """
    try:
        if admission.moved_aside is not None:
            with Lease.acquire(admission.folder):
                pass
            shutil.move(admission.folder, admission.moved_aside)
        admission.folder.mkdir(parents=True, exist_ok=True)
        return Lease.acquire(admission.folder)
    except OSError as error:
        raise _unwritable(admission.folder, error) from error


def describe(admission: Admission, recipe: Recipe) -> None:
    """Write the resolved recipe and the status into a claimed folder.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    write_recipe(admission.folder, recipe.to_yaml())
    write_status(admission.folder, "running", recipe)


def refuse_unwritable(folder: Path) -> None:
    """Try to write where a folder is or will be made; permissions alone do not tell.

    Raises:
        RunFolderError: nothing can be written there.
    """
    standing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with TemporaryDirectory(prefix=".", dir=standing):
            pass
    except OSError as error:
        raise _unwritable(folder, error.strerror or error) from error


def _unwritable(folder: Path, error: object) -> RunFolderError:
    return RunFolderError(
        f"{folder} cannot be written: {error}. Fix its permissions or choose another place with"
        " run.folder=PATH."
    )


def holds_no_work(folder: Path) -> bool:
    """Return whether a folder holds no work: it does not exist, or a session was killed in it
    while starting.
    """
    if not folder.exists():
        return True
    return folder.is_dir() and all(
        entry.name in _BEFORE_THE_START or entry.name.startswith(".") for entry in folder.iterdir()
    )


def _status_or_refuse(folder: Path) -> Status | None:
    try:
        status = status_of(folder)
        has_content = folder.is_dir() and not holds_no_work(folder)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be read: {error}. Choose another place with run.folder=PATH."
        ) from error
    if folder.exists() and not folder.is_dir():
        raise RunFolderError(
            f"{folder} is a file; a run needs a folder. Choose another name with run.name=NAME."
        )
    if status is None and has_content:
        raise RunFolderError(
            f"{folder} is not empty and not a run folder (no run.json). Choose another name with"
            " run.name=NAME."
        )
    return status


def refuse_other_recipe(
    where: str, stored: Recipe, recipe: Recipe, accept: Sequence[str], *, otherwise: str
) -> None:
    """Check the recipe of a run that lies somewhere else, as `admit` does.

    Args:
        where: Names the run in errors.
        otherwise: The alternative to continuing it, as a clause.

    Raises:
        RunFolderError: the run has another recipe, or other values that are not declared in
            `accept`.
    """
    _refuse_undeclared(where, differences(stored, recipe), accept, otherwise=otherwise)


def _refuse_undeclared(
    where: str, changes: dict[str, tuple[object, object]], accept: Sequence[str], *, otherwise: str
) -> None:
    lines = {key: f"  - {key}: {old} -> {new}" for key, (old, new) in changes.items()}
    foreign = [lines[key] for key in changes if not _is_in(key, (*FREE, *DECLARABLE))]
    if foreign:
        raise RunFolderError(
            f"{where} was made by another recipe. What differs:\n"
            + "\n".join(foreign)
            + f"\nData, tokenizer, model and objective of a run never change; {otherwise}, or put"
            " the values back."
        )
    undeclared = [
        key for key in changes if _is_in(key, DECLARABLE) and not _is_accepted(key, accept)
    ]
    if undeclared:
        raise RunFolderError(
            f"{where} was started with other values:\n"
            + "\n".join(lines[key] for key in undeclared)
            + "\nTo continue with the new ones say so:"
            f" {' '.join(f'--accept-change {key}' for key in undeclared)}; otherwise put the old"
            " ones back."
        )


def _is_in(key: str, groups: Sequence[str]) -> bool:
    return any(key == group or (group.endswith(".") and key.startswith(group)) for group in groups)


def _is_accepted(key: str, accept: Sequence[str]) -> bool:
    return any(key == declared or key.startswith(f"{declared}.") for declared in accept)


def _free_name(folder: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return folder.with_name(f"{folder.name}.replaced-{stamp}")
