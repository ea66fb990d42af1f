"""What a run folder is at this moment: being written, finished, stopped, cut off, not started, or
damaged. Read leniently; nothing in it is changed.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from brimful.base.errors import BrimfulError, RunFolderError
from brimful.base.rundir import SCHEMA_VERSION, Lease, read_json, writer_of
from brimful.mirror.status import STATUS as MIRROR_FILE
from brimful.mirror.status import MirrorStatus
from brimful.mirror.status import read_status as read_mirror
from brimful.recipe import load
from brimful.report.live.run_state import age
from brimful.report.live.tail import record_of
from brimful.runs.files import PURPOSE
from brimful.runs.runfiles import Json, RunFiles, number, read_run

Word = Literal["running", "finished", "stopped", "interrupted", "not started", "scored", "damaged"]
RECIPE_FILE, STATUS_FILE, METRICS_FILE, CHECKPOINTS, MODEL = (
    "recipe.yaml",
    "run.json",
    "metrics.jsonl",
    "checkpoints",
    "model",
)
MIRROR_FRESH_S = 120.0
"""A copy in a mirror that changed within this time is taken for that of a running run: logs are
copied about every 15 s.
"""


@dataclass(frozen=True)
class Life:
    """What a run folder is now.

    Attributes:
        word: In a word. `interrupted`: it says that it runs, and nobody writes it; `scored`: an
            untuned model's scores, which trained nothing.
        told: The same for people, in a line.
        pid: Of the process that writes it, where that runs on this machine.
        is_mirrored: Whether this is the copy of a run in a mirror.
        problems: What is missing or damaged, and what that means.
    """

    word: Word
    told: str
    pid: int | None = None
    is_mirrored: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class Points:
    """Where a run could go on from.

    Attributes:
        local_step, local_time: The newest checkpoint in the folder, and when it was written (Unix
            seconds); None without any.
        mirror: How far the run's mirror is; None where it has none.
        is_copy: The folder is that mirror's: what is local to the run is not seen here.
    """

    local_step: int | None = None
    local_time: float | None = None
    mirror: MirrorStatus | None = None
    is_copy: bool = False

    def told(self, now: float) -> list[str]:
        """`recovery point: step 60, 2m 10s ago`, and a line of the mirror's; empty where there is
        none.
        """
        lines = []
        if self.local_step is not None and not (self.is_copy and self.mirror is not None):
            since = "" if self.local_time is None else f", {age(now - self.local_time)} ago"
            lines.append(f"recovery point: step {self.local_step}{since}")
        return [*lines, self.mirror.describe(now)] if self.mirror is not None else lines


def points_of(run_folder: Path) -> Points:
    """The recovery points that a run folder, or its copy in a mirror, tells of; whether they are
    sound is another question.
    """
    newest = max(checkpoint_folders(run_folder), default=None)
    local_time = None
    if newest is not None:
        try:
            local_time = newest.stat().st_mtime
        except OSError:  # rotation was faster
            newest = None
    step, mirror = (
        None if newest is None else int(newest.name.removeprefix("step-")),
        _mirror_of(run_folder),
    )
    return Points(step, local_time, mirror, is_mirrored(run_folder, mirror))


def _mirror_of(run_folder: Path) -> MirrorStatus | None:
    try:
        status = read_mirror(run_folder)
    except (OSError, ValueError):
        return None
    known = (
        status is not None
        and isinstance(status.path, str)
        and all(number(value) is not None for value in _numbers(status))
    )
    return status if known else None


def _numbers(status: MirrorStatus) -> list[Any]:
    wanted = [status.since, status.local_step, status.durable_step, status.durable_time]
    return [value for value in wanted if value is not None]


def checkpoint_folders(run_folder: Path) -> list[Path]:
    """Committed checkpoints, oldest first."""
    try:
        return sorted(
            entry
            for entry in (run_folder / CHECKPOINTS).iterdir()
            if entry.name.removeprefix("step-").isdigit()
        )
    except OSError:
        return []


def is_mirrored(run_folder: Path, mirror: MirrorStatus | None) -> bool:
    """Whether a folder is a run's copy in a mirror."""
    if (run_folder / "finished.json").exists() or any(
        (folder / "POINT.json").exists() for folder in checkpoint_folders(run_folder)
    ):
        return True
    return mirror is not None and os.path.abspath(mirror.path) == os.path.abspath(run_folder)


