"""Where a run could be continued from: recovery points in its folder and, apart from them, those in
its mirror.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json
from brimful.base.units import format_bytes
from brimful.report.table import Table
from brimful.runs.runfiles import Json, RunFiles, number

CHECKPOINTS, MIRROR_FILE = "checkpoints", "mirror.json"
STATES = {"ok": "as new as the one here", "behind": "being copied", "failing": "failing"}


@dataclass(frozen=True)
class RecoveryView:
    """What the section on recovery points shows; `trouble` is empty where the mirror is well or
    there is none.
    """

    sentence: str
    table: Table
    trouble: str


def recovery_view(run: RunFiles) -> RecoveryView | None:
    """None for a run without any point and without a mirror."""
    here, mirror = _here(run.folder), _mirror(run.folder)
    if not here and not mirror:
        return None
    rows = [
        (f"Step {step:,}", "this run folder", format_bytes(num_bytes), written)
        for step, num_bytes, written in here
    ]
    durable, since = number(mirror.get("durable_step")), number(mirror.get("durable_time"))
    if durable is not None:
        rows.append(
            (
                f"Step {durable:,.0f}",
                f"mirror: {mirror.get('path')}",
                "",
                _date(since) if since else "",
            )
        )
    state = STATES.get(str(mirror.get("state")), str(mirror.get("state")))
    trouble = (
        f"The mirror {mirror.get('path')} is {state}: {mirror['error']}"
        if mirror.get("error")
        else ""
    )
    table = Table(("Point", "Where", "Size", "Written"), tuple(rows))
    return RecoveryView(_sentence(run, [step for step, _, _ in here], mirror), table, trouble)


def _sentence(run: RunFiles, here: list[int], mirror: Json) -> str:
    local = f"Here the newest is step {max(here):,}." if here else "There is none here."
    if not mirror:
        return (
            local
            if run.is_finished
            else f"{local} Nothing is mirrored: run.mirror=PATH keeps a copy elsewhere."
        )
    if mirror.get("finished") is True:
        return f"{local} The mirror holds the finished run, read back and found whole."
    durable = number(mirror.get("durable_step"))
    if durable is None:
        return f"{local} None in the mirror was read back and found whole yet."
    lost = max(here, default=0) - durable
    behind = f", {lost:,.0f} step{'s' * (lost != 1)} behind" if lost > 0 else ""
    rest = "" if run.is_finished else "; what came after it would be lost with this machine"
    return (
        f"{local} In the mirror it is step {durable:,.0f}{behind}, read back and found whole{rest}."
    )


def _here(run_folder: Path) -> list[tuple[int, int, str]]:
    """(step, bytes, when) of the checkpoints here, the newest first."""
    found = []
    for folder in sorted((run_folder / CHECKPOINTS).glob("step-*"), reverse=True):
        match = re.fullmatch(r"step-(\d+)", folder.name)
        try:
            sizes = [file.stat() for file in folder.rglob("*") if file.is_file()]
        except OSError:  # a running session removes old ones
            continue
        if match and sizes:
            found.append(
                (
                    int(match[1]),
                    sum(each.st_size for each in sizes),
                    _date(max(each.st_mtime for each in sizes)),
                )
            )
    return found


def _date(unix_s: float) -> str:
    """Empty for what is no date."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return ""


def _mirror(run_folder: Path) -> Json:
    """mirror.json, empty where there is none to read."""
    try:
        found = read_json(run_folder / MIRROR_FILE)
    except (RunFolderError, OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
