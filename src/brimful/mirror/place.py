"""Where a run's mirror lies: refused where it could not protect anything, looked at before each
use, as a drive may be gone.
"""

import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from brimful.base.errors import RunFolderError
from brimful.mirror.files import Files, NotWhole, in_words, within

START_LIMIT_S = 60.0
"""A mirror that gives no answer for so long when a run starts cannot be used."""
T = TypeVar("T")
_INSTEAD = (
    "Choose another folder with run.mirror=PATH, or leave run.mirror out to train without a mirror."
)


@dataclass(frozen=True)
class Place:
    """A run's folder in a mirror.

    Attributes:
        root: The mirror, made where only its last part is missing.
        folder: MIRROR/RUN.
        mount: What has to be mounted for the mirror to be there.
        same_disk: It lies on the file system of the run itself.
    """

    root: Path
    folder: Path
    mount: Path
    same_disk: bool

    @classmethod
    def of(cls, mirror: str, run_folder: Path) -> "Place":
        """The place of a run in the mirror that its recipe names.

        Raises:
            RunFolderError: the mirror is the run or lies within it, or where it should be made
                there is nothing.
        """
        try:
            return within_limit(mirror, lambda: cls._of(mirror, run_folder))
        except (
            OSError,
            RuntimeError,
            ValueError,
        ) as error:  # also from resolving a path: no such user, a link to itself, a null character
            raise RunFolderError(
                f"run.mirror={mirror} cannot be used: {in_words(error).rstrip('.')}. {_INSTEAD}"
            ) from error

    @classmethod
    def _of(cls, mirror: str, run_folder: Path) -> "Place":
        root, run = Path(mirror).expanduser().resolve(), run_folder.resolve()
        folder = root / run_folder.absolute().name  # a run folder may be a link to another name
        if folder == run:
            raise RunFolderError(
                f"run.mirror={mirror} is the folder that holds the run itself, so it would protect"
                f" nothing. {_INSTEAD}"
            )
        if root == run or run in root.parents or folder in run.parents:
            raise RunFolderError(
                f"run.mirror={mirror} and the run folder {run_folder} lie within each other."
                f" {_INSTEAD}"
            )
        above = next(each for each in (root, *root.parents) if each.exists())
        beside = next(each for each in (run, *run.parents) if each.exists())
        mount = next(each for each in (above, *above.parents) if os.path.ismount(each))
        place = cls(root, folder, mount, same_disk=os.stat(above).st_dev == os.stat(beside).st_dev)
        place.require_there()
        return place

    def require_there(self) -> None:
        """Raises OSError where the drive is not mounted (any more), so that nothing is written
        below its empty place.
        """
        if not os.path.ismount(self.mount):
            raise OSError(f"{self.mount} is not mounted any more")
        if not self.root.is_dir() and not self.root.parent.is_dir():
            raise OSError(f"{self.root.parent} is not there (is the drive mounted?)")
        if self.root.exists() and not self.root.is_dir():
            raise OSError(f"{self.root} is a file; a mirror is a folder")

    def make(self, files: Files) -> None:
        """Make the mirror's folder and the run's in it, where they are missing; nothing above
        them.
        """
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
            within_limit(str(self.root), probe)
        except (OSError, NotWhole) as error:
            raise RunFolderError(
                f"the mirror {self.root} cannot be written: {in_words(error)}. Mend that, or:"
                f" {_INSTEAD}"
            ) from error


def within_limit(mirror: str, act: Callable[[], T]) -> T:
    """What `act` returns; a mirror that does not answer is an error.

    Raises:
        RunFolderError: it does not come back in time.
    """
    try:
        return within(START_LIMIT_S, act)
    except TimeoutError as error:
        raise RunFolderError(
            f"the mirror {mirror} gives {error}. Is the drive mounted and reachable? {_INSTEAD}"
        ) from error
