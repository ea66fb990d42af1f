"""How a run stands, as HTML for a notebook and as a few lines of text."""

from collections import deque
from collections.abc import Sequence
from html import escape
from pathlib import Path

from brimful.base.rundir import writer_of
from brimful.report.live.run_state import coarse_duration, describe
from brimful.report.live.view import device_fields, host_fields, point_fields, state_line
from brimful.report.live.watched import Watched
from brimful.runs.parsing import Json

BOX = (
    "font:13px/1.55 system-ui,sans-serif;max-width:780px;border:1px solid"
    " rgba(128,128,128,.4);border-radius:8px;padding:10px 14px"
)
FAINT = "opacity:.7"
TOLD = frozenset({"evaluation", "event", "out_of_memory", "end"})
"""Records that are told in a line of their own."""
LINES = 5
CURVE_POINTS = 240
CURVE_WIDTH, CURVE_HEIGHT = 748, 56
COLOURS = {"running": "#2a7de1", "done": "#1a8a4a", "failed": "#c43d3d", "stopped": "#b07400"}


class RunPanel:
    """One run folder, read as it grows."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.watched = folder, Watched(folder)
        self._told: deque[str] = deque(maxlen=LINES)

    def look(self) -> None:
        """Take in what was written since."""
        self.watched.poll(self._tell)

    def _tell(self, record: Json) -> None:
        if record.get("kind") in TOLD:
            self._told.append(describe(record, self.watched.state))

    @property
    def share(self) -> float:
        """Done part of the run, 0 to 1."""
        return self.watched.state.share or 0.0

    @property
    def is_training(self) -> bool:
        """Whether steps are being made, as far as its records tell."""
        return bool(self.watched.state.step) and not self.watched.state.ended

    def heading(self) -> str:
        """`step 120 of 900 (13 %), 2 min left`; empty before the first record."""
        state = self.watched.state
        if not state.total_steps:
            return ""
        left = (
            f", {coarse_duration(state.remaining_s)} left"
            if state.remaining_s and self.watched.writer is not None
            else ""
        )
        return f"step {state.step:,} of {state.total_steps:,} ({100 * self.share:.0f} %){left}"

    def fields(self) -> list[tuple[str, str]]:
        """What is measured now: of the run, the device, the machine, and where its recovery points
        are.
        """
        watched = self.watched
        told = [field for field in watched.state.fields() if field[0] != "checkpoint"]
        if watched.sample is not None and watched.writer is not None:
            told += device_fields(watched.sample, watched) + host_fields(watched.sample, watched)
        return [(label, value) for label, value, _ in [*told, *point_fields(watched)]]

    @property
    def lines(self) -> list[str]:
        """Evaluations and events, the newest last."""
        return list(self._told)

    def standing(self) -> str:
        """Whether it is being written, by whom, and how old the newest record is."""
        return state_line(self.watched)


def curve(losses: Sequence[float]) -> str:
    """The loss so far as a line; empty for fewer than three steps."""
    if len(losses) < 3:
        return ""
    every = -(-len(losses) // CURVE_POINTS)
    shown = losses[::every]
    lowest, highest = min(shown), max(shown)
    across, down = (
        CURVE_WIDTH / max(1, len(shown) - 1),
        (CURVE_HEIGHT - 4) / ((highest - lowest) or 1.0),
    )
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
    """Of folders and what lies in them, the run that a process writes (None: that any living
    process does).
    """
    for place in places:
        for lock in [place / "writer.lock", *sorted(place.glob("*/writer.lock"))]:
            writer = writer_of(lock.parent)
            if writer is not None and writer[1] and pid in {None, writer[0].get("pid")}:
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
    """The panel as HTML and as text.

    Args:
        panel: The run at hand; None before there is one.
        title: What is trained.
        status: What goes on.
        tone: A key of COLOURS.
        log: The newest lines of the process, shown where no steps are.
        notes: Sentences below.
    """
    heading = panel.heading() if panel is not None else ""
    where = f" · {panel.folder.name}" if panel is not None and panel.folder.name != title else ""
    share = panel.share if panel is not None else 0.0
    lines, fields = (panel.lines, panel.fields()) if panel is not None else ([], [])
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
            f' style="width:{100 * share:.1f}%;height:6px;background:{colour};border-radius:3px"></div></div>'
        ),
        '<div style="display:flex;flex-wrap:wrap;gap:2px 18px">'
        + "".join(
            f'<span><span style="{FAINT}">{escape(label)}</span> {escape(value)}</span>'
            for label, value in fields
        )
        + "</div>",
        curve(panel.watched.losses) if panel is not None else "",
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
        f' 0;font-size:12px;white-space:pre-wrap;background:none;color:inherit">{escape(chr(10).join(lines))}</pre>'
    )
