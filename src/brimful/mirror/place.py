"""Where a run's mirror lies. Places that could not protect the run are refused, and the mirror is
looked at before each use, because a drive may be gone.
"""

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from brimful.base.errors import RunFolderError
from brimful.mirror.files import Files, IntegrityError, as_clause

FINISHED = "finished.json"
"""The file in a mirrored run's folder that lists the files of the finished run."""
START_LIMIT_S = 60.0
"""A mirror that does not answer for so long when a run starts cannot be used."""
T = TypeVar("T")
_ALTERNATIVES = (
    "Choose another folder with run.mirror=PATH, or leave run.mirror out to train without a mirror."
)


@dataclass(frozen=True)
class Place:
    """A run's folder in a mirror.

    Attributes:
        root: The mirror; created if only its last part is missing.
        folder: MIRROR/RUN.
        mount: What has to be mounted for the mirror to be there.
        same_disk: Whether it lies on the file system of the run itself.
    """

    root: Path
    folder: Path
    mount: Path
    same_disk: bool

    @classmethod
    def of(cls, mirror: str, run_folder: Path) -> "Place":
        """Return the place of a run in the mirror that its recipe names.

        Raises:
            RunFolderError: the mirror is the run or lies within it, or its parent folder does not
                exist.
        """
        try:
            return within_limit(mirror, lambda: cls._of(mirror, run_folder))
        except (OSError, RuntimeError, ValueError) as error:
            # Resolving a path fails for an unknown user, a link to itself, a null character.
            raise RunFolderError(
                f"run.mirror={mirror} cannot be used: {as_clause(error).rstrip('.')}."
                f" {_ALTERNATIVES}"
            ) from error

    @classmethod
    def _of(cls, mirror: str, run_folder: Path) -> "Place":
        root, run = Path(mirror).expanduser().resolve(), run_folder.resolve()
        # Not the resolved name: a run folder may be a link to a folder of another name.
        folder = root / run_folder.absolute().name
        if folder == run:
            raise RunFolderError(
                f"run.mirror={mirror} is the folder that holds the run itself, so it would protect"
                f" nothing. {_ALTERNATIVES}"
            )
        if root == run or run in root.parents or folder in run.parents:
            raise RunFolderError(
                f"run.mirror={mirror} and the run folder {run_folder} lie within each other."
                f" {_ALTERNATIVES}"
            )
        above = _existing(root)
        mount = next(each for each in (above, *above.parents) if os.path.ismount(each))
        same_disk = above.stat().st_dev == _existing(run).stat().st_dev
        place = cls(root, folder, mount, same_disk)
        place.require_there()
        return place

    def require_there(self) -> None:
        """Raise OSError if the drive is not mounted, so that nothing is written below its empty
        mount point.
        """
        if not os.path.ismount(self.mount):
            raise OSError(f"{self.mount} is not mounted any more")
        if not self.root.is_dir() and not self.root.parent.is_dir():
            raise OSError(f"{self.root.parent} is not there (is the drive mounted?)")
        if self.root.exists() and not self.root.is_dir():
            raise OSError(f"{self.root} is a file; a mirror is a folder")

    def answer(self, act: Callable[[], T]) -> T:
        """Return `act()`, as `within_limit`."""
        return within_limit(str(self.root), act)

    def holds_finished_run(self) -> bool:
        """Return whether the mirror says that the run is finished; its files are not read."""
        return self.answer((self.folder / FINISHED).exists)

    def make(self, files: Files) -> None:
        """Make the mirror's folder and the run's in it if they are missing, but no folder above."""
        self.require_there()
        for folder in (self.root, self.folder):
            files.make_folder(folder)

    def require_writable(self, files: Files) -> None:
        """Write a few bytes into the mirror and read them back.

        Raises:
            RunFolderError: that fails, or takes too long.
        """

        def probe() -> None:
            self.require_there()
            files.make_folder(self.root)
            path = self.root / f".brimful-{uuid.uuid4().hex}.tmp"
            try:
                files.write_bytes(path, os.urandom(4096))
            finally:
                files.remove(path)

        try:
            self.answer(probe)
        except (OSError, IntegrityError) as error:
            raise RunFolderError(
                f"the mirror {self.root} cannot be written: {as_clause(error)}. Mend that, or:"
                f" {_ALTERNATIVES}"
            ) from error


def _existing(path: Path) -> Path:
    """Return the nearest folder above `path` that exists, or `path` itself."""
    return next(each for each in (path, *path.parents) if each.exists())


def within_limit(mirror: str, act: Callable[[], T]) -> T:
    """Return `act()`, waited for at most START_LIMIT_S; a call that hangs is left to a daemon
    thread.

    Raises:
        RunFolderError: it does not come back in time.
    """
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(act())
        except BaseException as error:  # raised again in the waiting thread
            result.set_exception(error)

    threading.Thread(target=run, daemon=True, name="mirror-start").start()
    if wait([result], START_LIMIT_S).not_done:
        raise RunFolderError(
            f"the mirror {mirror} gives no answer within {START_LIMIT_S:.0f} s. Is the drive"
            f" mounted and reachable? {_ALTERNATIVES}"
        )
    return result.result()
