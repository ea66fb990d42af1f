"""The runs that the page may show: those below one folder, by name, and nothing else of the
disk.
"""

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from brimful.base.errors import RunFolderError
from brimful.report.listing.listing import Listed, find_runs, is_run
from brimful.runs.files import MODEL_FOLDER

CHANGING = (
    "metrics.jsonl",
    "samples.jsonl",
    "scores.json",
    "plan.json",
    "monitor.jsonl",
    "mirror.json",
)


@dataclass(frozen=True)
class Library:
    """Run folders below `folder`."""

    folder: Path

    def listed(self) -> list[Listed]:
        """Return all runs, the one written to last first; none if the folder holds none."""
        try:
            found = find_runs(self.folder)
        except RunFolderError:
            return []
        return [each for each in found if each.kind == "run" and self.holds(each.name)]

    def names(self) -> list[str]:
        """Return the names of all runs, relative to the folder."""
        return [each.name for each in self.listed()]

    def finished(self) -> list[str]:
        """Return the names of runs that have a model."""
        return [name for name in self.names() if (self.folder / name / MODEL_FOLDER).is_dir()]

    def path(self, name: str) -> Path:
        """Return the folder of a run.

        Raises:
            RunFolderError: there is no run of that name below the folder.
        """
        if not self.holds(name):
            raise RunFolderError(
                f"there is no run {name!r} in {self.folder}. It may have been moved or deleted:"
                " refresh the list."
            )
        return self.folder / name

    def holds(self, name: str) -> bool:
        """Return whether the name is of a run below the folder, without links and `..`."""
        parts = PurePosixPath(name).parts
        if not parts or name.startswith("/") or ".." in parts:
            return False
        folder = self.folder.joinpath(*parts)
        return (
            os.path.isdir(folder)  # False for names that no file system takes, where pathlib raises
            and folder.resolve() == self.folder.resolve().joinpath(*parts)
            and is_run(folder)
        )

    def state(self, name: str) -> str:
        """Return a text that changes whenever a file that the page shows does."""
        files = [self.path(name) / file for file in CHANGING]
        return " ".join(
            f"{each.stat().st_mtime_ns}:{each.stat().st_size}" for each in files if each.is_file()
        )