def read_leniently(run_folder: Path) -> RunFiles:
    """As `read_run`; a folder that has none of a run's files yet is an empty run.

    Raises:
        RunFolderError: not a folder.
    """
    if not any((run_folder / name).exists() for name in PURPOSE) and run_folder.is_dir():
        return RunFiles(run_folder, "", {}, {}, {}, {}, {}, (), (), {})
    return read_run(run_folder)


def life_of(run: RunFiles, *, now: float | None = None) -> Life:
    """What a run is now.

    Args:
        run: As `read_leniently` reads it.
        now: Unix seconds.
    """
    now, mirrored = (
        time.time() if now is None else now,
        is_mirrored(run.folder, _mirror_of(run.folder)),
    )
    if run.recipe.get("untuned") is True:
        return Life("scored", "the model from before tuning, scored")
    status = status_word(run.folder)
    return (
        _written(run, mirrored)
        or _unbegun(run, status, mirrored)
        or _left(run, status, mirrored, now)
    )


@dataclass(frozen=True)
class Writing:
    """The living process that writes a run folder.

    Attributes:
        told: `process 4711 on host, since 2026-11-22 14:00:00`; the host only where that is
            another.
        pid: Where it runs on this machine.
        started: When the process started, in Unix seconds.
    """

    told: str
    pid: int | None
    started: float | None


def writing(run_folder: Path) -> Writing | None:
    """Who writes a run folder now, as far as can be told from here; None where nobody does."""
    writer = writer_of(run_folder)
    if writer is None or not writer[1]:
        return None
    holder, is_here = writer[0], writer[0].get("host") == socket.gethostname()
    pid = number(holder.get("pid")) if is_here else None
    where = "" if is_here else f" on {holder.get('host')}"
    told = f"process {holder.get('pid')}{where}, since {holder.get('since')}"
    return Writing(told, None if pid is None else int(pid), number(holder.get("process_started")))


def _written(run: RunFiles, mirrored: bool) -> Life | None:
    """A run that a living process writes."""
    writer = writing(run.folder)
    if writer is None:
        return None
    what = f"running: {reached(run)}" if run.records else "running: no step yet, it prepares"
    return Life("running", f"{what} ({writer.told})", writer.pid, mirrored)


def _unbegun(run: RunFiles, status: str | None, mirrored: bool) -> Life | None:
    """A run that a session left before it trained anything."""
    folder = run.folder
    if (
        status is not None
        or run.records
        or checkpoint_folders(folder)
        or (folder / "plan.json").exists()
    ):
        return None
    is_run = any((folder / name).exists() for name in (RECIPE_FILE, Lease.FILE_NAME))
    told = (
        "never started: a session ended before training"
        if is_run
        else "never started: it has no files of a run"
    )
    return Life("not started", told, is_mirrored=mirrored, problems=tuple(_recipe_problem(folder)))


def _left(run: RunFiles, status: str | None, mirrored: bool, now: float) -> Life:
    """A run that nobody writes, as far as this machine can see."""
    fatal, problems = _fatal(run, status), tuple(_problems(run))
    if fatal:
        return Life(
            "damaged",
            f"damaged: {fatal[0]}",
            is_mirrored=mirrored,
            problems=(*fatal[1:], *problems),
        )
    if status == "finished":
        return Life(
            "finished",
            f"finished: {run.last_step:,} steps",
            is_mirrored=mirrored,
            problems=problems,
        )
    if status == "stopped":
        return Life(
            "stopped", f"stopped at {reached(run)}", is_mirrored=mirrored, problems=problems
        )
    changed = last_change(run.folder)
    if mirrored and changed is not None and now - changed < MIRROR_FRESH_S:
        return Life(
            "running",
            f"running: {reached(run)} (as copied {age(now - changed)} ago)",
            None,
            True,
            problems,
        )
    unseen = (
        f", or out of reach: its mirror did not change for {age(now - changed)}"
        if mirrored and changed is not None
        else ""
    )
    return Life(
        "interrupted",
        f"interrupted at {reached(run)}{unseen}",
        is_mirrored=mirrored,
        problems=problems,
    )


