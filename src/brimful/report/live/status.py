"""The status of a run folder: running, finished, stopped, interrupted, not started, scored or
damaged. It is read leniently; nothing in it is changed.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from brimful.base.errors import BrimfulError
from brimful.base.rundir import Lease, finite, writer_of
from brimful.base.text import plural
from brimful.base.watchdog import FILE_NAME as HANG_FILE
from brimful.hardware.monitored import FILE_NAME as MONITOR_FILE
from brimful.mirror.status import MirrorStatus
from brimful.mirror.status import read_status as read_mirror
from brimful.report.live.run_state import age
from brimful.runs.bookkeeping import recorded_status
from brimful.runs.deciding import recipe_of_run
from brimful.runs.files import (
    CHECKPOINTS_FOLDER,
    DATA_FILE,
    ENVIRONMENT_FILE,
    JOURNAL_FILE,
    MIRROR_FILE,
    MODEL_FOLDER,
    PLAN_FILE,
    PURPOSE,
    RECIPE_FILE,
    SCORES_FILE,
    STATUS_FILE,
)
from brimful.runs.folder import RunFolder, empty_run, read_run

StatusName = Literal[
    "running", "finished", "stopped", "interrupted", "not started", "scored", "damaged"
]
FRESH_COPY_S = 120.0
"""A copy in a mirror that changed within this time counts as that of a running run: logs are copied
about every 15 s.
"""


@dataclass(frozen=True)
class RunStatus:
    """The status of a run folder.

    Attributes:
        status: `interrupted` where run.json says that it runs and no process writes it; `scored`
            for the scores of an untuned model, which trained nothing.
        description: The same in a line.
        pid: Number of the process that writes it, where that runs on this machine.
        is_mirrored: Whether the folder is the copy of a run in a mirror.
        problems: What is missing or damaged, and what follows from that.
    """

    status: StatusName
    description: str
    pid: int | None = None
    is_mirrored: bool = False
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class RecoveryPoints:
    """From where a run could continue.

    Attributes:
        local_step, local_time: The newest checkpoint in the folder, and when it was written (Unix
            seconds); None without any.
        mirror: How far the run's mirror is; None where it has none.
        is_copy: Whether the folder is the copy in a mirror; the checkpoints of the run itself are
            then not seen here.
    """

    local_step: int | None = None
    local_time: float | None = None
    mirror: MirrorStatus | None = None
    is_copy: bool = False

    @property
    def shows_checkpoint(self) -> bool:
        """Return whether the folder's newest checkpoint is shown as a recovery point. In a mirror's
        copy it is the mirror's, whose status is shown in its place if it can be read.
        """
        return self.local_step is not None and not (self.is_copy and self.mirror is not None)

    def local(self, now: float) -> str:
        """Return the newest checkpoint as `step 60, 2m 10s ago`."""
        since = "" if self.local_time is None else f", {age(now - self.local_time)} ago"
        return f"step {self.local_step}{since}"

    def lines(self, now: float) -> list[str]:
        """Return `recovery point: step 60, 2m 10s ago`, and a line about the mirror; empty without
        either.
        """
        lines = [f"recovery point: {self.local(now)}"] if self.shows_checkpoint else []
        return [*lines, self.mirror.describe(now)] if self.mirror is not None else lines


def recovery_points(run_folder: Path) -> RecoveryPoints:
    """Return the recovery points of a run folder, or of its copy in a mirror. They are not
    verified.
    """
    newest = max(checkpoint_folders(run_folder), default=None)
    changed = None if newest is None else changed_at(newest)
    # A running session may have removed the checkpoint meanwhile.
    is_there = newest is not None and changed is not None
    step = step_of(newest) if newest is not None and is_there else None
    mirror = _mirror_of(run_folder)
    return RecoveryPoints(step, changed, mirror, is_mirrored(run_folder, mirror))


def _mirror_of(run_folder: Path) -> MirrorStatus | None:
    """Return the status of a run's mirror, None where it is missing or damaged."""
    try:
        status = read_mirror(run_folder)
    except (OSError, ValueError):
        return None
    if status is None or not isinstance(status.path, str):
        return None
    values = (status.since, status.local_step, status.durable_step, status.durable_time)
    are_numbers = all(value is None or finite(value) is not None for value in values)
    return status if are_numbers else None


