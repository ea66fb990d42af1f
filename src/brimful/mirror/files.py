"""File operations in a mirror: a folder that may be slow, hang, fill up, lose what was written, or
vanish.

Everything written is read back past the page cache and hashed. The primitive operations are
separate methods, so that tests and the fault benchmark can make them fail.
"""

import errno
import hashlib
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from brimful.base.errors import RunFolderError
from brimful.base.rundir import fsync_folder, parse_json
from brimful.base.types import JsonDict
from brimful.base.units import MIB

CHUNK_BYTES = MIB
MOST_JSON_BYTES = 64 * MIB
FIRST_SYNC_BYTES, LEAST_SYNC_BYTES, MOST_SYNC_BYTES = 4 * MIB, MIB, 64 * MIB
"""Bytes between two flushes of a long file: at first, at least and at most. Each flush shows that
a slow network disk still answers, and keeps few dirty pages waiting.
"""
QUICK_SYNC_S, LONG_SYNC_S = 0.5, 4.0
"""Times of a flush that change the next one: after a quicker one it gets twice as many bytes, after
a longer one half as many.
"""

_UNSUPPORTED = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EISDIR, errno.EBADF)


class IntegrityError(Exception):
    """A file in the mirror is missing or not what was written there."""


@dataclass(frozen=True)
class Entry:
    """Size and hash of a file."""

    num_bytes: int
    sha256: str

    def to_json(self) -> JsonDict:
        return {"bytes": self.num_bytes, "sha256": self.sha256}

    @classmethod
    def from_json(cls, value: Any) -> "Entry":
        return cls(int(value["bytes"]), str(value["sha256"]))


class Hasher:
    """Counts and hashes the chunks of a file as they pass."""

    def __init__(self) -> None:
        self._sha256, self.num_bytes = hashlib.sha256(), 0

    def update(self, chunk: bytes) -> None:
        """Add the next chunk."""
        self._sha256.update(chunk)
        self.num_bytes += len(chunk)

    @property
    def entry(self) -> Entry:
        """Size and hash of the chunks so far."""
        return Entry(self.num_bytes, self._sha256.hexdigest())


