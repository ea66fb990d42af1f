"""Brings a mirror up to date: missing recovery points, logs and the finished run, in that order."""

import math
import os
import socket
import time
import uuid
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.manifest import MANIFEST
from brimful.base.rundir import SCHEMA_VERSION, add_checksum
from brimful.mirror.files import Entry, Files, IntegrityError
from brimful.mirror.finished import MODEL, NEEDED, FinishedRun
from brimful.mirror.place import FINISHED, Place
from brimful.mirror.points import (
    MirroredRun,
    Owner,
    Pinned,
    RecoveryPoint,
    all_files,
    drop_pins,
    folder_of_step,
    local_steps,
    pinned,
    run_files,
    signature,
)
from brimful.mirror.status import STATUS, StatusBoard
from brimful.training.admission import status_of

RUN_STATUS = "run.json"


@dataclass(frozen=True)
class Patience:
    """Intervals and time limits of a mirror, in seconds.

    Attributes:
        points_s: Least time between two recovery points; at the end of the run none waits.
        points_share: Largest share of the time that copying them takes.
        logs_s: Least time between two copies of the logs.
        log_share: Largest share of the time that copying logs takes.
        alive_s: The mirror's status is written again after this time without another change, to
            show that the run goes on.
        stuck_s: Time without any answer after which the mirror counts as hanging.
        first_retry_s, last_retry_s: Wait before a failed copy is tried again; doubled every time.
        final_retries_s: The same waits once the run has ended.
        end_s: Limit on copying after the end of the run, even if it makes progress.
        hint_s: The user is told after this time what is being waited for.
    """

    points_s: float = 60.0
    points_share: float = 0.5
    logs_s: float = 15.0
    log_share: float = 0.05
    alive_s: float = 30.0
    stuck_s: float = 60.0
    first_retry_s: float = 5.0
    last_retry_s: float = 300.0
    final_retries_s: tuple[float, ...] = (1.0, 4.0, 15.0)
    end_s: float = 1800.0
    hint_s: float = 3.0


class TakenOverError(Exception):
    """This process may not write into the mirror (any more)."""


