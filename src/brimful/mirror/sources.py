"""What of a run is copied into a mirror, and how it is held while it is copied."""

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.base.errors import RunFolderError
from brimful.base.rundir import Lease, read_json
from brimful.mirror.status import STATUS
from brimful.training.checkpoint import MANIFEST, CheckpointStore

CHECKPOINTS = "checkpoints"
JOURNAL = "metrics.jsonl"
FINISHED = "finished.json"
"""In a mirror: the list of a finished run's files."""
PINS = ".mirror"
"""Folder of a run in which the files being copied are held by a second name, so that rotation
cannot take them away.
"""
_NOT_COPIED = (Lease.FILE_NAME, STATUS, CHECKPOINTS, FINISHED)


def folder_of_step(folder: Path, step: int) -> Path:
    """Where a step's checkpoint lies in a run, its point in a mirrored run."""
    return CheckpointStore(folder / CHECKPOINTS, keep=2).path_of(step)


def local_steps(run_folder: Path) -> list[int]:
    """Steps of a run's checkpoints, oldest first."""
    return CheckpointStore(run_folder / CHECKPOINTS, keep=2).steps()


def run_files(run_folder: Path) -> list[Path]:
    """The files of a run beside its checkpoints, as far as they are its own: no lease, nothing
    half-written, no folders.
    """
    return sorted(
        path
        for path in run_folder.iterdir()
        if path.name not in _NOT_COPIED and not path.name.startswith(".") and path.is_file()
    )


def all_files(run_folder: Path) -> Iterator[Path]:
    """As `run_files`, and everything in its folders: the model, evaluations, plots."""
    yield from run_files(run_folder)
    for path in sorted(run_folder.iterdir()):
        if (
            path.is_dir()
            and path.name not in _NOT_COPIED
            and not re.match(r"\.|.*\.(tmp|replaced)-", path.name)
        ):
            yield from sorted(
                each for each in path.rglob("*") if each.is_file() and not each.is_symlink()
            )


@dataclass(frozen=True)
class Pinned:
    """A checkpoint of a run, held while it is copied.

    Attributes:
        folder: Holds its files.
        state: Its state.json.
        version: SHA-256 of its manifest: of two checkpoints of one step, which.
    """

    step: int
    folder: Path
    state: Mapping[str, Any]
    version: str

    @property
    def best_step(self) -> int | None:
        best: int | None = self.state["progress"]["best_step"]
        return best


@contextmanager
def pinned(run_folder: Path, step: int) -> Iterator[Pinned]:
    """Hold a checkpoint by hard links; where there are none, its files are used as they lie.

    Raises:
        FileNotFoundError: rotation was faster.
    """
    pin = run_folder / PINS / f"{step}-{uuid.uuid4().hex[:8]}"
    try:
        yield _held(folder_of_step(run_folder, step), pin, step)
    finally:
        shutil.rmtree(pin, ignore_errors=True)


def _held(source: Path, pin: Path, step: int) -> Pinned:
    try:
        folder = _linked(source, pin, sorted(path.name for path in source.iterdir()))
        return Pinned(
            step,
            folder,
            read_json(folder / "state.json"),
            hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest(),
        )
    except RunFolderError as error:
        if source.exists():
            raise
        raise FileNotFoundError(source) from error


def _linked(source: Path, pin: Path, names: list[str]) -> Path:
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
    """Remove what a killed process held."""
    shutil.rmtree(run_folder / PINS, ignore_errors=True)
