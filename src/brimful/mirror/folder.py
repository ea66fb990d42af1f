"""A mirrored folder that is no run: samples as they are drawn, in journals of which every beginning
is worth having.

Files are copied when they grew, read back, and listed with their hashes. A journal that grew after
it was listed is still known by its beginning, so that a machine which is taken away between two
steps of that loses what was drawn last, never the rest.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.units import format_bytes
from brimful.mirror.files import Entry, Files, NotWhole, in_words
from brimful.mirror.place import Place, within_limit
from brimful.mirror.points import MirroredRun
from brimful.mirror.sources import run_files

Say = Callable[[str], None]
EVERY_S = 30.0
"""Between two copies."""
STUCK_S = 60.0
"""Without any answer of the mirror at the end, until it is waited for no longer."""


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
    """Around the writing of a folder. What the mirror holds of it and this machine does not is
    brought back first.

    Args:
        mirror: Holds the copy as MIRROR/FOLDER'S NAME; None keeps none.
        folder: May not be there yet.
        journal: Name of the file in it whose first line says what decides the rest.
        say: Told what happens, in this thread.

    Raises:
        RunFolderError: the mirror cannot be used, or holds something else under this name.
    """
    if mirror is None:
        yield
        return
    place = Place.of(mirror, folder)
    copy = _FolderCopy(place, folder, files or Files(), every_s)
    place.require_writable(copy.files)
    if told := _brought_back(copy, place, journal):
        say(told)
    copy.start()
    try:
        yield
    except RunFolderError as error:
        raise (
            RunFolderError(
                f"{error} They were brought back from the mirror {place.folder}: move that away,"
                " too."
            )
            if told
            else error
        ) from error
    finally:
        say(copy.finish())


def _brought_back(copy: "_FolderCopy", place: Place, journal: str) -> str | None:
    def act() -> str | None:
        copy.refuse_other(journal)
        return copy.bring_back()

    try:
        return within_limit(str(place.root), act)
    except OSError as error:
        raise RunFolderError(
            f"the mirror {place.folder} cannot be read: {in_words(error)}. Mend that, or choose"
            " another with run.mirror=PATH."
        ) from error


class _FolderCopy:
    def __init__(self, place: Place, folder: Path, files: Files, every_s: float) -> None:
        self.files, self._place, self._folder, self._every_s = files, place, folder, every_s
        self._mirrored = MirroredRun(place.folder, files)
        self._entries: dict[str, Entry] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="mirror of a folder")
        self._problem: str | None = "nothing was copied yet"

    def refuse_other(self, journal: str) -> None:
        """Raises RunFolderError where here and in the mirror lie things of two kinds, of which one
        would replace the other.
        """
        here, there = (
            _first_line(folder / journal) for folder in (self._folder, self._place.folder)
        )
        if here and there and here != there:
            raise RunFolderError(
                f"{self._folder} and its mirror {self._place.folder} hold samples that were drawn"
                " with something else. Choose another name with run.name=NAME or another mirror"
                " with run.mirror=PATH, or move one of the two away."
            )

    def bring_back(self) -> str | None:
        """Fetch every sound file that is longer in the mirror than here; returns what is to be
        told.
        """
        try:
            listed = self._mirrored.finished()
        except NotWhole:
            listed = {}
        fetched = []
        for name, entry in listed.items():
            path, there = self._folder / name, self._place.folder / name
            now = self._sound(there, entry)
            if now is None or (path.exists() and path.stat().st_size >= now.num_bytes):
                continue
            self._folder.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{name}.fetched")
            aside.unlink(missing_ok=True)
            self.files.fetch(there, aside, now)
            aside.replace(path)
            fetched.append(format_bytes(now.num_bytes))
        self._entries = dict(listed)
        return (
            f"brought back from the mirror {self._place.folder}: {len(fetched)} files"
            f" ({', '.join(fetched)})"
            if fetched
            else None
        )

    def _sound(self, path: Path, entry: Entry) -> Entry | None:
        """What the file is now, provided that it begins as it was listed; None where it does
        not.
        """
        whole, beginning, left = hashlib.sha256(), hashlib.sha256(), entry.num_bytes
        num_bytes = 0
        try:
            for chunk in self.files.read(path):
                whole.update(chunk)
                beginning.update(chunk[:left])
                left -= min(left, len(chunk))
                num_bytes += len(chunk)
        except FileNotFoundError:
            return None
        return (
            Entry(num_bytes, whole.hexdigest())
            if beginning.hexdigest() == entry.sha256 and not left
            else None
        )

    def start(self) -> None:
        """Copy from now on, in a thread that nobody waits for."""
        self._thread.start()

    def finish(self) -> str:
        """Copy what is new, as long as the mirror answers; returns what is to be told."""
        self.files.moved()
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
            except (OSError, NotWhole, RunFolderError) as error:
                self._problem = in_words(error)

    def _copy(self) -> None:
        """What changed since the last time."""
        if not self._folder.is_dir():
            return
        self._place.make(self.files)
        before = dict(self._entries)
        for path in run_files(self._folder):
            stat = path.stat()
            seen = (stat.st_size, stat.st_mtime_ns)
            if self._seen.get(path.name) != seen:
                self._entries[path.name] = self._mirrored.put(path, path.name)
                self._seen[path.name] = seen
        if self._entries != before:
            self._mirrored.note_finished(self._entries)


def _first_line(path: Path) -> bytes:
    """Nothing where there is no whole line."""
    try:
        with open(path, "rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return b""
    return line if line.endswith(b"\n") else b""
