"""File operations in a mirror: a folder that may be slow, hang, fill up, lie about what it wrote,
or vanish.

Nothing in here is believed: what was written is read back past the page cache and hashed. The
primitives stand apart from what is made of them, so that tests and the fault benchmark can put
faults under them.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from brimful.base.errors import RunFolderError
from brimful.base.rundir import fsync_folder
from brimful.base.units import MIB

CHUNK_BYTES = MIB
FIRST_SYNC_BYTES, LEAST_SYNC_BYTES, MOST_SYNC_BYTES = 4 * MIB, MIB, 64 * MIB
"""Between two flushes of a long file, at first, at least and at most: each is an answer, also of a
slow network disk, and few dirty pages wait.
"""
QUICK_SYNC_S, LONG_SYNC_S = 0.5, 4.0
"""A flush that took less is given twice as many bytes the next time, one that took more half as
many.
"""

_NO_FLUSHING = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EISDIR, errno.EBADF)

T = TypeVar("T")


class NotWhole(Exception):
    """What lies in the mirror is not what was written there, in words."""


@dataclass(frozen=True)
class Entry:
    """What a file has to be."""

    num_bytes: int
    sha256: str

    def to_json(self) -> dict[str, Any]:
        return {"bytes": self.num_bytes, "sha256": self.sha256}

    @classmethod
    def from_json(cls, value: Any) -> "Entry":
        return cls(int(value["bytes"]), str(value["sha256"]))


class Files:
    """Primitives of the mirror's file system, and what is made of them.

    Attributes:
        moved_bytes: Bytes written and read so far.
        answered_s: When an operation last came back, by `time.monotonic`.
        between: Called each time that something came back, in the middle of long files, too.
    """

    def __init__(self) -> None:
        self.moved_bytes = 0
        self.answered_s = time.monotonic()
        self.between: Callable[[], None] = lambda: None
        self._sync_every_bytes = FIRST_SYNC_BYTES

    def write(self, descriptor: int, data: bytes) -> None:
        """Append to an open file of the mirror."""
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def sync(self, descriptor: int) -> None:
        """Flush an open file of the mirror."""
        with _where_there_is_flushing():
            os.fsync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename within the mirror, and make that durable."""
        os.rename(old, new)
        with _where_there_is_flushing():
            fsync_folder(new.parent)

    def make_folder(self, path: Path) -> None:
        """Make one folder; its parent is there."""
        path.mkdir(exist_ok=True)

    def remove(self, path: Path) -> None:
        """Remove a file or a whole folder; nothing where there is none. What lies in the bin of a
        drive then, and counts there, is empty.
        """
        if path.is_dir():
            for each in path.rglob("*"):
                if (
                    each.is_file() and not each.is_symlink() and each.stat().st_nlink == 1
                ):  # what has a second name is somebody's copy
                    os.truncate(each, 0)
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def read(self, path: Path) -> Iterator[bytes]:
        """A file's content past the page cache, as far as this system can pass it."""
        with open(path, "rb", buffering=0) as file:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while chunk := file.read(CHUNK_BYTES):
                yield chunk

    def names(self, folder: Path) -> list[str]:
        """Names in a folder; none where it is not there."""
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def size(self, path: Path) -> int:
        """Bytes of a file; -1 where there is none."""
        return path.stat().st_size if path.exists() else -1

    def moved(self, num_bytes: int = 0) -> None:
        """Something came back."""
        self.moved_bytes += num_bytes
        self.waiting_begins()
        self.between()

    def waiting_begins(self) -> None:
        """Count the silence of the mirror from now on."""
        self.answered_s = time.monotonic()

    def copy(self, source: Path, target: Path, limit: int | None = None) -> Entry:
        """Copy a local file to a new one in the mirror, flushed; as much of it as `limit` bytes.
        What was read is returned, not what was written.
        """
        with open(source, "rb") as file:
            return self._fill(target, _chunks(file.read, limit))

    def write_bytes(self, path: Path, content: bytes) -> None:
        """Replace a small file in the mirror in one step.

        Raises:
            NotWhole: it reads back otherwise.
        """
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            entry = self._fill(aside, iter([content]))
            self.require(aside, entry)
            self.rename(aside, path)
            self.moved()
            self.require(path, entry)
        except BaseException:
            with contextlib.suppress(OSError):
                self.remove(aside)
            raise

    def write_json(self, path: Path, value: object) -> None:
        """As `write_bytes`, indented JSON."""
        self.write_bytes(path, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n")

    def read_json(self, path: Path) -> Any:
        """The JSON value in a file of the mirror.

        Raises:
            NotWhole: it is missing or not JSON.
            OSError: it cannot be read now.
        """
        try:
            return json.loads(b"".join(self.read(path)))
        except FileNotFoundError as error:
            raise NotWhole(f"{path.name} is missing") from error
        except ValueError as error:
            raise NotWhole(f"{path.name} is damaged: {error}") from error

    def require(self, path: Path, entry: Entry) -> None:
        """Read a file back.

        Raises:
            NotWhole: it is missing, of another size, or differs in any bit.
        """
        digest, num_bytes = hashlib.sha256(), 0
        try:
            for chunk in self.read(path):
                digest.update(chunk)
                num_bytes += len(chunk)
                self.moved(len(chunk))
        except FileNotFoundError as error:
            raise NotWhole(f"{path.name} is missing") from error
        if num_bytes != entry.num_bytes:
            raise NotWhole(f"{path.name} has {num_bytes:,} bytes, {entry.num_bytes:,} were written")
        if digest.hexdigest() != entry.sha256:
            raise NotWhole(f"{path.name} reads back otherwise than it was written (SHA-256)")

    def entry_of(self, path: Path) -> Entry:
        """What a local file is. Reading a long one is no silence of the mirror."""
        digest, num_bytes = hashlib.sha256(), 0
        with open(path, "rb") as file:
            for chunk in _chunks(file.read, None):
                digest.update(chunk)
                num_bytes += len(chunk)
                self.moved()
        return Entry(num_bytes, digest.hexdigest())

    def fetch(self, path: Path, target: Path, entry: Entry) -> None:
        """Copy a file of the mirror to a new local one, flushed.

        Raises:
            NotWhole: it is not what it has to be.
            RunFolderError: it cannot be written here.
        """
        digest, num_bytes = hashlib.sha256(), 0
        with _LocalFile(target) as file:
            try:
                for chunk in self.read(path):
                    file.write(chunk)
                    digest.update(chunk)
                    num_bytes += len(chunk)
                    self.moved(len(chunk))
            except FileNotFoundError as error:
                raise NotWhole(f"{path.name} is missing") from error
        if num_bytes != entry.num_bytes:
            raise NotWhole(f"{path.name} has {num_bytes:,} bytes, {entry.num_bytes:,} were written")
        if digest.hexdigest() != entry.sha256:
            raise NotWhole(f"{path.name} is damaged: its SHA-256 differs")

    def _fill(self, target: Path, chunks: Iterator[bytes]) -> Entry:
        digest, num_bytes, unsynced = hashlib.sha256(), 0, 0
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        try:
            for chunk in chunks:
                self.write(descriptor, chunk)
                digest.update(chunk)
                num_bytes += len(chunk)
                unsynced += len(chunk)
                if unsynced >= self._sync_every_bytes:
                    self._sync_in_time(descriptor)
                    unsynced = 0
                self.moved(len(chunk))
            self.sync(descriptor)
        finally:
            os.close(descriptor)
        self.moved()
        return Entry(num_bytes, digest.hexdigest())

    def _sync_in_time(self, descriptor: int) -> None:
        """Flush what was written so far, of which the next time there is as much as takes neither
        long nor next to nothing.
        """
        started_s = time.monotonic()
        self.sync(descriptor)
        took_s = time.monotonic() - started_s
        if took_s < QUICK_SYNC_S:
            self._sync_every_bytes = min(MOST_SYNC_BYTES, 2 * self._sync_every_bytes)
        elif took_s > LONG_SYNC_S:
            self._sync_every_bytes = max(LEAST_SYNC_BYTES, self._sync_every_bytes // 2)


@contextlib.contextmanager
def _where_there_is_flushing() -> Iterator[None]:
    """Some network file systems know no flush, of folders above all; what they hold is read back
    all the same.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_FLUSHING:
            raise


class _LocalFile:
    """A new file on this machine, flushed when closed. What goes wrong with it is no fault of the
    mirror.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "_LocalFile":
        try:
            self._file = open(self._path, "xb")
        except OSError as error:
            raise self._not_written(error) from error
        return self

    def write(self, chunk: bytes) -> None:
        """Append."""
        try:
            self._file.write(chunk)
        except OSError as error:
            raise self._not_written(error) from error

    def __exit__(self, *exception: object) -> None:
        try:
            with self._file:
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: OSError) -> RunFolderError:
        return RunFolderError(
            f"{self._path} cannot be written: {in_words(error)}, so the run cannot be brought back"
            " from its mirror. Free space or choose another place with run.folder=PATH."
        )


def _chunks(read: Callable[[int], bytes], limit: int | None) -> Iterator[bytes]:
    left = limit
    while left is None or left > 0:
        chunk = read(CHUNK_BYTES if left is None else min(left, CHUNK_BYTES))
        if not chunk:
            break
        if left is not None:
            left -= len(chunk)
        yield chunk
    if left:
        raise NotWhole(f"the local file ends {left:,} bytes too early")


def in_words(error: BaseException) -> str:
    """An error of the file system as a clause: `no space left on device`."""
    if isinstance(error, OSError) and error.strerror:
        where = (
            f" ({error.filename})" if error.filename and ".tmp" not in str(error.filename) else ""
        )  # nobody looks for what is half written
        return error.strerror[0].lower() + error.strerror[1:] + where
    return str(error) or type(error).__name__


def within(limit_s: float, act: Callable[[], T]) -> T:
    """What `act` returns or raises, waited for so long and no longer; a call that hangs is left
    behind in a daemon thread.

    Raises:
        TimeoutError: it did not come back.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(act())
        except BaseException as error:  # handed to the waiting thread
            failure.append(error)

    thread = threading.Thread(target=run, daemon=True, name="mirror-start")
    thread.start()
    thread.join(limit_s)
    if failure:
        raise failure[0]
    if not result:
        raise TimeoutError(f"no answer within {limit_s:.0f} s")
    return result[0]
