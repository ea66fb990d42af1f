"""A finished run beside its mirror: whether it is still whole here, and what it lost is brought
back. A damaged run replaces no good copy.
"""

import os
from collections.abc import Callable, Mapping, Set
from pathlib import Path
from typing import Any

from brimful.base.errors import RunFolderError
from brimful.base.rundir import (
    SCHEMA_VERSION,
    Lease,
    fsync_folder,
    read_json,
    write_json_atomically,
)
from brimful.base.units import format_bytes
from brimful.mirror.files import Entry, Files, NotWhole, in_words
from brimful.mirror.points import MirroredRun
from brimful.mirror.sources import FINISHED, JOURNAL, all_files
from brimful.training.checkpoint import MANIFEST

Say = Callable[[str], None]
MODEL = "model/"
NOTE = ".mirrored.json"
"""In a run folder: size and time of change of its files, here and in the mirror, when the copy was
read back.
"""
NEEDED = ("run.json", "recipe.yaml", "plan.json", "data.json", "environment.json", JOURNAL)
"""What cannot be made again, beside the model."""


class DamagedHere(Exception):
    """The finished run on this machine is not what it was, in words; its mirror is not to be
    changed.
    """


def damage_of(
    run_folder: Path, listed: Mapping[str, Entry], files: Files, known: Set[str] = frozenset()
) -> dict[str, str]:
    """What of a finished run is missing or damaged here, by name: of what its model's own manifest
    lists, and of what its mirror has.

    Args:
        listed: The files of the finished run in the mirror; of an earlier end of this run where it
            was trained on since.
        files: Told that reading here is no silence of the mirror.
        known: Of these nothing changed since they were read; they are not read again.
    """
    noted, found = _manifest_of(run_folder), {}
    is_same = _is_same_end(run_folder, listed, files)
    wanted: dict[str, Entry | None] = {name: None for name in listed if name in NEEDED}
    if is_same or noted is None:
        wanted |= {
            name: entry if is_same else None
            for name, entry in listed.items()
            if name.startswith(MODEL)
        }
    wanted |= noted or {}
    for name, entry in wanted.items():
        path = run_folder / name
        if not path.is_file():
            found[name] = "is missing"
        elif (
            entry is not None
            and name not in known
            and (path.stat().st_size != entry.num_bytes or files.entry_of(path) != entry)
        ):
            found[name] = "is damaged"
    journal = listed.get(JOURNAL)
    if (
        is_same
        and journal is not None
        and JOURNAL not in found
        and (run_folder / JOURNAL).stat().st_size < journal.num_bytes
    ):
        found[JOURNAL] = "was cut"
    return found


