"""How far a run's copy in its mirror has come: `mirror.json` in the run folder, for everyone who
looks at the run.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from brimful.base.errors import RunFolderError
from brimful.base.rundir import SCHEMA_VERSION, read_json, write_json_atomically
from brimful.base.types import JsonDict
from brimful.base.units import format_duration

STATUS = "mirror.json"
State = Literal["ok", "behind", "failing"]


@dataclass(frozen=True)
class MirrorStatus:
    """Recovery points here and in the mirror.

    Attributes:
        path: The run's folder in the mirror.
        state: `ok`: the newest local recovery point is durable in the mirror; `behind`: it is being
            copied; `failing`: it cannot be.
        since: Time at which that began, in Unix seconds.
        local_step: Step of the newest local recovery point; None before the first.
        durable_step: Step of the newest recovery point in the mirror that was read back and matched
            its hashes; None before the first.
        durable_time: Time at which it was read back, in Unix seconds.
        error: The last error as a clause; None if the copy works.
        bytes_per_s: Rate of the last copied point, reading back included; None before the first.
        finished: Whether the finished run (model, scores, report) is in the mirror, read back.
    """

    path: str
    state: State
    since: float
    local_step: int | None = None
    durable_step: int | None = None
    durable_time: float | None = None
    error: str | None = None
    bytes_per_s: float | None = None
    finished: bool = False

    def to_json(self) -> JsonDict:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def describe(self, now: float | None = None) -> str:
        """Return one line: `mirror /mnt/drive/tiny: step 40 is durable, 2m 10s ago; step 60 is here
        only`.
        """
        now = time.time() if now is None else now
        parts = [self._durable(now)]
        if not self.finished and self.local_step not in {None, self.durable_step}:
            parts.append(f"step {self.local_step} is here only")
        if self.error is not None:
            parts.append(f"failing for {_age(self.since, now)}: {self.error}")
        return f"mirror {self.path}: " + "; ".join(parts)

    def _durable(self, now: float) -> str:
        if self.finished:
            return "holds the finished run"
        if self.durable_step is None:
            return "no recovery point is durable yet"
        if self.durable_time is None:
            return f"step {self.durable_step} is durable"
        return f"step {self.durable_step} is durable, {_age(self.durable_time, now)} ago"


def _age(since: float, now: float) -> str:
    return format_duration(max(0.0, now - since))


def read_status(run_folder: Path) -> MirrorStatus | None:
    """Return the mirror's status from a run folder or its copy in a mirror; None if there is none
    that can be read.
    """
    try:
        values = read_json(run_folder / STATUS)
        return MirrorStatus(
            **{name: values[name] for name in MirrorStatus.__dataclass_fields__ if name in values}
        )
    except (RunFolderError, TypeError, KeyError):
        return None


class StatusBoard:
    """The current status and the messages for the user, shared by the training thread and the
    thread that copies. Every change of the status is written to the run folder.

    Args:
        run_folder: Holds mirror.json.
        mirrored: The run's folder in the mirror.

    Attributes:
        before: The status that an earlier session left for the same mirror; None if there is none.
        status: The current status.
    """

    def __init__(self, run_folder: Path, mirrored: Path) -> None:
        self._run_folder, self._lock = run_folder, threading.RLock()
        self._messages: deque[str] = deque()
        stored = read_status(run_folder)
        self.before = stored if stored is not None and stored.path == str(mirrored) else None
        self.status = MirrorStatus(str(mirrored), "ok", time.time())
        if self.before is not None:
            self.status = replace(self.status, bytes_per_s=self.before.bytes_per_s)

    def update(self, **changes: Any) -> MirrorStatus:
        """Change fields of the status; return the status before."""
        with self._lock:
            before = self.status
            after = replace(before, **changes)
            if after.state != before.state:
                after = replace(after, since=time.time())
            self.status = after
            if after != before or not (self._run_folder / STATUS).exists():
                with suppress(RunFolderError, OSError):
                    write_json_atomically(
                        self._run_folder / STATUS, after.to_json(), with_checksum=True
                    )
            return before

    def note_local(self, step: int | None) -> None:
        """Record the step of the newest local recovery point."""
        with self._lock:
            is_behind = step is not None and self.status.state == "ok"
            self.update(local_step=step, state="behind" if is_behind else self.status.state)

    def note_durable(self, step: int | None, bytes_per_s: float | None) -> None:
        """Record the newest durable recovery point; None if there is none any more.

        Args:
            bytes_per_s: Rate of its copy; None if nothing had to be copied.
        """
        with self._lock:
            status = self.status
            is_newest = step is not None and step == status.local_step
            is_caught_up = status.state == "behind" and is_newest
            self.update(
                durable_step=step,
                durable_time=None if step is None else time.time(),
                bytes_per_s=bytes_per_s or status.bytes_per_s,
                state="ok" if is_caught_up else status.state,
            )

    def note_success(self, *, finished: bool, stored_step: int | None) -> MirrorStatus:
        """Record that everything there was is copied; return the status before.

        Args:
            finished: Whether that includes the finished run.
            stored_step: The durable step, if this session has read none back.
        """
        with self._lock:
            durable_step = self.status.durable_step
            if durable_step is None:
                durable_step = stored_step
            is_complete = finished or self.status.local_step in {None, durable_step}
            return self.update(
                state="ok" if is_complete else "behind",
                error=None,
                finished=finished,
                durable_step=durable_step,
            )

    def tell(self, message: str) -> None:
        """Queue a message for the user; any thread may call this."""
        self._messages.append(message)

    def deliver(self, say: Callable[[str], None]) -> None:
        """Say the queued messages in this thread."""
        while self._messages:
            with suppress(Exception):
                say(self._messages.popleft())
