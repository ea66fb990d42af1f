"""A mirrored folder that is no run: samples as they are drawn, in journals of which every beginning
is useful.

Files are copied when they grew, read back, and listed with their hashes. A journal that grew after
it was listed is still recognised by its beginning, so that a machine which is lost between copying
and listing loses only what was drawn last.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brimful.base.console import Say
from brimful.base.errors import RunFolderError
from brimful.base.text import plural
from brimful.base.units import format_bytes
from brimful.mirror.files import Entry, Files, Hasher, IntegrityError, as_clause
from brimful.mirror.place import Place
from brimful.mirror.points import MirroredRun, run_files, signature

EVERY_S = 30.0
"""Least time between two copies."""
STUCK_S = 60.0
"""Time without an answer after which the mirror is not waited for at the end."""


def make_mirror(mirror: str, folder: Path) -> None:
    """Make a mirror's folders for what will lie in `folder`, before anything is computed for it.

    Raises:
        RunFolderError: it cannot be used or written.
    """
    place = Place.of(mirror, folder)
    place.require_writable(Files())
    place.make(Files())


@contextmanager
def mirrored_folder(
    mirror: str | None,
    folder: Path,
    journal: str,
    say: Say,
    *,
    files: Files | None = None,
    every_s: float = EVERY_S,
) -> Iterator[None]:
    """Keep a copy of a folder while it is written. First bring back what the mirror holds of it and
    this machine does not.

    Args:
        mirror: Holds the copy as MIRROR/FOLDER'S NAME; None keeps no copy.
        folder: Need not exist yet.
        journal: Name of the file in it whose first line identifies what was drawn, and with which
            settings.
        say: Called with messages, in this thread.

    Raises:
        RunFolderError: the mirror cannot be used, or holds something else under this name.
    """
    if mirror is None:
        yield
        return
    place = Place.of(mirror, folder)
    copy = _FolderCopy(place, folder, files or Files(), every_s)
    place.require_writable(copy.files)
    restored = _brought_back(copy, place, journal)
    if restored:
        what = f"{plural(len(restored), 'file')} ({', '.join(restored)})"
        say(f"brought back from the mirror {place.folder}: {what}")
    copy.start()
    try:
        yield
    except RunFolderError as error:
        if not restored:
            raise
        raise RunFolderError(
            f"{error} They were brought back from the mirror {place.folder}: move that away, too."
        ) from error
    finally:
        say(copy.finish())


def _brought_back(copy: "_FolderCopy", place: Place, journal: str) -> list[str]:
    def act() -> list[str]:
        copy.refuse_other(journal)
        return copy.bring_back()

    try:
        return place.answer(act)
    except OSError as error:
        raise RunFolderError(
            f"the mirror {place.folder} cannot be read: {as_clause(error)}. Mend that, or choose"
            " another with run.mirror=PATH."
        ) from error


class _FolderCopy:
    def __init__(self, place: Place, folder: Path, files: Files, every_s: float) -> None:
        self.files, self._place, self._folder, self._every_s = files, place, folder, every_s
        self._mirrored = MirroredRun(place.folder, files)
        self._entries: dict[str, Entry] = {}
        self._copied: dict[str, list[int]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror of a folder")
        self._problem: str | None = "nothing was copied yet"

    def refuse_other(self, journal: str) -> None:
        """Raise RunFolderError if the folder and its mirror hold samples drawn with different
        settings, of which one would replace the other.
        """
        here = _first_line(self._folder / journal)
        there = _first_line(self._place.folder / journal)
        if here and there and here != there:
            raise RunFolderError(
                f"{self._folder} and its mirror {self._place.folder} hold samples that were drawn"
                " with something else. Choose another name with run.name=NAME or another mirror"
                " with run.mirror=PATH, or move one of the two away."
            )

    def bring_back(self) -> list[str]:
        """Fetch every sound file that is longer in the mirror than here; return their sizes."""
        self._entries = self._mirrored.finished_or_empty()
        sizes = []
        for name, listed in self._entries.items():
            path, copied = self._folder / name, self._place.folder / name
            entry = self._current_entry(copied, listed)
            if entry is None or (path.exists() and path.stat().st_size >= entry.num_bytes):
                continue
            self.files.fetch_replacing(copied, path, entry)
            sizes.append(format_bytes(entry.num_bytes))
        return sizes

    def _current_entry(self, path: Path, listed: Entry) -> Entry | None:
        """Return what the file is now, provided that it still begins as it was listed."""
        whole, beginning = Hasher(), Hasher()
        try:
            for chunk in self.files.read(path):
                whole.update(chunk)
                beginning.update(chunk[: listed.num_bytes - beginning.num_bytes])
        except FileNotFoundError:
            return None
        return whole.entry if beginning.entry == listed else None

    def start(self) -> None:
        """Copy from now on, in a daemon thread."""
        self._thread.start()

    def finish(self) -> str:
        """Copy what is new, as long as the mirror answers; return a message about the result."""
        self.files.note_progress()
        self._ending.set()
        while self._thread.is_alive() and time.monotonic() - self.files.answered_s < STUCK_S:
            self._thread.join(0.05)
        if self._thread.is_alive():
            self._problem = "it gives no answer"
        if self._problem is None:
            return f"mirror: {self._folder.name} is in {self._place.folder}, read back and whole"
        return (
            f"mirror: {self._folder.name} is NOT all in {self._place.folder}: {self._problem}. Keep"
            f" {self._folder}; the same command copies it again."
        )

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._ending.wait(self._every_s)
            try:
                self._copy()
                self._problem = None
            except (OSError, IntegrityError, RunFolderError) as error:
                self._problem = as_clause(error)

    def _copy(self) -> None:
        """Copy what changed since the last time."""
        if not self._folder.is_dir():
            return
        self._place.make(self.files)
        before = dict(self._entries)
        for path in run_files(self._folder):
            now = signature(path)
            if self._copied.get(path.name) != now:
                self._entries[path.name] = self._mirrored.put(path, path.name)
                self._copied[path.name] = now
        if self._entries != before:
            self._mirrored.note_finished(self._entries)


def _first_line(path: Path) -> bytes:
    """Return the first line of a file; nothing if there is no complete line."""
    try:
        with open(path, "rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return b""
    return line if line.endswith(b"\n") else b""