def reached(run: RunFiles) -> str:
    """`step 340 of 500`."""
    return f"step {run.last_step:,}" + (f" of {run.total_steps:,}" if run.total_steps else "")


def last_change(run_folder: Path) -> float | None:
    """When a run's logs or status changed last, in Unix seconds; None without any."""
    names = (METRICS_FILE, "monitor.jsonl", STATUS_FILE, MIRROR_FILE, Lease.FILE_NAME)
    return max(
        (time for name in names if (time := changed_at(run_folder / name)) is not None),
        default=None,
    )


def changed_at(path: Path) -> float | None:
    """When a file changed last, in Unix seconds; None where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def status_word(folder: Path) -> str | None:
    """What run.json says; "unreadable" where that cannot be told, None where there is none."""
    if not (folder / STATUS_FILE).exists():
        return None
    try:
        values = read_json(folder / STATUS_FILE)
    except RunFolderError:
        return "unreadable"
    known = (
        isinstance(values, dict)
        and values.get("schema_version") == SCHEMA_VERSION
        and values.get("status") in ("running", "stopped", "finished")
    )
    return str(values["status"]) if known else "unreadable"


def _fatal(run: RunFiles, status: str | None) -> list[str]:
    """What keeps a run from being continued or used, the worst first."""
    found = []
    if status is None:
        found.append(f"{STATUS_FILE} (its status) is missing, so that it cannot be continued")
    elif status == "unreadable":
        found.append(
            f"{STATUS_FILE} (its status) cannot be read, or is of another version of brimful"
        )
    found += _recipe_problem(run.folder)
    if status == "finished" and not (run.folder / MODEL).is_dir():
        found.append(f"{MODEL}/ is missing, though it is finished")
    return found


def _recipe_problem(folder: Path) -> list[str]:
    path = folder / RECIPE_FILE
    if not path.exists():
        return [f"{RECIPE_FILE} (what was asked for) is missing"]
    try:
        load(str(path))
    except (BrimfulError, OSError, ValueError) as error:
        return [f"{RECIPE_FILE} is no recipe any more: {_first_line(error)}"]
    return []


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])


def _problems(run: RunFiles) -> list[str]:
    """What is missing or damaged and does not keep the run from being used."""
    wanted = ("plan.json", "environment.json", "data.json", "metrics.jsonl")
    found = [run.missing[name] for name in wanted if name in run.missing]
    if not (run.folder / METRICS_FILE).exists():
        return found
    torn, damaged = torn_lines(run.folder / METRICS_FILE)
    if damaged:
        found.append(
            f"{METRICS_FILE}: {damaged} damaged line{'s' * (damaged > 1)} in the middle, left out"
        )
    if torn:
        found.append(f"{METRICS_FILE}: the last record is torn; it is dropped when the run goes on")
    return found


def torn_lines(path: Path) -> tuple[bool, int]:
    """Whether the last line of a journal is torn, and how many lines before it are damaged."""
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        return False, 0
    torn = bool(lines) and not lines[-1].endswith(b"\n")
    whole = lines[: len(lines) - torn]
    suspects = [
        line
        for line in whole
        if not (line.startswith(b'{"kind": "step"') and line.endswith(b"}\n"))
    ]
    return torn, sum(record_of(line) is None for line in suspects)


def json_or_none(path: Path) -> Json | None:
    """The mapping in a JSON file; None for anything else."""
    try:
        value = read_json(path)
    except (RunFolderError, OSError):
        return None
    return value if isinstance(value, dict) else None
