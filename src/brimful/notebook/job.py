"""Run `brimful run` as a process of its own, which outlives the kernel that started it and which
the next kernel finds again.
"""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from brimful.base.env import of_a_plain_process
from brimful.base.errors import BrimfulError, RequestError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.runs.parsing import parse

FOLDER = ".notebook"
"""In the folder of runs; a name that lists of runs pass over."""
CHILD = "brimful.notebook.child"
MESSAGE = "brimful: "
"""How the last message of a command that failed begins."""
LAST_LINES = 12
"""Of the log, shown where a process ended without a message."""


class CommandFailed(BrimfulError):
    """A process of brimful's failed; this is what it said."""


@dataclass(frozen=True)
class ProcessResult:
    """How a process ended.

    Attributes:
        exit_code: None where it was killed.
        message: Its last message; "" where it ended without an error.
    """

    exit_code: int | None
    message: str


@dataclass(frozen=True, kw_only=True)
class _StartedProcess:
    """The process that was started last; None where none was.

    Attributes:
        process_started: In Unix seconds.
        words: Arguments of its command.
    """

    pid: int | None = None
    process_started: float | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """The process that trains one run.

    Attributes:
        folder: Where its process number, its exit code and its log are kept.
    """

    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "log.txt"

    @property
    def arguments(self) -> list[str]:
        """Return the arguments of the command that was started last; empty where none was."""
        return list(self._started().words)

    def start(self, arguments: Sequence[str]) -> None:
        """Start `brimful ARGUMENTS` in a session of its own, which neither an interrupt nor the end
        of this kernel reaches.

        Raises:
            RunFolderError: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._end.unlink(missing_ok=True)
            with open(self.log, "wb") as log:
                process = subprocess.Popen(  # noqa: S603 - this Python, this package
                    [sys.executable, "-P", "-u", "-m", CHILD, str(self._end.resolve()), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=of_a_plain_process(),
                )
        except OSError as error:
            raise RunFolderError(
                f"{self.folder} cannot be written: {error}. Choose another place with"
                " run.folder=PATH."
            ) from error
        with contextlib.suppress(psutil.NoSuchProcess):
            started = psutil.Process(process.pid).create_time()
            write_json_atomically(
                self.folder / "process.json",
                {"pid": process.pid, "process_started": started, "words": list(arguments)},
            )
        # Waiting for the process leaves no zombie behind.
        threading.Thread(target=process.wait, daemon=True).start()

    def process(self) -> psutil.Process | None:
        """Return the process while it runs, None when it has ended."""
        started = self._started()
        if started.pid is None or started.process_started is None:
            return None
        try:
            process = psutil.Process(started.pid)
            # Another process may have the same number by now.
            is_same = abs(process.create_time() - started.process_started) < 1
            runs = is_same and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, ValueError):
            return None
        return process if runs else None

    def stop(self) -> None:
        """Ask the process to stop: training stops at its next step, with a checkpoint."""
        process = self.process()
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGINT)

    def result(self) -> ProcessResult:
        """Return how the process ended."""
        exit_code = read_json(self._end).get("exit_code") if self._end.exists() else None
        return ProcessResult(exit_code, "" if exit_code == 0 else _last_message(self.log))

    def log_lines(self, count: int) -> list[str]:
        """Return the last lines of its output, without empty ones."""
        return [line for line in _end_of(self.log).splitlines() if line.strip()][-count:]

    @property
    def _end(self) -> Path:
        return self.folder / "end.json"

    def _started(self) -> _StartedProcess:
        path = self.folder / "process.json"
        return parse(_StartedProcess, read_json(path) if path.exists() else {})


def run_command(arguments: Sequence[str], *, module: str = "") -> str:
    """Run `brimful ARGUMENTS`, or a module of this package, to its end and return its output.

    It runs in a process of its own, so that the kernel never loads what needs the device.

    Raises:
        CommandFailed: it failed; with its message.
    """
    start = ["-m", module] if module else ["-c", "from brimful.cli import main; main()"]
    try:
        ended = subprocess.run(  # noqa: S603 - this Python, this package
            [sys.executable, "-P", *start, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
            env=of_a_plain_process(),
        )
    except OSError as error:
        raise RequestError(f"{sys.executable} cannot be started: {error}") from error
    if ended.returncode not in {0, 1} or not ended.stdout:
        raise CommandFailed(
            _message_in(ended.stderr)
            or f"{' '.join(arguments)} ended with exit code {ended.returncode}:\n"
            f"{ended.stderr[-2000:]}"
        )
    return ended.stdout


def _last_message(log: Path) -> str:
    text = _end_of(log)
    lines = "\n".join(text.splitlines()[-LAST_LINES:])
    without = f"it ended without a message of its own. The last lines of {log}:\n{lines}"
    return _message_in(text) or without


def _message_in(text: str) -> str:
    """Return the message of a command that failed, which ends its output; "" without one."""
    _, prefix, message = f"\n{text}".rpartition(f"\n{MESSAGE}")
    return message.strip() if prefix else ""


def _end_of(path: Path, num_bytes: int = 16_384) -> str:
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - num_bytes))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
