"""Commands of brimful that the page starts as processes of their own, which go on when the studio
is closed, and what they print.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from brimful.base.errors import RequestError

FOLDER = ".studio"
"""Below the runs folder: recipes that were started from the page, and what commands printed."""
SHOWN_BYTES = 6000
"""Of the end of what a command printed."""


class Jobs:
    """Commands by name, at most one of a name at a time.

    Args:
        runs_folder: Holds the runs.
    """

    def __init__(self, runs_folder: Path) -> None:
        self._runs, self._folder = runs_folder, runs_folder / FOLDER
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    def _file(self, name: str, ending: str) -> Path:
        """Return the path of a file that belongs to a name."""
        return self._folder / f"{quote(name, safe=' ')}.{ending}"

    def start_run(self, name: str, recipe: str) -> None:
        """Save a recipe and start `brimful run` of it.

        Args:
            name: Name of the run.
            recipe: Recipe as YAML.

        Raises:
            RequestError: there is a run of this name.
        """
        if (self._runs / name).exists() or self.is_running(name):
            raise RequestError(
                f"there is a run {name!r} already. Choose another name, or continue that one under"
                " Runs."
            )
        file = self._file(name, "yaml")
        self._folder.mkdir(parents=True, exist_ok=True)
        file.write_text(recipe, encoding="utf-8")
        self.start(name, ["run", str(file)])

    def start(self, name: str, words: Sequence[str]) -> None:
        """Start `brimful WORDS`.

        Raises:
            RequestError: a command of this name has not ended.
        """
        with self._lock:
            if self.is_running(name):
                raise RequestError(f"{name} is running already.")
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(self._file(name, "log"), "wb") as output:
                self._processes[name] = subprocess.Popen(  # noqa: S603 - our own command
                    [sys.executable, "-m", "brimful", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C of the studio's terminal is not for it.
                    start_new_session=True,
                )

    def is_running(self, name: str) -> bool:
        """Return whether the command was started here and has not ended."""
        process = self._processes.get(name)
        return process is not None and process.poll() is None

    def exit_code(self, name: str) -> int | None:
        """Return the exit code of a command that was started here; None while it runs."""
        process = self._processes.get(name)
        return None if process is None else process.poll()

    def names(self) -> list[str]:
        """Return the names of the commands that were started here, the last first."""
        return [*reversed(self._processes)]

    def pid(self, name: str) -> int | None:
        """Return the process of a command that is running."""
        return self._processes[name].pid if self.is_running(name) else None

    def printed(self, name: str) -> str:
        """Return the end of what the command printed last; "" where it was not started here."""
        try:
            with open(self._file(name, "log"), "rb") as output:
                output.seek(max(0, os.fstat(output.fileno()).st_size - SHOWN_BYTES))
                return output.read().decode(errors="replace")
        except OSError:
            return ""


def interrupt(pid: int) -> None:
    """Ask a process to stop, as Ctrl-C does.

    Raises:
        RequestError: it has ended, or belongs to someone else.
    """
    try:
        os.kill(pid, signal.SIGINT)
    except OSError as error:
        raise RequestError(f"process {pid} cannot be stopped: {error.strerror}.") from error