def checkpoint_folders(run_folder: Path) -> list[Path]:
    """Return the committed checkpoints, oldest first."""
    try:
        entries = list((run_folder / CHECKPOINTS_FOLDER).iterdir())
    except OSError:
        return []
    return sorted(entry for entry in entries if entry.name.removeprefix("step-").isdigit())


def step_of(checkpoint: Path) -> int:
    """Return the step after which a checkpoint was written."""
    return int(checkpoint.name.removeprefix("step-"))


def is_mirrored(run_folder: Path, mirror: MirrorStatus | None) -> bool:
    """Return whether a folder is a run's copy in a mirror."""
    if (run_folder / "finished.json").exists():
        return True
    if any((folder / "POINT.json").exists() for folder in checkpoint_folders(run_folder)):
        return True
    return mirror is not None and os.path.abspath(mirror.path) == os.path.abspath(run_folder)


def read_run_or_empty(run_folder: Path) -> RunFolder:
    """Read a run folder as `read_run` does; one that has none of a run's files yet is an empty run.

    Raises:
        RunFolderError: not a folder.
    """
    if not any((run_folder / name).exists() for name in PURPOSE) and run_folder.is_dir():
        return empty_run(run_folder)
    return read_run(run_folder)


def status_of(run: RunFolder, *, now: float | None = None) -> RunStatus:
    """Return the status of a run.

    Args:
        run: Run as `read_run_or_empty` reads it.
        now: Unix seconds.
    """
    if run.recipe.untuned:
        return RunStatus("scored", "the model from before tuning, scored")
    now = time.time() if now is None else now
    mirrored = is_mirrored(run.folder, _mirror_of(run.folder))
    recorded = recorded_status(run.folder)
    return (
        _status_while_written(run, mirrored)
        or _status_before_training(run, recorded, mirrored)
        or _status_without_writer(run, recorded, mirrored, now)
    )


@dataclass(frozen=True)
class RunWriter:
    """The living process that writes a run folder.

    Attributes:
        description: `process 4711 on host, since 2026-11-22 14:00:00`; the host only where it is
            another one.
        pid: Number of the process, where it runs on this machine.
        started: Time at which the process started, in Unix seconds.
    """

    description: str
    pid: int | None
    started: float | None


def run_writer(run_folder: Path) -> RunWriter | None:
    """Return the process that writes a run folder, None where none is known to this machine."""
    writer = writer_of(run_folder)
    if writer is None:
        return None
    host = "" if writer.is_here else f" on {writer.host}"
    return RunWriter(
        f"process {writer.pid}{host}, since {writer.since}",
        writer.pid if writer.is_here else None,
        writer.process_started,
    )


def _status_while_written(run: RunFolder, mirrored: bool) -> RunStatus | None:
    """Return the status of a run that a living process writes, None for any other."""
    writer = run_writer(run.folder)
    if writer is None:
        return None
    progress = steps_done(run) if run.records else "no step yet, it prepares"
    return RunStatus("running", f"running: {progress} ({writer.description})", writer.pid, mirrored)


def _status_before_training(
    run: RunFolder, recorded: str | None, mirrored: bool
) -> RunStatus | None:
    """Return the status of a run that a session left before it trained anything, None for any
    other.
    """
    folder = run.folder
    has_begun = recorded is not None or run.records or checkpoint_folders(folder)
    if has_begun or any((folder / name).exists() for name in (PLAN_FILE, SCORES_FILE)):
        return None
    is_run = any((folder / name).exists() for name in (RECIPE_FILE, Lease.FILE_NAME))
    reason = "a session ended before training" if is_run else "it has no files of a run"
    problems = tuple(_recipe_problems(folder))
    return RunStatus(
        "not started", f"never started: {reason}", is_mirrored=mirrored, problems=problems
    )


