"""Commands as a user types them on a terminal of 80 columns, and what is wrong with what they print."""

import fcntl
import itertools
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

COLUMNS = 80
CONTROLS = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|[\r\n])")


@dataclass(frozen=True)
class Step:
    """A command, settings that make it small, and what a user expects of it.

    Attributes:
        says: Regular expressions of which each must occur in what is printed.
    """

    command: str
    small: str = ""
    says: tuple[str, ...] = ()


@dataclass
class Outcome:
    """What came of a step: how long it took, and what a user would complain about."""

    command: str
    seconds: float
    first_output_s: float
    longest_silence_s: float
    problems: list[str] = field(default_factory=list)


def take(step: Step, folder: Path, environment: Mapping[str, str]) -> tuple[Outcome, str]:
    """Run a command, and look at what a user sees."""
    command = f"{step.command} {step.small}"
    printed, exit_code, times_s = on_terminal(command, folder, environment)
    shown = left_on_screen(printed)
    silences = [after - before for before, after in itertools.pairwise(times_s)]
    outcome = Outcome(
        step.command, round(times_s[-1], 1), round(times_s[1], 2), round(max(silences), 1)
    )
    if exit_code:
        outcome.problems.append(f"exit code {exit_code}, not 0")
    if "Traceback" in shown:
        outcome.problems.append("a traceback")
    outcome.problems += [
        f"nothing like {word!r}"
        for word in step.says
        if not re.search(word, f"{shown}\n{' '.join(shown.split())}")
    ]
    # Texts and rows of data have any length; a path is never broken, so that it can be copied.
    if not re.search("brimful (generate|predict)", step.command):
        rows = [row for row in shown.splitlines() if len(row) > COLUMNS and " " in row.strip()]
        outcome.problems += [f"wider than the terminal: {row!r}" for row in rows[:1]]
        outcome.problems += [f"cut: {row!r}" for row in shown.splitlines() if row.endswith("…")]
    return outcome, shown


def on_terminal(
    command: str, folder: Path, environment: Mapping[str, str]
) -> tuple[str, int, list[float]]:
    """Return what a command prints on a terminal of 80 columns, its exit code, and the seconds since
    its start at which it printed and ended, 0 first.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    started = time.perf_counter()
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    printed, times_s = b"", [0.0]
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        printed += piece
        times_s.append(time.perf_counter() - started)
    os.close(ours)
    exit_code = process.wait()
    times_s.append(time.perf_counter() - started)
    return printed.decode(errors="replace"), exit_code, times_s


def left_on_screen(printed: str) -> str:
    """Return the rows that stay: the cursor is moved up and rows are erased as a terminal does."""
    rows, row, column = [""], 0, 0
    for part in CONTROLS.split(printed):
        if part == "\n":
            row += 1
            rows += [""] * (row == len(rows))
        elif part == "\r":
            column = 0
        elif part.endswith("A") and part.startswith("\x1b["):
            row = max(0, row - int(part[2:-1] or 1))
        elif part.endswith("K") and part.startswith("\x1b["):
            rows[row] = "" if part[2:-1] == "2" else rows[row][:column]
        elif not part.startswith("\x1b"):
            before, behind = rows[row].ljust(column)[:column], rows[row][column + len(part) :]
            rows[row], column = before + part + behind, column + len(part)
    return "\n".join(each.rstrip() for each in rows)
