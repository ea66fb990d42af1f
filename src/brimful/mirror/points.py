"""Recovery points in a mirror: folders that are complete or absent, each enough by itself to
continue a run bit for bit; and what of a run is copied into them, held while it is copied.

`checkpoints/step-N/` holds a checkpoint as it lies in the run folder, under `run/` the other files
of the run as of that step, and POINT.json with the size and SHA-256 of all of them. It is written
under a temporary name, read back, renamed, and checked once more under its final name.
"""

import hashlib
import json
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from brimful.base.errors import RunFolderError
from brimful.base.manifest import MANIFEST
from brimful.base.rundir import Lease, read_json
from brimful.base.types import Json, JsonDict
from brimful.mirror.files import Entry, Files, IntegrityError
from brimful.mirror.place import FINISHED
from brimful.mirror.status import STATUS
from brimful.runs.files import RECIPE_FILE
from brimful.training.checkpoint import CheckpointStore

CHECKPOINTS = "checkpoints"
JOURNAL = "metrics.jsonl"
PINS = ".mirror"
"""Folder of a run that holds hard links to the files being copied, so that rotation cannot remove
them.
"""
_NOT_COPIED = (Lease.FILE_NAME, STATUS, CHECKPOINTS, FINISHED)


def folder_of_step(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint in a run, or of its point in a mirrored run."""
    return CheckpointStore(folder / CHECKPOINTS, keep=2).path_of(step)


def local_steps(run_folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints, oldest first."""
    return CheckpointStore(run_folder / CHECKPOINTS, keep=2).steps()


def signature(path: Path) -> list[int]:
    """Return size and time of change, by which a file is taken for unchanged."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def run_files(run_folder: Path) -> list[Path]:
    """Return the files of a run beside its checkpoints: no folders, no lease, no temporary
    files.
    """
    return sorted(
        path
        for path in run_folder.iterdir()
        if path.name not in _NOT_COPIED and not path.name.startswith(".") and path.is_file()
    )


def all_files(run_folder: Path) -> dict[str, Path]:
    """Return `run_files` and the files in the run's folders (model, evaluations, plots), by name
    in the run folder.
    """
    paths = run_files(run_folder)
    for folder in sorted(path for path in run_folder.iterdir() if path.is_dir()):
        if folder.name in _NOT_COPIED or re.match(r"\.|.*\.(tmp|replaced)-", folder.name):
            continue
        inside = sorted(folder.rglob("*"))
        paths += [path for path in inside if path.is_file() and not path.is_symlink()]
    return {path.relative_to(run_folder).as_posix(): path for path in paths}


@dataclass(frozen=True)
class Pinned:
    """A checkpoint of a run, held while it is copied.

    Attributes:
        folder: Holds its files.
        state: Its state.json.
        version: SHA-256 of its manifest, which tells two checkpoints of one step apart.
    """

    step: int
    folder: Path
    state: Json
    version: str

    @property
    def best_step(self) -> int | None:
        best: int | None = self.state["progress"]["best_step"]
        return best


@contextmanager
def pinned(run_folder: Path, step: int) -> Iterator[Pinned]:
    """Hold a checkpoint by hard links. On a file system without them its own files are used.

    Raises:
        FileNotFoundError: rotation removed it before it was held.
    """
    pin = run_folder / PINS / f"{step}-{uuid.uuid4().hex[:8]}"
    source = folder_of_step(run_folder, step)
    try:
        folder = _linked(source, pin, sorted(path.name for path in source.iterdir()))
        try:
            state = read_json(folder / "state.json")
        except RunFolderError as error:
            if source.exists():
                raise
            raise FileNotFoundError(source) from error
        version = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
        yield Pinned(step, folder, state, version)
    finally:
        shutil.rmtree(pin, ignore_errors=True)


def _linked(source: Path, pin: Path, names: list[str]) -> Path:
    """Return the new folder `pin` with hard links to the files of `source`, or `source` itself on a
    file system without hard links.
    """
    pin.mkdir(parents=True)
    for name in names:
        try:
            os.link(source / name, pin / name)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without hard links
            return source
    return pin


def drop_pins(run_folder: Path) -> None:
    """Remove hard links to checkpoints that were left by a process killed while it copied."""
    shutil.rmtree(run_folder / PINS, ignore_errors=True)


FORMAT_VERSION = 1
POINT = "POINT.json"
RUN_FILES = "run"


@dataclass(frozen=True)
class RecoveryPoint:
    """The content of a recovery point.

    Attributes:
        best_step: Step of the checkpoint that the final export needs; None before the first
            evaluation.
        files: Entries by name in the point's folder.
    """

    step: int
    best_step: int | None
    run_id: str
    files: Mapping[str, Entry]

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.files.values())

    @property
    def version(self) -> str:
        """SHA-256 of the checkpoint's manifest, which tells two checkpoints of one step apart."""
        return self.files[MANIFEST].sha256

    def to_json(self) -> JsonDict:
        return _signed(self.files, run_id=self.run_id, step=self.step, best_step=self.best_step)

    @classmethod
    def from_json(cls, values: Any) -> "RecoveryPoint":
        """Raise IntegrityError if these are not the values that this version wrote."""
        entries = _entries_of(values, POINT)
        step, best_step, run_id = (values.get(key) for key in ("step", "best_step", "run_id"))
        if not (
            isinstance(step, int)
            and isinstance(best_step, int | None)
            and isinstance(run_id, str)
            and {MANIFEST, f"{RUN_FILES}/{RECIPE_FILE}"} <= entries.keys()
        ):
            raise IntegrityError(f"{POINT} is damaged")
        return cls(step, best_step, run_id, entries)


def _signed(files: Mapping[str, Entry], **values: Any) -> JsonDict:
    """Return a list of files as JSON, with a hash of the list itself."""
    entries = {name: entry.to_json() for name, entry in files.items()}
    signed = {"format_version": FORMAT_VERSION, **values, "files": entries}
    return {**signed, "sha256": _digest_of(signed)}


def _digest_of(values: Json) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _entries_of(values: Any, name: str) -> dict[str, Entry]:
    """Return the files of a `_signed` list; raise IntegrityError if it is damaged."""
    if not isinstance(values, dict):
        raise IntegrityError(f"{name} is damaged")
    unsigned = {key: value for key, value in values.items() if key != "sha256"}
    if values.get("sha256") != _digest_of(unsigned):
        raise IntegrityError(f"{name} is damaged")
    if values.get("format_version") != FORMAT_VERSION:
        raise IntegrityError(
            f"{name} has format {values.get('format_version')}, this version of brimful reads"
            f" {FORMAT_VERSION}"
        )
    try:
        entries = {file: Entry.from_json(entry) for file, entry in values["files"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegrityError(f"{name} is damaged") from error
    for file in entries:
        path = PurePosixPath(file)
        if path.is_absolute() or ".." in path.parts or "\0" in file or str(path) != file:
            raise IntegrityError(f"it lists {file}, which lies outside of it")
    return entries


@dataclass(frozen=True)
class Owner:
    """Whose a mirrored run is, as its mirror.json says.

    Attributes:
        run_id: The run's number; None if the file does not say.
        durable_step: Newest recovery point that was called durable there; None before the first.
        token: Random number of the process that writes there; None in a run folder's own file.
        process: That process, for people.
    """

    run_id: str | None
    durable_step: int | None
    token: str | None
    process: str

    @classmethod
    def from_json(cls, values: Json) -> "Owner":
        """Read the values leniently."""
        writer = values.get("writer")
        writer = writer if isinstance(writer, dict) else {}
        run_id, step = values.get("run_id"), values.get("durable_step")
        return cls(
            run_id if isinstance(run_id, str) else None,
            step if isinstance(step, int) else None,
            writer.get("token"),
            f"process {writer.get('pid')} on {writer.get('host')}",
        )


class MirroredRun:
    """One run's folder in a mirror, written through `files`.

    Args:
        folder: MIRROR/RUN; made by the caller.
        check_writer: Called before every change that readers would see; raises when another process
            took the mirror over.
    """

    def __init__(
        self, folder: Path, files: Files, check_writer: Callable[[], None] = lambda: None
    ) -> None:
        self.folder, self.files = folder, files
        self._check_writer = check_writer

    def owner(self) -> Owner | None:
        """Return whose the mirror is; None if that is missing or damaged."""
        path = self.folder / STATUS
        try:
            return Owner.from_json(self.files.read_json(path)) if path.exists() else None
        except IntegrityError:
            return None

    def steps(self) -> list[int]:
        """Return the steps of committed points, oldest first; they were not read back."""
        names = self.files.names(self.folder / CHECKPOINTS)
        matches = (re.fullmatch(r"step-(\d+)(\.replaced-\w+)?", name) for name in names)
        return sorted({int(match[1]) for match in matches if match})

    def path_of(self, step: int) -> Path:
        """Return a point's folder, or the one that it was to replace if only that is left."""
        final = folder_of_step(self.folder, step)
        if not final.exists():
            for name in self.files.names(final.parent):
                if name.startswith(f"{final.name}.replaced-"):
                    return final.with_name(name)
        return final

    def read(self, step: int) -> RecoveryPoint:
        """Return what the list of a point says; its files are not read back.

        Raises:
            IntegrityError: the list is missing or damaged.
        """
        point = RecoveryPoint.from_json(self.files.read_json(self.path_of(step) / POINT))
        if point.step != step:
            raise IntegrityError(f"{POINT} is of step {point.step}")
        return point

    def check(self, step: int) -> RecoveryPoint:
        """Read a whole point back.

        Raises:
            IntegrityError: something of it is missing or differs.
        """
        point = self.read(step)
        self._require(self.path_of(step), point)
        return point

    def _require(self, folder: Path, point: RecoveryPoint) -> None:
        for name, entry in point.files.items():
            self.files.require(folder / name, entry)

    def add(
        self, source: Pinned, run_folder: Path, *, run_id: str, best_step: int | None
    ) -> RecoveryPoint:
        """Write a checkpoint and the run's other files as a point; durable when this returns.

        Args:
            best_step: Step of the checkpoint that the export of this point needs.

        Raises:
            OSError, IntegrityError: it could not be written or does not read back; existing points
                are as they were.
        """
        final = folder_of_step(self.folder, source.step)
        aside = final.with_name(f"{final.name}.tmp-{uuid.uuid4().hex[:8]}")
        self.files.make_folder(final.parent)
        self.remove_leftovers()
        with self.files.removed_on_failure(aside):
            files = self._fill(aside, source, run_folder)
            point = RecoveryPoint(source.step, best_step, run_id, files)
            self._require(aside, point)
            self.files.write_json(aside / POINT, point.to_json())
            self._check_writer()
            if final.exists():
                replaced = final.with_name(f"{final.name}.replaced-{uuid.uuid4().hex[:8]}")
                self.files.rename(final, replaced)
            self.files.rename(aside, final)
            self.files.note_progress()
            self.remove_leftovers()
        self._check_renamed(point)
        return point

    def _check_renamed(self, point: RecoveryPoint) -> None:
        """Check the point under its final name: a rename may be lost as well as a write."""
        if self.read(point.step) != point:
            raise IntegrityError(f"step {point.step} is there, but not as it was just written")
        folder = folder_of_step(self.folder, point.step)
        for name, entry in point.files.items():
            num_bytes = self.files.size(folder / name)
            if num_bytes != entry.num_bytes:
                raise IntegrityError(
                    f"{name} has {num_bytes:,} bytes after its folder was renamed,"
                    f" {entry.num_bytes:,} before"
                )

    def _fill(self, aside: Path, source: Pinned, run_folder: Path) -> dict[str, Entry]:
        manifest = read_json(source.folder / MANIFEST)
        self.files.make_folder(aside)
        self.files.make_folder(aside / RUN_FILES)
        entries = {}
        for path in sorted(source.folder.iterdir()):
            entry = self.files.copy(path, aside / path.name)
            stored = manifest["files"].get(path.name)
            if stored is not None and entry != Entry.from_json(stored):
                raise IntegrityError(
                    f"the local checkpoint of step {source.step} is damaged: {path.name} differs"
                    " from its manifest"
                )
            entries[path.name] = entry
        journal_bytes = int(source.state["journal_bytes"])
        for path in run_files(run_folder):
            name = f"{RUN_FILES}/{path.name}"
            limit = journal_bytes if path.name == JOURNAL else math.inf
            entries[name] = self.files.copy(path, aside / name, limit)
        return entries

    def remove_leftovers(self) -> None:
        """Remove what an interrupted process left: unfinished points, points that were replaced or
        being removed, temporary files.
        """
        folder = self.folder / CHECKPOINTS
        names = self.files.names(folder)
        for name in names:
            match = re.fullmatch(r"(step-\d+)\.(tmp|replaced|removed)-\w+", name)
            if match and (match[2] != "replaced" or match[1] in names):
                self.files.remove(folder / name)
                self.files.note_progress()
        for name in self.files.names(self.folder):
            if name.startswith(".") and name.endswith(".tmp"):
                self.files.remove(self.folder / name)

    def keep(self, steps: set[int]) -> None:
        """Remove all other points."""
        for step in sorted(set(self.steps()) - steps):
            self._check_writer()
            final = folder_of_step(self.folder, step)
            removed = final.with_name(f"{final.name}.removed-{uuid.uuid4().hex[:8]}")
            self.files.rename(self.path_of(step), removed)
            self.files.remove(removed)
            self.files.note_progress()

    def finished(self) -> dict[str, Entry]:
        """Return the files of the finished run by name; none if no finished run was copied.

        Raises:
            IntegrityError: the list is there and damaged.
        """
        path = self.folder / FINISHED
        return _entries_of(self.files.read_json(path), FINISHED) if path.exists() else {}

    def finished_or_empty(self) -> dict[str, Entry]:
        """Return what `finished` does; none if the list is damaged."""
        try:
            return self.finished()
        except IntegrityError:
            return {}

    def note_finished(self, entries: Mapping[str, Entry]) -> None:
        """Write the list of the finished run's files."""
        self._check_writer()
        self.files.write_json(self.folder / FINISHED, _signed(entries))

    def put(self, source: Path, name: str, *, read_back: bool = True) -> Entry:
        """Replace one file atomically.

        Raises:
            OSError, IntegrityError: it could not be written or reads back differently; the old
                file is as it was.
        """
        target = self.folder / name
        for parent in reversed(Path(name).parents[:-1]):
            self.files.make_folder(self.folder / parent)
        aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
        with self.files.removed_on_failure(aside):
            entry = self.files.copy(source, aside)
            if read_back:
                self.files.require(aside, entry)
            self.files.rename(aside, target)
        if read_back and self.files.size(target) != entry.num_bytes:
            raise IntegrityError(f"{name} is not there after it was renamed")
        return entry