def _manifest_of(run_folder: Path) -> dict[str, Entry] | None:
    """What the model's manifest lists; None where there is none to read."""
    try:
        return {
            f"{MODEL}{name}": Entry.from_json(value)
            for name, value in read_json(run_folder / MODEL / MANIFEST)["files"].items()
        }
    except (RunFolderError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _is_same_end(run_folder: Path, listed: Mapping[str, Entry], files: Files) -> bool:
    """Whether what the mirror has is the end at which the run is here: it was not trained on
    since.
    """
    for name in (f"{MODEL}{MANIFEST}", JOURNAL):
        if (
            name in listed
            and (run_folder / name).is_file()
            and files.entry_of(run_folder / name) == listed[name]
        ):
            return True
    return False


def mend(mirrored: MirroredRun, run_folder: Path, say: Say) -> None:
    """Bring back from the mirror what a finished run lost here.

    Raises:
        OSError: the mirror cannot be read now.
        RunFolderError: another process writes the run folder, or it cannot be written.
    """
    try:
        listed = mirrored.finished()
    except NotWhole:
        return
    damage = damage_of(run_folder, listed, mirrored.files, unchanged(mirrored, run_folder))
    if (
        not damage
        or not damage.keys() <= listed.keys()
        or not _is_same_end(run_folder, listed, mirrored.files)
    ):
        return  # what cannot be mended is said when the mirror is brought up to date
    try:
        with Lease.acquire(run_folder):
            for name in damage:
                _fetch(mirrored, run_folder, name, listed[name])
    except NotWhole as error:
        say(
            f"mirror: the run here is damaged ({told(damage)}), and so is the copy:"
            f" {in_words(error)}"
        )
        return
    num_bytes = sum(listed[name].num_bytes for name in damage)
    say(
        f"the run here was damaged ({told(damage)}); brought back from the mirror"
        f" {mirrored.folder}: {format_bytes(num_bytes)}, read whole"
    )


def _fetch(mirrored: MirroredRun, run_folder: Path, name: str, entry: Entry) -> None:
    path = run_folder / name
    aside = path.with_name(f".{path.name}.fetched")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        mirrored.files.fetch(mirrored.folder / name, aside, entry)
        os.replace(aside, path)
        fsync_folder(path.parent)
    finally:
        aside.unlink(missing_ok=True)


def told(damage: Mapping[str, str]) -> str:
    """In a clause: `model/model.safetensors is missing, and 2 files more`."""
    first = [f"{name} {what}" for name, what in list(damage.items())[:2]]
    more = len(damage) - len(first)
    return ", ".join(first) + (f", and {more} more" if more else "")


def require_whole(mirrored: MirroredRun, run_folder: Path) -> None:
    """Raises DamagedHere where the run here lost something, so that it may not be copied over what
    the mirror has.
    """
    try:
        listed = mirrored.finished()
    except NotWhole:
        listed = {}
    if damage := damage_of(run_folder, listed, mirrored.files, unchanged(mirrored, run_folder)):
        is_there = damage.keys() <= listed.keys()
        to_do = (
            f"which has it: move {run_folder} away and run the same command again"
            if is_there
            else "which does not have it either"
        )
        raise DamagedHere(
            f"the finished run in {run_folder} is damaged ({told(damage)}). Nothing was changed in"
            f" the mirror {mirrored.folder}, {to_do}"
        )


def note(mirrored: MirroredRun, run_folder: Path) -> None:
    """Remember what was just read back and found equal, by size and time of change."""
    names = [path.relative_to(run_folder).as_posix() for path in all_files(run_folder)]
    here = {name: _stat(run_folder / name) for name in names}
    there = {name: _stat(mirrored.folder / name) for name in (*names, FINISHED)}
    write_json_atomically(
        run_folder / NOTE,
        {
            "schema_version": SCHEMA_VERSION,
            "path": str(mirrored.folder),
            "here": here,
            "there": there,
        },
    )


def unchanged(mirrored: MirroredRun, run_folder: Path) -> frozenset[str]:
    """Files that are here and in the mirror as they were when they were read back; what changed
    unseen is found by `runs --check`.
    """
    here, there = _noted(mirrored, run_folder)
    return frozenset(
        name
        for name in here
        if _is(run_folder / name, here[name]) and _is(mirrored.folder / name, there.get(name))
    )


def is_as_noted(mirrored: MirroredRun, run_folder: Path) -> bool:
    """Whether there is nothing to copy: here and in the mirror are the files that were read back,
    unchanged.
    """
    names = {path.relative_to(run_folder).as_posix() for path in all_files(run_folder)}
    return names == _noted(mirrored, run_folder)[0].keys() == unchanged(mirrored, run_folder)


def _noted(mirrored: MirroredRun, run_folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was noted of the files here and of those there; empty where it is of another mirror, or
    of another state of it.
    """
    try:
        noted = read_json(run_folder / NOTE)
        if noted["path"] == str(mirrored.folder) and noted["there"][FINISHED] == _stat(
            mirrored.folder / FINISHED
        ):
            return dict(noted["here"]), dict(noted["there"])
    except (RunFolderError, OSError, KeyError, TypeError, ValueError):
        pass
    return {}, {}


def _is(path: Path, noted: object) -> bool:
    try:
        return _stat(path) == noted
    except OSError:
        return False


def _stat(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]
