"""How far a run's copy in its mirror has come: `mirror.json` in the run folder, for whoever looks
at the run.
"""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from brimful.base.errors import RunFolderError
from brimful.base.rundir import SCHEMA_VERSION, read_json
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
        since: When that began, in Unix seconds.
        local_step: Step of the newest local recovery point; None before the first.
        durable_step: Step of the newest one in the mirror that was read back and found whole; None
            before the first.
        durable_time: When it was, in Unix seconds.
        error: What went wrong last, in words; None when nothing does.
        bytes_per_s: Of the last point that was copied, reading back included; None before.
        finished: The finished run (model, scores, report) is in the mirror, read back.
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

    def to_json(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def told(self, now: float | None = None) -> str:
        """In a line: `mirror /mnt/drive/tiny: step 40 is durable, 2m 10s ago; step 60 is here
        only`.
        """
        now = time.time() if now is None else now
        if self.durable_step is None:
            parts = ["no recovery point is durable yet"]
        else:
            age = (
                ""
                if self.durable_time is None
                else f", {format_duration(max(0.0, now - self.durable_time))} ago"
            )
            parts = [f"step {self.durable_step} is durable{age}"]
        if self.finished:
            parts = ["holds the finished run"]
        elif self.local_step is not None and self.local_step != self.durable_step:
            parts.append(f"step {self.local_step} is here only")
        if self.error is not None:
            parts.append(f"failing for {format_duration(max(0.0, now - self.since))}: {self.error}")
        return f"mirror {self.path}: " + "; ".join(parts)


def read_status(run_folder: Path) -> MirrorStatus | None:
    """What a run folder, or its copy in a mirror, says of the mirror; None where it says nothing
    that can be read.
    """
    try:
        values = read_json(run_folder / STATUS)
        return MirrorStatus(
            **{name: values[name] for name in MirrorStatus.__dataclass_fields__ if name in values}
        )
    except (RunFolderError, TypeError, KeyError):
        return None