def _status_without_writer(
    run: RunFolder, recorded: str | None, mirrored: bool, now: float
) -> RunStatus:
    """Return the status of a run that no process writes, as far as this machine can see."""
    fatal, problems = _fatal_problems(run, recorded), _other_problems(run)

    def status(name: StatusName, description: str) -> RunStatus:
        return RunStatus(name, description, is_mirrored=mirrored, problems=tuple(problems))

    if fatal:
        problems = [*fatal[1:], *problems]
        return status("damaged", f"damaged: {fatal[0]}")
    if recorded == "finished":
        return status("finished", f"finished: {plural(run.last_step, 'step')}")
    if recorded == "stopped":
        return status("stopped", f"stopped at {steps_done(run)}")
    changed = last_change(run.folder)
    if not mirrored or changed is None:
        why = f": it hung, {HANG_FILE} says where" if _has_hung(run.folder) else ""
        return status("interrupted", f"interrupted at {steps_done(run)}{why}")
    since = age(now - changed)
    if now - changed < FRESH_COPY_S:
        return status("running", f"running: {steps_done(run)} (as copied {since} ago)")
    unseen = f"or out of reach: its mirror did not change for {since}"
    return status("interrupted", f"interrupted at {steps_done(run)}, {unseen}")


def _has_hung(folder: Path) -> bool:
    """Whether the last session was ended because it hung."""
    hung, written = changed_at(folder / HANG_FILE), changed_at(folder / JOURNAL_FILE)
    return hung is not None and (written is None or hung >= written)


def steps_done(run: RunFolder) -> str:
    """Return `step 340 of 500`."""
    return f"step {run.last_step:,}" + (f" of {run.total_steps:,}" if run.total_steps else "")


def last_change(run_folder: Path) -> float | None:
    """Return when a run's logs or status changed last, in Unix seconds; None without any."""
    names = (JOURNAL_FILE, MONITOR_FILE, STATUS_FILE, MIRROR_FILE, Lease.FILE_NAME)
    times = (changed_at(run_folder / name) for name in names)
    return max((time for time in times if time is not None), default=None)


def changed_at(path: Path) -> float | None:
    """Return when a file changed last, in Unix seconds; None if it cannot be read."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _fatal_problems(run: RunFolder, recorded: str | None) -> list[str]:
    """Return what keeps a run from being continued or used, the worst first."""
    problems = []
    if recorded is None:
        problems.append(f"{STATUS_FILE} (its status) is missing, so that it cannot be continued")
    elif recorded == "unreadable":
        problems.append(
            f"{STATUS_FILE} (its status) cannot be read, or is of another version of brimful"
        )
    problems += _recipe_problems(run.folder)
    if recorded == "finished" and not (run.folder / MODEL_FOLDER).is_dir():
        problems.append(f"{MODEL_FOLDER}/ is missing, though it is finished")
    return problems


def _recipe_problems(folder: Path) -> list[str]:
    path = folder / RECIPE_FILE
    if not path.exists():
        return [f"{RECIPE_FILE} (what was asked for) is missing"]
    try:
        recipe_of_run(folder)
    except (BrimfulError, OSError, ValueError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return [f"{RECIPE_FILE} is no recipe any more: {' '.join(lines[:2])}"]
    return []


def _other_problems(run: RunFolder) -> list[str]:
    """Return what is missing or damaged and does not keep the run from being used."""
    needed = (PLAN_FILE, ENVIRONMENT_FILE, DATA_FILE, JOURNAL_FILE, MONITOR_FILE, MIRROR_FILE)
    return [run.problems[name] for name in needed if name in run.problems]
