"""Read the records of a file that grows meanwhile. Only what was appended is read; a file that was
cut back or replaced is noticed.
"""

from pathlib import Path
from typing import BinaryIO

from brimful.base.rundir import record_of
from brimful.base.types import JsonDict

MARK_BYTES = 512
"""How many of the last bytes read are compared, to see whether the file only grew since."""


class Tail:
    """Reads whole records of a file of JSON lines, from where the last read ended.

    A run that resumes cuts its journal back and grows it again, perhaps beyond where it was; a copy
    is replaced as a whole. So neither size nor inode shows whether the file only grew, but the
    bytes before the place where the last read ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changed_at: float | None = None
        """Unix seconds of the file's last change; None before there was a file."""
        self._seen: tuple[int, int, int] | None = None
        self._offset, self._mark = 0, b""

    def read(self) -> tuple[bool, list[JsonDict]]:
        """Return whether everything read before is void, and the records since. A file that is
        missing for a moment has nothing new.
        """
        try:
            status = self.path.stat()
            seen = status.st_ino, status.st_size, status.st_mtime_ns
            if seen == self._seen:
                return False, []
            with open(self.path, "rb") as file:
                goes_on = self._goes_on(file)
                file.seek(self._offset if goes_on else 0)
                data = file.read()
        except OSError:
            return False, []
        if not goes_on:
            self._offset, self._mark = 0, b""
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        self._mark = (self._mark + whole)[-MARK_BYTES:]
        self._seen, self.changed_at = seen, status.st_mtime
        records = (record_of(line, self.path.name) for line in whole.splitlines())
        return not goes_on, [record for record in records if record is not None]

    def _goes_on(self, file: BinaryIO) -> bool:
        file.seek(self._offset - len(self._mark))
        return file.read(len(self._mark)) == self._mark
