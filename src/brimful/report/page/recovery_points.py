"""Where a run could be continued from: recovery points in its folder and, apart from them, those in
its mirror.
"""

import time

from brimful.base.text import plural
from brimful.base.units import format_bytes
from brimful.report.listing.listing import sizes
from brimful.report.live.status import checkpoint_folders, step_of
from brimful.report.table import Cell, Row, table_of
from brimful.report.views import Chapter, Paragraph, fold, section, text
from brimful.runs.facts import MirrorFacts
from brimful.runs.folder import RunFolder

STATES = {"ok": "as new as the one here", "behind": "being copied", "failing": "failing"}


def recovery_section(run: RunFolder) -> Chapter | None:
    """None for a run without any point and without a mirror."""
    rows: list[Row] = []
    steps: list[int] = []
    for folder in reversed(checkpoint_folders(run.folder)):
        size_bytes, _, written = sizes(folder)
        # A running session removes old checkpoints.
        if size_bytes:
            steps.append(step_of(folder))
            size = Cell(size_bytes, format_bytes)
            rows.append((f"Step {steps[-1]:,}", "this run folder", size, _date(written)))
    mirror, trouble = run.mirror, ""
    if not rows and mirror is None:
        return None
    if mirror is not None:
        if mirror.durable_step is not None:
            place = f"Step {mirror.durable_step:,.0f}"
            date = _date(mirror.durable_time) if mirror.durable_time else ""
            rows.append((place, f"mirror: {mirror.path}", Cell(None), date))
        if mirror.error:
            state = STATES.get(mirror.state, mirror.state)
            trouble = f"The mirror {mirror.path} is {state}: {mirror.error}"
    return section(
        "recovery",
        "Recovery points",
        Paragraph(_sentence(run.is_finished, max(steps, default=None), mirror)),
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


def _date(unix_s: float) -> str:
    """`2026-09-21 14:13:20 UTC`, "" for what is no date."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))
    except (OverflowError, ValueError, OSError):
        return ""