class Copier:
    """Copies a run into its mirror; used by one thread.

    Attributes:
        run_id: The run's number.
        goes_on: Whether the run is being trained; False for copying a finished run only.
        is_finished: Whether it has reached its end.
        abandoned: Nobody waits for the copy any more; nothing may change in the mirror.
        copied_finished: Whether something of the finished run had to be copied.
        stored_step: The step that the mirror called durable when this process began to write there.
    """

    def __init__(
        self, place: Place, run_folder: Path, files: Files, patience: Patience, board: StatusBoard
    ) -> None:
        self.run_id, self.goes_on, self.is_finished = "", True, False
        self.abandoned = self.copied_finished = False
        self.stored_step: int | None = None
        self._place, self._run_folder, self._board = place, run_folder, board
        self._files, self._patience = files, patience
        self._mirrored = MirroredRun(place.folder, files, self._check_writer)
        self._token, self._since = uuid.uuid4().hex, time.time()
        self._is_writer = self._has_said_durable = False
        self._sound: dict[int, RecoveryPoint] = {}
        self._durable: RecoveryPoint | None = None
        self._logs: dict[str, list[int]] = {}
        self._logs_due_s = self._points_due_s = self._alive_due_s = 0.0
        self._is_in_progress_hook = False
        files.on_progress = self._on_progress

    @property
    def idle_s(self) -> float:
        """Seconds until the logs, a waiting point, or the status have to be written again."""
        return max(0.05, min(self._logs_due_s, self._alive_due_s) - time.monotonic())

    def bring_up_to_date(self, *, ending: bool) -> None:
        """Copy what is new.

        Raises:
            OSError, IntegrityError: the mirror does not take it, or loses it.
            TakenOverError: another process writes there now.
            DamagedHereError: the finished run lost something here, so that it may not replace what
                the mirror has.
        """
        if not self.goes_on:
            FinishedRun(self._mirrored, self._run_folder).require_whole()
        self._become_writer()
        are_points_due = ending or time.monotonic() >= self._points_due_s
        if are_points_due and (self.goes_on or not self._has_end()):
            self._copy_points()
        if self.goes_on and (ending or time.monotonic() >= self._logs_due_s):
            self._copy_logs()
        if ending and self.is_finished:
            self._copy_finished()
        if time.monotonic() >= self._alive_due_s:
            self.publish()

    def publish(self) -> None:
        """Write the status into the mirror: whose it is, who writes it and how far it has come."""
        if self._is_writer:
            self._check_writer()
        self._write_status(self._board.status.to_json())

    def _write_status(self, values: dict[str, object]) -> None:
        writer = {
            "token": self._token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": self._since,
        }
        owner = {"schema_version": SCHEMA_VERSION, "run_id": self.run_id, "writer": writer}
        was_in_hook, self._is_in_progress_hook = self._is_in_progress_hook, True
        try:
            self._files.write_json(
                self._place.folder / STATUS, add_checksum(owner | values, STATUS)
            )
        finally:
            self._is_in_progress_hook = was_in_hook
            self._note_alive()

    def _note_alive(self) -> None:
        self._alive_due_s = time.monotonic() + self._patience.alive_s

    def _on_progress(self) -> None:
        """Copy the logs and write the status when they are due while a point or a model is being
        copied, which may take long.
        """
        if self._is_in_progress_hook or not self._is_writer:
            return
        now_s = time.monotonic()
        are_logs_due = self.goes_on and now_s >= self._logs_due_s
        if not are_logs_due and now_s < self._alive_due_s:
            return
        self._is_in_progress_hook = True
        try:
            self._check_writer()
            if are_logs_due:
                self._copy_logs()
            if time.monotonic() >= self._alive_due_s:
                self.publish()
        except (OSError, IntegrityError, RunFolderError):
            # The copy in progress meets the same error; this is tried again later.
            self._logs_due_s = self._alive_due_s = time.monotonic() + self._patience.logs_s
        finally:
            self._is_in_progress_hook = False

    def _become_writer(self) -> None:
        """Take the mirror over at first, and again if it lost its status file."""
        self._require_wanted()
        self._place.make(self._files)
        owner = self._mirrored.owner()
        if self._is_writer and owner is not None:
            self._require_own(owner)
        else:
            self._take_over(owner)
        points = set(self._mirrored.steps())
        self._sound = {step: point for step, point in self._sound.items() if step in points}
        if self._durable is not None and not self._is_durable(self._durable):
            self._durable = None
            self._note_durable(None)

    def _take_over(self, owner: Owner | None) -> None:
        self.stored_step = None
        if owner is not None:
            self.stored_step = owner.durable_step
            if owner.run_id != self.run_id and owner.durable_step is not None:
                raise TakenOverError(f"{self._place.folder} holds another run")
        self._mirrored.remove_leftovers()
        if self.goes_on:
            self._files.remove(self._place.folder / FINISHED)
        drop_pins(self._run_folder)
        self._write_status({"durable_step": self.stored_step})
        self._is_writer = True
        self._logs.clear()

    def _check_writer(self) -> None:
        self._require_wanted()
        owner = self._mirrored.owner()
        if owner is None:
            raise IntegrityError(
                f"{self._place.folder} was removed or damaged while it was written"
            )
        self._require_own(owner)

    def _require_wanted(self) -> None:
        if self.abandoned:
            raise TakenOverError("the copy was given up")

    def _require_own(self, owner: Owner) -> None:
        if owner.token != self._token:
            raise TakenOverError(f"{self._place.folder} was taken over by {owner.process}")

    def _copy_points(self) -> None:
        """Copy the newest checkpoint, after the best one, which the export needs."""
        for _ in range(5):
            steps = local_steps(self._run_folder)
            if not steps:
                return
            with ExitStack() as stack:
                try:
                    newest = stack.enter_context(pinned(self._run_folder, steps[-1]))
                    best = None
                    if newest.best_step in steps[:-1]:
                        best = stack.enter_context(pinned(self._run_folder, newest.best_step))
                except FileNotFoundError:  # rotation removed one of them
                    continue
                self._make_durable(newest, best)
            return
        raise IntegrityError("checkpoints are replaced faster than they can be held")

    def _make_durable(self, newest: Pinned, best: Pinned | None) -> None:
        needed = [newest] if best is None else [newest, best]
        is_known = self._durable is not None and self._durable.version == newest.version
        if is_known and all(map(self._has, needed)):
            return
        started_s, moved_before = time.monotonic(), self._files.moved_bytes
        if best is not None:
            self._add(best, best.step)
        best_step = newest.best_step
        if best_step != newest.step and best_step not in self._sound:
            best_step = None
        was_copied = self._add(newest, best_step)
        if was_copied:
            self._logs_due_s = 0.0  # else the logs there would lack records that this point counts
        self._durable = point = self._sound[newest.step]
        took_s = time.monotonic() - started_s
        self._points_due_s = started_s + max(
            self._patience.points_s, took_s / self._patience.points_share
        )
        rate = None
        if was_copied and self._files.moved_bytes > moved_before:
            rate = point.num_bytes / took_s
        self._note_durable(point, rate)
        self._prune()

    def _note_durable(self, point: RecoveryPoint | None, bytes_per_s: float | None = None) -> None:
        """Report the newest durable point; None if there is none any more."""
        self._board.note_durable(None if point is None else point.step, bytes_per_s)
        if point is not None and self.goes_on and not self._has_said_durable:
            self._has_said_durable = True
            self._board.tell(
                f"mirror: the recovery point of step {point.step} is durable in"
                f" {self._place.folder}"
            )
        self.publish()

    def _has(self, source: Pinned) -> bool:
        return source.step in self._sound and self._sound[source.step].version == source.version

    def _is_durable(self, point: RecoveryPoint) -> bool:
        return {point.step, point.best_step} - {None} <= self._sound.keys()

    def _add(self, source: Pinned, best_step: int | None) -> bool:
        """Make sure that the mirror holds a checkpoint; return whether it had to be copied."""
        if self._has(source):
            return False
        if source.step in self._mirrored.steps():
            with suppress(IntegrityError):  # a damaged one is written again below
                point = self._mirrored.check(source.step)
                wanted = (source.version, self.run_id, best_step)
                if (point.version, point.run_id, point.best_step) == wanted:
                    self._sound[source.step] = point
                    return False
        self._sound.pop(source.step, None)
        self._sound[source.step] = self._mirrored.add(
            source, self._run_folder, run_id=self.run_id, best_step=best_step
        )
        return True

    def _prune(self) -> None:
        """Keep the two newest sound points, the best points that they need, and everything newer
        than the older of the two.
        """
        newest = sorted(self._sound)[-2:]
        if len(newest) < 2:
            return
        needed = {self._sound[step].best_step for step in newest}
        kept = {step for step in self._mirrored.steps() if step in needed or step >= newest[0]}
        self._mirrored.keep(kept)
        self._sound = {step: point for step, point in self._sound.items() if step in kept}

    def _copy_logs(self) -> None:
        started_s, self._logs_due_s = time.monotonic(), math.inf
        try:
            self._copy_changed_logs()
        except BaseException:
            self._logs_due_s = 0.0
            raise
        now_s = time.monotonic()
        took_s = now_s - started_s
        self._logs_due_s = now_s + max(self._patience.logs_s, took_s / self._patience.log_share)

    def _copy_changed_logs(self) -> None:
        is_finished = status_of(self._run_folder) == "finished"
        for path in run_files(self._run_folder):
            if path.name == RUN_STATUS and is_finished:
                continue  # copied last of the finished run
            try:
                now = signature(path)
                if self._logs.get(path.name) != now:
                    self._mirrored.put(path, path.name, read_back=False)
                    self._logs[path.name] = now
                    self._note_alive()
            except FileNotFoundError:
                if path.exists():
                    raise

    def _copy_finished(self) -> None:
        """Copy the run as it ended, file by file, and list it. The list never has a file that is
        just being replaced.
        """
        run = FinishedRun(self._mirrored, self._run_folder)
        if self.goes_on:
            run.require_whole()
        unchanged, local = run.unchanged(), all_files(self._run_folder)
        entries = {
            name: entry
            for name, entry in run.listed.items()
            if name in local and (name in unchanged or self._is_copied(run, name, entry))
        }
        if run.listed and entries != run.listed:
            self._mirrored.note_finished(entries)
        # The file that says that the run is finished comes last.
        missing = sorted(local.keys() - entries.keys(), key=lambda name: (name == RUN_STATUS, name))
        for name in missing:
            self._check_writer()
            entries[name] = self._mirrored.put(local[name], name)
        for name in run.listed.keys() - local.keys() - set(NEEDED):
            if not name.startswith(MODEL):
                self._files.remove(self._place.folder / name)
        if entries != run.listed:
            self._mirrored.note_finished(entries)
            self.copied_finished = True
        with suppress(RunFolderError, OSError):  # without the note all is read again next time
            run.note_read_back()

    def _is_copied(self, run: FinishedRun, name: str, entry: Entry) -> bool:
        """Return whether a file of the mirror is the local one, read back."""
        if not run.is_local(name, entry):
            return False
        try:
            self._files.require(self._place.folder / name, entry)
        except IntegrityError:
            return False
        return True

    def _has_end(self) -> bool:
        """Return whether the mirror lists the finished run and has its newest checkpoint, which
        was read back when it was copied.
        """
        steps = local_steps(self._run_folder)
        try:
            if RUN_STATUS not in self._mirrored.finished():
                return False
            if not steps:
                return True
            manifest = folder_of_step(self._run_folder, steps[-1]) / MANIFEST
            version = self._files.entry_of(manifest).sha256
            return self._mirrored.read(steps[-1]).version == version
        except (IntegrityError, FileNotFoundError):
            return False
