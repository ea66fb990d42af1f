"""The progress of a run, as HTML for a notebook and as a few lines of text."""

from collections import deque
from collections.abc import Sequence
from html import escape
from pathlib import Path

from brimful.base.rundir import writer_of
from brimful.report.live.progress import SHOWN_ABOVE
from brimful.report.live.run_state import coarse_duration, describe
from brimful.report.live.view import device_fields, host_fields, point_fields, state_line
from brimful.report.live.watched import Watched
from brimful.runs.records import Record

BOX = (
    "font:13px/1.55 system-ui,sans-serif;max-width:780px;border:1px solid"
    " rgba(128,128,128,.4);border-radius:8px;padding:10px 14px"
)
FAINT = "opacity:.7"
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
        watched = self.watched
        fields = [field for field in watched.state.fields() if field[0] != "checkpoint"]
        if watched.sample is not None and watched.writer is not None:
            fields += device_fields(watched.sample, watched) + host_fields(watched.sample, watched)
        return [(label, value) for label, value, _ in [*fields, *point_fields(watched)]]

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
    heading, where, drawing, share = "", "", "", 0.0
    lines: list[str] = []
    fields: list[tuple[str, str]] = []
    if panel is not None:
        heading, share, drawing = panel.heading(), panel.share, curve(panel.watched.losses)
        lines, fields = panel.lines, panel.fields()
        if panel.folder.name != title:
            where = f" · {panel.folder.name}"
    shown = [*lines, *log]
    colour = COLOURS[tone]
    parts = [
        (
            f"<div><b>{escape(title)}</b>{escape(where)} · <span"
            f' style="color:{colour};font-weight:600">{escape(status)}</span>'
            f" {escape(heading)}</div>"
        ),
        (
            f'<div role="progressbar" aria-label="{escape(title)}" aria-valuemin="0"'
            f' aria-valuemax="100" aria-valuenow="{100 * share:.0f}" '
            'style="height:6px;margin:6px 0;background:rgba(128,128,128,.25);border-radius:3px">'
            "<div"
            f' style="width:{100 * share:.1f}%;height:6px;background:{colour};border-radius:3px">'
            "</div></div>"
        ),
        '<div style="display:flex;flex-wrap:wrap;gap:2px 18px">'
        + "".join(
            f'<span><span style="{FAINT}">{escape(label)}</span> {escape(value)}</span>'
            for label, value in fields
        )
        + "</div>",
        drawing,
        _pre(shown),
        "".join(f'<div style="{FAINT}">{escape(note)}</div>' for note in notes),
    ]
    text = [
        f"{title}{where}: {status} {heading}".rstrip(),
        "  ".join(f"{label} {value}" for label, value in fields),
        *shown,
        *notes,
    ]
    return f'<div style="{BOX}">{"".join(parts)}</div>', "\n".join(line for line in text if line)


def _pre(lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return (
        '<pre style="margin:6px'
        ' 0;font-size:12px;white-space:pre-wrap;background:none;color:inherit">'
        f"{escape(chr(10).join(lines))}</pre>"
    )