class Files:
    """The primitive operations of the mirror's file system, and safe operations built from them.

    Attributes:
        moved_bytes: Bytes written and read so far.
        answered_s: Time at which an operation last completed, by `time.monotonic`.
        on_progress: Called after every operation, and between the chunks of long files.
    """

    def __init__(self) -> None:
        self.moved_bytes = 0
        self.answered_s = time.monotonic()
        self.on_progress: Callable[[], None] = lambda: None
        self._sync_every_bytes = FIRST_SYNC_BYTES

    def write(self, descriptor: int, data: bytes) -> None:
        """Append to an open file of the mirror."""
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def sync(self, descriptor: int) -> None:
        """Flush an open file of the mirror."""
        with _flushing_where_supported():
            os.fsync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename within the mirror, and make that durable."""
        os.rename(old, new)
        with _flushing_where_supported():
            fsync_folder(new.parent)

    def make_folder(self, path: Path) -> None:
        """Make one folder whose parent exists.

        Raises:
            OSError: a link is there, which may lead anywhere; or it cannot be made.
        """
        if path.is_symlink():
            raise OSError(f"{path} is a link")
        path.mkdir(exist_ok=True)

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder, if it is there; of a link, not what it leads to.

        Files in a folder are emptied first, because a drive may keep what was removed in a bin
        that counts against its quota.
        """
        if path.is_symlink() or not path.is_dir():
            path.unlink(missing_ok=True)
            return
        for file in path.rglob("*"):
            # A file with a second hard link is somebody's copy.
            if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:
                os.truncate(file, 0)
        shutil.rmtree(path)

    def read(self, path: Path) -> Iterator[bytes]:
        """Yield a file's content, past the page cache where the system allows that.

        Raises:
            IntegrityError: it is a device, a pipe or the like.
        """
        if path.exists() and not path.is_file() and not path.is_dir():
            raise IntegrityError(f"{path.name} is no file")
        with open(path, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def names(self, folder: Path) -> list[str]:
        """Return the sorted names in a folder; none if there is no such folder."""
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes; -1 if there is none."""
        return path.stat().st_size if path.exists() else -1

    def note_progress(self, num_bytes: int = 0) -> None:
        """Record that an operation completed, and the bytes that it moved."""
        self.moved_bytes += num_bytes
        self.restart_clock()
        self.on_progress()

    def restart_clock(self) -> None:
        """Measure the time without an answer from now on."""
        self.answered_s = time.monotonic()

    def copy(self, source: Path, target: Path, limit: float = math.inf) -> Entry:
        """Copy the first `limit` bytes of a local file to a new one in the mirror, flushed.

        Returns:
            Size and hash of what was read here; what was written is not read back.

        Raises:
            IntegrityError: the local file is shorter than `limit`.
        """
        with open(source, "rb") as file:
            return self._fill(target, _chunks(file, limit))

    def write_bytes(self, path: Path, content: bytes) -> None:
        """Replace a small file in the mirror atomically.

        Raises:
            IntegrityError: it reads back differently.
        """
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        with self.removed_on_failure(aside):
            entry = self._fill(aside, iter([content]))
            self.require(aside, entry)
            self.rename(aside, path)
            self.note_progress()
            self.require(path, entry)

    @contextmanager
    def removed_on_failure(self, path: Path) -> Iterator[None]:
        """While entered, any error removes the unfinished file or folder `path`."""
        try:
            yield
        except BaseException:
            with suppress(OSError):
                self.remove(path)
            raise

    def write_json(self, path: Path, value: object) -> None:
        """Write indented JSON as `write_bytes` does."""
        self.write_bytes(path, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n")

    def read_json(self, path: Path) -> JsonDict:
        """Return the JSON object in a file of the mirror.

        Raises:
            IntegrityError: it is missing, no JSON object or too long for what is kept so.
            OSError: it cannot be read now.
        """
        if self.size(path) > MOST_JSON_BYTES:
            raise IntegrityError(f"{path.name} has more than {MOST_JSON_BYTES:,} bytes")
        try:
            return parse_json(b"".join(self.read(path)))
        except FileNotFoundError as error:
            raise IntegrityError(f"{path.name} is missing") from error
        except ValueError as error:
            raise IntegrityError(f"{path.name} is damaged: {error}") from error

    def require(self, path: Path, entry: Entry) -> None:
        """Read a file of the mirror back.

        Raises:
            IntegrityError: it is missing, of another size, or differs in any bit.
        """
        self._require_chunks(path, entry, lambda chunk: None)

    def entry_of(self, path: Path) -> Entry:
        """Return size and hash of a local file. Reading it does not count as silence of the
        mirror.
        """
        hasher = Hasher()
        with open(path, "rb") as file:
            for chunk in _chunks(file, math.inf):
                hasher.update(chunk)
                self.note_progress()
        return hasher.entry

    def fetch(self, path: Path, target: Path, entry: Entry) -> None:
        """Copy a file of the mirror to a new local one, flushed.

        Raises:
            IntegrityError: it is not what `entry` says.
            RunFolderError: it cannot be written here.
        """
        with _writing_here(target):
            file = open(target, "xb")  # noqa: SIM115 - closed below; only opening is local

        def keep(chunk: bytes) -> None:
            with _writing_here(target):
                file.write(chunk)

        with file:
            self._require_chunks(path, entry, keep)
            with _writing_here(target):
                file.flush()
                os.fsync(file.fileno())

    def fetch_replacing(self, path: Path, target: Path, entry: Entry) -> None:
        """Fetch as `fetch` does, and replace the local `target` atomically."""
        aside = target.with_name(f".{target.name}.fetched")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            aside.unlink(missing_ok=True)
            self.fetch(path, aside, entry)
            os.replace(aside, target)
            fsync_folder(target.parent)
        finally:
            aside.unlink(missing_ok=True)

    def _require_chunks(self, path: Path, entry: Entry, keep: Callable[[bytes], object]) -> None:
        hasher = Hasher()
        try:
            for chunk in self.read(path):
                keep(chunk)
                hasher.update(chunk)
                self.note_progress(len(chunk))
                if hasher.num_bytes > entry.num_bytes:
                    break
        except FileNotFoundError as error:
            raise IntegrityError(f"{path.name} is missing") from error
        if hasher.num_bytes != entry.num_bytes:
            raise IntegrityError(
                f"{path.name} has {hasher.num_bytes:,} bytes, {entry.num_bytes:,} were written"
            )
        if hasher.entry != entry:
            raise IntegrityError(f"{path.name} is damaged: its SHA-256 differs")

    def _fill(self, target: Path, chunks: Iterator[bytes]) -> Entry:
        hasher, unsynced = Hasher(), 0
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            for chunk in chunks:
                self.write(descriptor, chunk)
                hasher.update(chunk)
                unsynced += len(chunk)
                if unsynced >= self._sync_every_bytes:
                    self._sync_and_adapt(descriptor)
                    unsynced = 0
                self.note_progress(len(chunk))
            self.sync(descriptor)
        finally:
            os.close(descriptor)
        self.note_progress()
        return hasher.entry

    def _sync_and_adapt(self, descriptor: int) -> None:
        """Flush, and choose how many bytes come before the next flush by how long it took."""
        started_s = time.monotonic()
        self.sync(descriptor)
        took_s = time.monotonic() - started_s
        if took_s < QUICK_SYNC_S:
            self._sync_every_bytes = min(MOST_SYNC_BYTES, 2 * self._sync_every_bytes)
        elif took_s > LONG_SYNC_S:
            self._sync_every_bytes = max(LEAST_SYNC_BYTES, self._sync_every_bytes // 2)


@contextmanager
def _flushing_where_supported() -> Iterator[None]:
    """Ignore that a file system cannot flush, as some network file systems cannot flush folders;
    their files are read back all the same.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise


@contextmanager
def _writing_here(path: Path) -> Iterator[None]:
    """Turn the errors of a local file into one that does not blame the mirror."""
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {as_clause(error)}, so the run cannot be brought back from"
            " its mirror. Free space or choose another place with run.folder=PATH."
        ) from error


def _chunks(file: BinaryIO, limit: float) -> Iterator[bytes]:
    while limit > 0 and (chunk := file.read(int(min(limit, CHUNK_BYTES)))):
        limit -= len(chunk)
        yield chunk
    if 0 < limit < math.inf:
        raise IntegrityError(f"the local file ends {limit:,} bytes too early")


def as_clause(error: BaseException) -> str:
    """Return an error of the file system as a clause: `no space left on device`."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error) or type(error).__name__
    clause = error.strerror[0].lower() + error.strerror[1:]
    # The name of a temporary file helps nobody.
    if error.filename and ".tmp" not in str(error.filename):
        return f"{clause} ({error.filename})"
    return clause
