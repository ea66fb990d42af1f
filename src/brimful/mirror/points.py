"""Recovery points in a mirror: folders that are whole or absent, each enough by itself to continue
a run bit for bit.

`checkpoints/step-N/` holds a checkpoint as it lies in the run folder, under `run/` the other files
of the run as of that step, and POINT.json with the size and SHA-256 of all of them. It is written
aside, read back, renamed, and looked at once more.
"""

import contextlib
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.base.rundir import read_json
from brimful.mirror.files import Entry, Files, NotWhole
from brimful.mirror.sources import (
    CHECKPOINTS,
    FINISHED,
    JOURNAL,
    Pinned,
    folder_of_step,
    run_files,
)
from brimful.training.checkpoint import MANIFEST

FORMAT_VERSION = 1
POINT = "POINT.json"
RUN_FILES = "run"


@dataclass(frozen=True)
class Point:
    """What a recovery point is.

    Attributes:
        best_step: Step of the checkpoint that the final export needs; None before the first
            evaluation.
        files: By name in the point's folder.
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
        """Of two checkpoints of the same step, which one: the digest of its manifest."""
        return self.files[MANIFEST].sha256

    def to_json(self) -> dict[str, Any]:
        values = {
            "format_version": FORMAT_VERSION,
            "run_id": self.run_id,
            "step": self.step,
            "best_step": self.best_step,
        }
        return _signed(
            {**values, "files": {name: entry.to_json() for name, entry in self.files.items()}}
        )

    @classmethod
    def from_json(cls, values: Any) -> "Point":
        """Raises NotWhole where it is not one that this version wrote."""
        _require_signed(values, POINT)
        return cls(values["step"], values["best_step"], values["run_id"], _entries(values))


def _signed(values: dict[str, Any]) -> dict[str, Any]:
    return {**values, "sha256": _digest_of(values)}


def _digest_of(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _require_signed(values: Any, name: str) -> None:
    if not isinstance(values, dict) or values.get("sha256") != _digest_of(
        {key: value for key, value in values.items() if key != "sha256"}
    ):
        raise NotWhole(f"{name} is damaged")
    if values.get("format_version") != FORMAT_VERSION:
        raise NotWhole(
            f"{name} has format {values.get('format_version')}, this version of brimful reads"
            f" {FORMAT_VERSION}"
        )


def _entries(values: Mapping[str, Any]) -> dict[str, Entry]:
    for name in values["files"]:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise NotWhole(f"it lists {name}, which lies outside of it")
    return {name: Entry.from_json(entry) for name, entry in values["files"].items()}


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

    def steps(self) -> list[int]:
        """Steps of committed points, oldest first; whether they are sound is another question."""
        names = self.files.names(self.folder / CHECKPOINTS)
        found = {
            int(match[1])
            for name in names
            if (match := re.fullmatch(r"step-(\d+)(\.replaced-\w+)?", name))
        }
        return sorted(found)

    def path_of(self, step: int) -> Path:
        """A point's folder; the one it was being replaced by where only that is left."""
        final = folder_of_step(self.folder, step)
        if not final.exists():
            for name in self.files.names(final.parent):
                if name.startswith(f"{final.name}.replaced-"):
                    return final.with_name(name)
        return final

    def read(self, step: int) -> Point:
        """What a point says it is.

        Raises:
            NotWhole: it is not there, or says nothing that can be believed.
        """
        point = Point.from_json(self.files.read_json(self.path_of(step) / POINT))
        if point.step != step:
            raise NotWhole(f"{POINT} is of step {point.step}")
        return point

    def check(self, step: int) -> Point:
        """Read a whole point back; returns what it is.

        Raises:
            NotWhole: something of it is missing or differs.
        """
        point, folder = self.read(step), self.path_of(step)
        for name, entry in point.files.items():
            self.files.require(folder / name, entry)
        return point

    def add(self, source: Pinned, run_folder: Path, *, run_id: str, best_step: int | None) -> Point:
        """Make a checkpoint and the run's files beside it a point; durable when this returns.

        Args:
            best_step: Step of the checkpoint that the export of this point needs.

        Raises:
            OSError, NotWhole: it could not be written or does not read back; points that were there
                are as they were.
        """
        folder = self.folder / CHECKPOINTS
        final = folder_of_step(self.folder, source.step)
        aside = final.with_name(f"{final.name}.tmp-{uuid.uuid4().hex[:8]}")
        self.files.make_folder(folder)
        self.remove_leftovers()
        try:
            point = Point(source.step, best_step, run_id, self._fill(aside, source, run_folder))
            self._seal(aside, point)
            self._check_writer()
            self._commit(aside, final)
        except BaseException:
            with contextlib.suppress(OSError):
                self.files.remove(aside)
            raise
        self._look_at(point)
        return point

    def _look_at(self, point: Point) -> None:
        """Once more under its final name: a rename may have been dropped as well as a write."""
        if self.read(point.step) != point:
            raise NotWhole(f"step {point.step} is there, but not as it was just written")
        for name, entry in point.files.items():
            num_bytes = self.files.size(folder_of_step(self.folder, point.step) / name)
            if num_bytes != entry.num_bytes:
                raise NotWhole(
                    f"{name} has {num_bytes:,} bytes after its folder was renamed,"
                    f" {entry.num_bytes:,} before"
                )

    def _fill(self, aside: Path, source: Pinned, run_folder: Path) -> dict[str, Entry]:
        manifest = read_json(source.folder / MANIFEST)
        self.files.make_folder(aside)
        self.files.make_folder(aside / RUN_FILES)
        entries = {}
        for path in sorted(source.folder.iterdir()):
            entries[path.name] = self.files.copy(path, aside / path.name)
            stored = manifest["files"].get(path.name)
            if stored is not None and entries[path.name] != Entry.from_json(stored):
                raise NotWhole(
                    f"the local checkpoint of step {source.step} is damaged: {path.name} differs"
                    " from its manifest"
                )
        for path in run_files(run_folder):
            limit = int(source.state["journal_bytes"]) if path.name == JOURNAL else None
            entries[f"{RUN_FILES}/{path.name}"] = self.files.copy(
                path, aside / RUN_FILES / path.name, limit
            )
        return entries

    def _seal(self, aside: Path, point: Point) -> None:
        for name, entry in point.files.items():
            self.files.require(aside / name, entry)
        self.files.write_json(aside / POINT, point.to_json())

    def _commit(self, aside: Path, final: Path) -> None:
        if final.exists():
            self.files.rename(
                final, final.with_name(f"{final.name}.replaced-{uuid.uuid4().hex[:8]}")
            )
        self.files.rename(aside, final)
        self.files.moved()
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Remove what was cut off in the middle: points aside, points replaced or being removed,
        files aside.
        """
        folder = self.folder / CHECKPOINTS
        names = self.files.names(folder)
        for name in names:
            match = re.fullmatch(r"(step-\d+)\.(tmp|replaced|removed)-\w+", name)
            if match and (match[2] != "replaced" or match[1] in names):
                self.files.remove(folder / name)
                self.files.moved()
        for name in self.files.names(self.folder):
            if name.startswith(".") and name.endswith(".tmp"):
                self.files.remove(self.folder / name)

    def keep(self, steps: set[int]) -> None:
        """Remove all other points."""
        for step in self.steps():
            if step not in steps:
                self._check_writer()
                path = self.path_of(step)
                gone = path.with_name(f"step-{step:08d}.removed-{uuid.uuid4().hex[:8]}")
                self.files.rename(path, gone)
                self.files.remove(gone)
                self.files.moved()

    def finished(self) -> dict[str, Entry]:
        """The files of the finished run; none where no finished run was copied.

        Raises:
            NotWhole: the list is there and damaged.
        """
        path = self.folder / FINISHED
        if not path.exists():
            return {}
        values = self.files.read_json(path)
        _require_signed(values, FINISHED)
        return _entries(values)

    def note_finished(self, entries: Mapping[str, Entry]) -> None:
        """From now on the mirror holds the finished run, as these files."""
        self._check_writer()
        files = {name: entry.to_json() for name, entry in entries.items()}
        self.files.write_json(
            self.folder / FINISHED, _signed({"format_version": FORMAT_VERSION, "files": files})
        )

    def put(self, source: Path, name: str, *, read_back: bool = True) -> Entry:
        """Replace one file in one step.

        Raises:
            OSError, NotWhole: it could not be written or reads back otherwise; what was there is as
                it was.
        """
        target = self.folder / name
        for parent in reversed(Path(name).parents[:-1]):
            self.files.make_folder(self.folder / parent)
        aside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            entry = self.files.copy(source, aside)
            if read_back:
                self.files.require(aside, entry)
            self.files.rename(aside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self.files.remove(aside)
            raise
        if read_back and self.files.size(target) != entry.num_bytes:
            raise NotWhole(f"{name} is not there after it was renamed")
        return entry
