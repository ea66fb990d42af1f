"""Where a run could be continued from: recovery points in its folder and, apart from them, those in
its mirror.
"""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from brimful.base.text import plural
from brimful.base.units import format_bytes
from brimful.report.table import Cell, table_of
from brimful.report.views import Chapter, Paragraph, fold, section, text
from brimful.runs.facts import MirrorFacts
from brimful.runs.files import CHECKPOINTS_FOLDER
from brimful.runs.folder import RunFolder

STATES = {"ok": "as new as the one here", "behind": "being copied", "failing": "failing"}


@dataclass(frozen=True)
class ListedRecoveryPoint:
    """A checkpoint in the run folder."""

    step: int
    size_bytes: int
    written: str


def recovery_section(run: RunFolder) -> Chapter | None:
    """None for a run without any point and without a mirror."""
    points, mirror = recovery_points(run.folder), run.mirror
    if not points and mirror is None:
        return None
    rows = [
        (
            f"Step {each.step:,}",
            "this run folder",
            Cell(each.size_bytes, format_bytes),
            each.written,
        )
        for each in points
    ]
    trouble = ""
    if mirror is not None:
        if mirror.durable_step is not None:
            written = _date(mirror.durable_time) if mirror.durable_time else ""
            size = Cell(None, format_bytes)
            rows.append(
                (f"Step {mirror.durable_step:,.0f}", f"mirror: {mirror.path}", size, written)
            )
        if mirror.error:
            state = STATES.get(mirror.state, mirror.state)
            trouble = f"The mirror {mirror.path} is {state}: {mirror.error}"
    newest = max((each.step for each in points), default=None)
    return section(
        "recovery",
        "Recovery points",
        Paragraph(_sentence(run.is_finished, newest, mirror)),
        *text(trouble, "missing"),
        *fold(
            "All of them, with place and size",
            table_of(("Point", "Where", "Size", "Written"), rows),
        ),
        title="Recovery",
    )


def _sentence(is_finished: bool, newest: int | None, mirror: MirrorFacts | None) -> str:
    local = "There is none here." if newest is None else f"Here the newest is step {newest:,}."
    if mirror is None:
        if is_finished:
            return local
        return f"{local} Nothing is mirrored: run.mirror=PATH keeps a copy elsewhere."
    if mirror.finished:
        return f"{local} The mirror holds the finished run, read back and found whole."
    if mirror.durable_step is None:
        return f"{local} None in the mirror was read back and found whole yet."
    lost = int((newest or 0) - mirror.durable_step)
    behind = f", {plural(lost, 'step')} behind" if lost > 0 else ""
    rest = "" if is_finished else "; what came after it would be lost with this machine"
    step = f"{mirror.durable_step:,.0f}"
    return f"{local} In the mirror it is step {step}{behind}, read back and found whole{rest}."


def recovery_points(run_folder: Path) -> list[ListedRecoveryPoint]:
    """Return the checkpoints in a run folder, the newest first."""
    points = []
    for folder in sorted((run_folder / CHECKPOINTS_FOLDER).glob("step-*"), reverse=True):
        match = re.fullmatch(r"step-(\d+)", folder.name)
        try:
            files = [file.stat() for file in folder.rglob("*") if file.is_file()]
        except OSError:
            # A running session removes old checkpoints.
            continue
        if match and files:
            size_bytes = sum(each.st_size for each in files)
            written = _date(max(each.st_mtime for each in files))
            points.append(ListedRecoveryPoint(int(match[1]), size_bytes, written))
    return points


def _date(unix_s: float) -> str:
    """`2026-09-21 14:13:20 UTC`, "" for what is no date."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return ""
