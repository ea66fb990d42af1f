"""The progress of a run, as HTML for a notebook and as a few lines of text."""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from brimful.base.rundir import writer_of
from brimful.base.types import JsonDict
from brimful.report.live.progress import SHOWN_ABOVE
from brimful.report.live.run_state import coarse_duration, describe
from brimful.report.live.view import field_groups, state_line
from brimful.report.live.watched import Watched
from brimful.report.page.html import templates
from brimful.runs.records import Record

BOX = (
    "font:13px/1.55 system-ui,sans-serif;max-width:780px;border:1px solid"
    " rgba(128,128,128,.4);border-radius:8px;padding:10px 14px"
)
LINES = 5
CURVE_POINTS = 240
CURVE_WIDTH, CURVE_HEIGHT = 748, 56
COLOURS = {"running": "#2a7de1", "done": "#1a8a4a", "failed": "#c43d3d", "stopped": "#b07400"}


class RunPanel:
    """One run folder, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.watched = folder, Watched(folder)
        self._lines: deque[str] = deque(maxlen=LINES)

    def look(self) -> None:
        """Read what was appended since the last look."""
        self.watched.poll(self._add_line)

    def _add_line(self, record: Record) -> None:
        if record.kind in SHOWN_ABOVE:
            self._lines.append(describe(record, self.watched.state))

    @property
    def share(self) -> float:
        """Return the part of the run that is done, 0 to 1."""
        return self.watched.state.share or 0.0

    @property
    def is_training(self) -> bool:
        """Return whether steps are being made, as far as the records say."""
        return bool(self.watched.state.step) and not self.watched.state.ended

    def heading(self) -> str:
        """`step 120 of 900 (13 %), 2 min left`; empty before the first record."""
        state = self.watched.state
        if not state.total_steps:
            return ""
        left = ""
        if state.remaining_s and self.watched.writer is not None:
            left = f", {coarse_duration(state.remaining_s)} left"
        return f"step {state.step:,} of {state.total_steps:,} ({100 * self.share:.0f} %){left}"

    def fields(self) -> list[tuple[str, str]]:
        """Return (label, value) of what is measured now: of the run, the device and the machine;
        and the recovery points.
        """
        groups = field_groups(self.watched)
        return [(label, value) for group in groups for label, value, _ in group]

    @property
    def lines(self) -> list[str]:
        """Return a line for each of the last evaluations and events, the newest last."""
        return list(self._lines)

    def state_line(self) -> str:
        """Return whether the run is being written, by whom, and how old the newest record is."""
        return state_line(self.watched)


def curve(losses: Sequence[float]) -> str:
    """Return the loss so far as a drawing; empty for fewer than three steps."""
    if len(losses) < 3:
        return ""
    every = -(-len(losses) // CURVE_POINTS)
    shown = losses[::every]
    lowest, highest = min(shown), max(shown)
    across = CURVE_WIDTH / max(1, len(shown) - 1)
    down = (CURVE_HEIGHT - 4) / ((highest - lowest) or 1.0)
    points = " ".join(
        f"{place * across:.1f},{2 + (highest - loss) * down:.1f}"
        for place, loss in enumerate(shown)
    )
    return (
        f'<svg role="img" aria-label="training loss from {losses[0]:.3f} to {losses[-1]:.3f}"'
        f' viewBox="0 0 {CURVE_WIDTH} {CURVE_HEIGHT}" preserveAspectRatio="none"'
        f' style="width:100%;height:{CURVE_HEIGHT}px;margin-top:6px"><polyline points="{points}"'
        f' fill="none" stroke="{COLOURS["running"]}" stroke-width="1.5"'
        ' vector-effect="non-scaling-stroke"/></svg>'
    )


def written_now(places: Sequence[Path], pid: int | None) -> Path | None:
    """Return the run, among folders and the folders in them, that a process writes; where `pid` is
    None, that any living process writes. None where there is none.
    """
    for place in places:
        for lock in [place / "writer.lock", *sorted(place.glob("*/writer.lock"))]:
            writer = writer_of(lock.parent)
            if writer is not None and pid in {None, writer.pid}:
                return lock.parent
    return None


def page(
    panel: RunPanel | None,
    title: str,
    status: str,
    tone: str,
    log: Sequence[str],
    notes: Sequence[str],
) -> tuple[str, str]:
    """Return the panel as HTML and as text.

    Args:
        panel: The run at hand; None before there is one.
        title: What is trained.
        status: What goes on.
        tone: A key of COLOURS.
        log: The newest lines of the process, shown where no steps are.
        notes: Sentences below.
    """
    shown: JsonDict = {"heading": "", "where": "", "drawing": "", "share": 0.0}
    lines: list[str] = []
    fields: list[tuple[str, str]] = []
    if panel is not None:
        shown = {"heading": panel.heading(), "where": "", "share": panel.share}
        # Numbers alone.
        shown["drawing"] = Markup(curve(panel.watched.losses))  # noqa: S704
        lines, fields = panel.lines, panel.fields()
        if panel.folder.name != title:
            shown["where"] = f" · {panel.folder.name}"
    shown |= {"title": title, "status": status, "colour": COLOURS[tone], "fields": fields}
    shown |= {"lines": [*lines, *log], "notes": notes, "box": BOX}
    text = [
        f"{title}{shown['where']}: {status} {shown['heading']}".rstrip(),
        "  ".join(f"{label} {value}" for label, value in fields),
        *shown["lines"],
        *notes,
    ]
    html = templates("notebook").get_template("panel.html.j2").render(shown)
    return html, "\n".join(line for line in text if line)
