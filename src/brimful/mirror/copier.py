"""Bringing a mirror up to date: what it lacks of recovery points, logs and the finished run, in
that order.
"""

import math
import os
import socket
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brimful.base.errors import RunFolderError
from brimful.base.rundir import SCHEMA_VERSION
from brimful.mirror.files import Entry, Files, NotWhole
from brimful.mirror.finished import MODEL, NEEDED, note, require_whole, unchanged
from brimful.mirror.place import Place
from brimful.mirror.points import MirroredRun, Point
from brimful.mirror.sources import (
    FINISHED,
    Pinned,
    all_files,
    drop_pins,
    folder_of_step,
    local_steps,
    pinned,
    run_files,
)
from brimful.mirror.status import STATUS, MirrorStatus
from brimful.training.admission import status_of
from brimful.training.checkpoint import MANIFEST

RUN_STATUS = "run.json"

NoteDurable = Callable[[Point | None, float | None], None]
"""Told the newest durable point, None where there is none any more, and the bytes per second at
which it was copied, None where it was not.
"""


@dataclass(frozen=True)
class Patience:
    """How long a mirror waits for what, in seconds.

    Attributes:
        points_s: Between two recovery points, at least; at the end of the run none waits.
        points_share: Of the time, at most, that copying them takes.
        logs_s: Between two copies of the logs.
        log_share: Of the time, at most, that copying logs takes.
        alive_s: Until the mirror is told that the run goes on, where nothing else told it.
        stuck_s: Without any answer, until the mirror counts as hanging.
        first_retry_s, last_retry_s: Until what failed is tried again; doubled every time.
        final_retries_s: The same once the run has ended.
        end_s: After the end of the run, at most, also where copying goes on.
        hint_s: After the end, until it is said what is waited for.
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


class TakenOver(Exception):
    """This process may not write into the mirror (any more)."""


class Copier:
    """Copies a run into its mirror; used by one thread.

    Attributes:
        run_id: The run's.
        goes_on: It is being trained, so it is not what it was when it had ended.
        is_finished: It has reached its end.
        abandoned: Nobody waits any more; nothing is to change in the mirror.
        copied_finished: Something of the finished run was not in the mirror yet.
        stored_step: The step that the mirror called durable when this process began to write there.
        status: What `publish` writes, as it is now; None while nobody keeps one.
    """

    def __init__(
        self,
        place: Place,
        run_folder: Path,
        files: Files,
        patience: Patience,
        note_durable: NoteDurable,
    ) -> None:
        self.run_id, self.goes_on, self.is_finished, self.abandoned, self.copied_finished = (
            "",
            True,
            False,
            False,
            False,
        )
        self._place, self._run_folder, self._files, self._patience = (
            place,
            run_folder,
            files,
            patience,
        )
        self._note_durable = note_durable
        self.stored_step: int | None = None
        self.status: Callable[[], MirrorStatus | None] = lambda: None
        self._mirrored = MirroredRun(place.folder, files, self._check_writer)
        self._writer = {
            "token": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": time.time(),
        }
        self._is_writer = False
        self._sound: dict[int, Point] = {}
        self._durable: Point | None = None
        self._logs: dict[str, tuple[int, int]] = {}
        self._logs_due_s = self._points_due_s = self._alive_due_s = 0.0
        self._is_between = False
        files.between = self._between

    @property
    def idle_s(self) -> float:
        """Seconds until the logs are to be copied again, and with them a point that has waited, or
        the mirror is to be told that the run goes on.
        """
        return max(0.05, min(self._logs_due_s, self._alive_due_s) - time.monotonic())

    def bring_up_to_date(self, *, ending: bool) -> None:
        """Copy what is new.

        Raises:
            OSError, NotWhole: the mirror does not take it, or loses it.
            TakenOver: another process writes there now.
            DamagedHere: the finished run lost something here, so that nothing may be copied over
                what the mirror has.
        """
        if not self.goes_on:
            require_whole(self._mirrored, self._run_folder)
        self._become_writer()
        if (ending or time.monotonic() >= self._points_due_s) and (
            self.goes_on or not self._has_end()
        ):
            self._copy_points()
        if self.goes_on and (ending or time.monotonic() >= self._logs_due_s):
            self._copy_logs()
        if ending and self.is_finished:
            self._copy_finished()
        if time.monotonic() >= self._alive_due_s:
            self._tell_alive()

    def publish(self, status: MirrorStatus) -> None:
        """Write into the mirror whose it is, who writes it and how far it has come."""
        if self._is_writer:
            self._check_writer()
        self._write_status(status.to_json())

    def _write_status(self, values: dict[str, Any]) -> None:
        self._alive_due_s = math.inf  # no second time within it
        try:
            self._files.write_json(self._place.folder / STATUS, self._identity() | values)
        finally:
            self._note_alive()

    def _note_alive(self) -> None:
        self._alive_due_s = time.monotonic() + self._patience.alive_s

    def _tell_alive(self) -> None:
        """Change the mirror, so that who looks at it sees a run that goes on."""
        if (status := self.status()) is not None:
            self.publish(status)

    def _between(self) -> None:
        """While a point or a model is being copied, which may take long: the logs, and a sign of
        life, when they are due.
        """
        now_s = time.monotonic()
        logs_due, alive_due = self.goes_on and now_s >= self._logs_due_s, now_s >= self._alive_due_s
        if self._is_between or not self._is_writer or not (logs_due or alive_due):
            return
        self._is_between = True
        try:
            self._check_writer()
            if logs_due:
                self._copy_logs()
            if time.monotonic() >= self._alive_due_s:
                self._tell_alive()
        except (
            OSError,
            NotWhole,
            RunFolderError,
        ):  # what is being copied finds it out for itself; what is due here is tried after it
            self._logs_due_s = self._alive_due_s = time.monotonic() + self._patience.logs_s
        finally:
            self._is_between = False

    def _identity(self) -> dict[str, Any]:
        durable = None if self._durable is None else self._durable.step
        return {
            "schema_version": SCHEMA_VERSION,
            "run_id": self.run_id,
            "writer": self._writer,
            "durable_step": durable,
        }

    def _read_identity(self) -> dict[str, Any] | None:
        path = self._place.folder / STATUS
        try:
            values = self._files.read_json(path) if path.exists() else None
        except NotWhole:
            return None
        return values if isinstance(values, dict) else None

    def _become_writer(self) -> None:
        """At first, and again where the mirror lost that it is ours."""
        self._require_wanted()
        self._place.make(self._files)
        values = self._read_identity()
        if self._is_writer and values is not None:
            self._require_own(values)
        else:
            if (
                values is not None
                and values.get("run_id") != self.run_id
                and values.get("durable_step") is not None
            ):
                raise TakenOver(f"{self._place.folder} holds another run")
            self._mirrored.remove_leftovers()
            if self.goes_on:
                self._files.remove(self._place.folder / FINISHED)
            drop_pins(self._run_folder)
            self.stored_step = (values or {}).get("durable_step")
            self._write_status({"durable_step": self.stored_step})
            self._is_writer = True
            self._logs.clear()
        there = set(self._mirrored.steps())
        self._sound = {step: point for step, point in self._sound.items() if step in there}
        if self._durable is not None and not self._is_durable(self._durable):
            self._durable = None
            self._note_durable(None, None)

    def _check_writer(self) -> None:
        self._require_wanted()
        values = self._read_identity()
        if values is None:
            raise NotWhole(f"{self._place.folder} was removed or damaged while it was written")
        self._require_own(values)

    def _require_wanted(self) -> None:
        if self.abandoned:
            raise TakenOver("the copy was given up")

    def _require_own(self, values: dict[str, Any]) -> None:
        writer = values.get("writer") or {}
        if writer.get("token") != self._writer["token"]:
            raise TakenOver(
                f"{self._place.folder} was taken over by process {writer.get('pid')} on"
                f" {writer.get('host')}"
            )

    def _copy_points(self) -> None:
        """The newest checkpoint, after the best one, which the export needs."""
        for _ in range(5):
            steps = local_steps(self._run_folder)
            if not steps:
                return
            with ExitStack() as stack:
                try:
                    newest = stack.enter_context(pinned(self._run_folder, steps[-1]))
                    best = (
                        stack.enter_context(pinned(self._run_folder, newest.best_step))
                        if newest.best_step in steps[:-1]
                        else None
                    )
                except FileNotFoundError:  # rotation was faster
                    continue
                self._make_durable(newest, best)
            return
        raise NotWhole("checkpoints are replaced faster than they can be held")

    def _make_durable(self, newest: Pinned, best: Pinned | None) -> None:
        started_s, moved_before = time.monotonic(), self._files.moved_bytes
        if (
            self._has(newest)
            and self._durable is not None
            and self._durable.version == newest.version
            and (best is None or self._has(best))
        ):
            return
        if best is not None:
            self._add(best, best.step)
        best_step = (
            newest.best_step
            if newest.best_step == newest.step or newest.best_step in self._sound
            else None
        )
        copied = self._add(newest, best_step)
        self._durable = point = self._sound[newest.step]
        took_s = time.monotonic() - started_s
        moved = self._files.moved_bytes - moved_before
        self._points_due_s = started_s + max(
            self._patience.points_s, took_s / self._patience.points_share
        )
        self._note_durable(point, point.num_bytes / took_s if copied and moved else None)
        self._prune()

    def _has(self, source: Pinned) -> bool:
        return source.step in self._sound and self._sound[source.step].version == source.version

    def _is_durable(self, point: Point) -> bool:
        return point.step in self._sound and (
            point.best_step is None or point.best_step in self._sound
        )

    def _add(self, source: Pinned, best_step: int | None) -> bool:
        """Make sure that the mirror holds a checkpoint; whether it had to be copied."""
        if self._has(source):
            return False
        if source.step in self._mirrored.steps():
            try:
                point = self._mirrored.check(source.step)
                if (point.version, point.run_id, point.best_step) == (
                    source.version,
                    self.run_id,
                    best_step,
                ):
                    self._sound[source.step] = point
                    return False
            except NotWhole:
                pass  # written anew below
        self._sound.pop(source.step, None)
        self._sound[source.step] = self._mirrored.add(
            source, self._run_folder, run_id=self.run_id, best_step=best_step
        )
        return True

    def _prune(self) -> None:
        """Keep the two newest points that were found whole and what they need; what is not older
        than these two stays, too.
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
        took_s = time.monotonic() - started_s
        self._logs_due_s = time.monotonic() + max(
            self._patience.logs_s, took_s / self._patience.log_share
        )

    def _copy_changed_logs(self) -> None:
        is_finished = status_of(self._run_folder) == "finished"
        for path in run_files(self._run_folder):
            if path.name == RUN_STATUS and is_finished:
                continue  # comes with the finished run, as the last of it
            try:
                stat = path.stat()
                seen = (stat.st_size, stat.st_mtime_ns)
                if self._logs.get(path.name) != seen:
                    self._mirrored.put(path, path.name, read_back=False)
                    self._logs[path.name] = seen
                    self._note_alive()
            except FileNotFoundError:
                if path.exists():
                    raise

    def _copy_finished(self) -> None:
        """The run as it ended. A list says what belongs to it; it never lists a file that is just
        being replaced.
        """
        if self.goes_on:
            require_whole(self._mirrored, self._run_folder)
        known = unchanged(self._mirrored, self._run_folder)
        try:
            listed = self._mirrored.finished()
        except NotWhole:
            listed = {}
        local = {
            path.relative_to(self._run_folder).as_posix(): path
            for path in all_files(self._run_folder)
        }
        entries = {
            name: entry
            for name, entry in listed.items()
            if name in local and (name in known or self._is_there(local[name], name, entry))
        }
        if listed and entries != listed:
            self._mirrored.note_finished(entries)
        for name, path in sorted(
            local.items(), key=lambda item: item[0] == RUN_STATUS
        ):  # it says that the run is finished
            if name not in entries:
                self._check_writer()
                entries[name] = self._mirrored.put(path, name)
        for name in listed.keys() - local.keys():
            if not name.startswith(MODEL) and name not in NEEDED:
                self._files.remove(self._place.folder / name)
        if entries != listed:
            self._mirrored.note_finished(entries)
            self.copied_finished = True
        with suppress(RunFolderError, OSError):  # then all is read once more the next time
            note(self._mirrored, self._run_folder)

    def _has_end(self) -> bool:
        """Whether the mirror lists the finished run and has its newest checkpoint: that was read
        back when it was copied.
        """
        steps = local_steps(self._run_folder)
        try:
            if RUN_STATUS not in self._mirrored.finished():
                return False
            manifest = None if not steps else folder_of_step(self._run_folder, steps[-1]) / MANIFEST
            return (
                manifest is None
                or self._mirrored.read(steps[-1]).version == self._files.entry_of(manifest).sha256
            )
        except (NotWhole, FileNotFoundError):
            return False

    def _is_there(self, path: Path, name: str, entry: Entry) -> bool:
        """Whether a file of the mirror is the local one, read back."""
        if path.stat().st_size != entry.num_bytes or self._files.entry_of(path) != entry:
            return False
        try:
            self._files.require(self._place.folder / name, entry)
        except NotWhole:
            return False
        return True
