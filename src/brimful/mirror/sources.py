"""What of a run is copied into a mirror, and how it is held while it is copied."""

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.manifest import MANIFEST
from brimful.base.rundir import Lease, read_json
from brimful.base.types import Json
from brimful.mirror.place import FINISHED
from brimful.mirror.status import STATUS
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
    """Remove the hard links to checkpoints that a process killed while copying has left."""
    shutil.rmtree(run_folder / PINS, ignore_errors=True)
