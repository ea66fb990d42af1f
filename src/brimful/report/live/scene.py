"""What is watched: one run; or a study, a chain or another folder of runs, of which the run that is
being written is shown.
"""

from pathlib import Path

from brimful.base.discover import close_names
from brimful.recipe.base import folder_name
from brimful.report.commands import STUDY_FILES, continue_command, is_several, name_of
from brimful.report.listing.listing import (
    finished_count,
    is_run,
    planned_runs,
    read_recipe,
    sample_count,
)
from brimful.report.live.run_state import Clock
from brimful.report.live.status import (
    changed_at,
    last_change,
    run_writer,
)
from brimful.report.live.tail import Tail
from brimful.report.live.watched import Tell, Watched
from brimful.runs.bookkeeping import json_or_none, read_study_record, recorded_status
from brimful.runs.facts import EnvironmentFacts
from brimful.runs.files import ENVIRONMENT_FILE, STUDY_RECIPE
from brimful.runs.parsing import parse
from brimful.selection.journal import is_sample

START_WAIT_S = 60.0
"""How long to wait for a folder that is missing or has no files of a run."""
QUIET_S = 15 * 60.0
"""After so long without a change, a study between two runs or a copy in a mirror counts as over."""
DRAWN_FILE = "drawn.jsonl"
"""Of a drawing of samples."""


class Single:
    """One run."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self._clock, self._started = folder, clock, clock()
        self.watched = Watched(folder, clock)
        self.of_several = ""

    def poll(self, tell: Tell | None = None) -> None:
        """Read on; `tell` receives the new records."""
        self.watched.poll(tell)

    @property
    def is_over(self) -> bool:
        """Return whether nothing more will be written."""
        status = self.watched.status()
        if status.status == "running":
            return False
        if status.status == "not started":
            return self._clock() - self._started >= START_WAIT_S
        if status.status != "interrupted" or not status.is_mirrored:
            return True
        changed = last_change(self.folder)
        return changed is None or self._clock() - changed >= QUIET_S

    def end_lines(self) -> list[str]:
        """Return the command that continues a run that is not finished; or what the process of a
        finished one still does.
        """
        status = self.watched.status()
        environment = json_or_none(self.folder / ENVIRONMENT_FILE) or {}
        started_by = parse(EnvironmentFacts, environment).command
        is_scored_next = started_by.split()[1:2] == ["run"] and self.watched.process_lives
        if status.status == "finished" and is_scored_next:
            return ["trained; its process goes on: scores and a report follow"]
        if status.status not in {"stopped", "interrupted", "not started"}:
            return []
        command = continue_command(self.folder, command=started_by, is_mirrored=status.is_mirrored)
        return [f"to go on: {command}"] if command else []


class Several:
    """A study, a chain or a folder of runs: the one that is being written, else the one that
    changed last.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self._clock = folder, clock
        self._planned = planned_runs(read_recipe(folder / STUDY_RECIPE))
        self._drawn: dict[Path, tuple[Tail, list[int]]] = {}
        self._is_drawing = False
        self.watched = Watched(self._chosen() or folder, clock)
        self.of_several = ""

    def poll(self, tell: Tell | None = None) -> None:
        """Read on as for a single run; show another member as soon as it is being written."""
        chosen = self._chosen()
        if chosen is not None and chosen != self.watched.folder:
            before, self.watched = self.watched, Watched(chosen, self._clock)
            self.watched.keep_process(before)
        members = self._members()
        finished = sum(recorded_status(member) == "finished" for member in members)
        shown = self._drawing_line() or self.watched.folder.name * bool(members)
        self.of_several = f"{name_of(self.folder)}: {finished_count(finished, self._planned)}"
        if shown:
            self.of_several += f"; {shown}"
        self.watched.poll(tell)

    def _folders(self) -> list[Path]:
        try:
            return sorted(entry for entry in self.folder.iterdir() if entry.is_dir())
        except OSError:
            return []

    def _members(self) -> list[Path]:
        return [
            entry
            for entry in self._folders()
            if is_run(entry) and not (entry / DRAWN_FILE).exists()
        ]

    def _drawing_line(self) -> str:
        """Return how many of a chain's samples are drawn, "" while none are being drawn."""
        drawn = (entry for entry in self._folders() if (entry / DRAWN_FILE).exists())
        drawing = next((entry for entry in drawn if run_writer(entry) is not None), None)
        self._is_drawing = drawing is not None
        if drawing is None:
            return ""
        tail = self._drawn.setdefault(drawing, (Tail(drawing / DRAWN_FILE), [0]))
        is_new, records = tail[0].read()
        tail[1][0] = sum(map(is_sample, records)) + (0 if is_new else tail[1][0])
        return f"{drawing.name}: {sample_count(tail[1][0])}"

    def _chosen(self) -> Path | None:
        members = self._members()
        written = [member for member in members if run_writer(member) is not None]
        if written:
            return written[0]
        return max(members, key=lambda member: last_change(member) or 0.0, default=None)

    @property
    def is_over(self) -> bool:
        """Return whether the runs are compared or their process has ended. Between two runs the
        process scores and plans, so that no folder is being written.
        """
        if self.watched.writer is not None or self._is_drawing:
            return False
        is_interrupted = bool(self._members()) and self.watched.status().status == "interrupted"
        if self._is_compared or is_interrupted or self.watched.process_has_ended:
            return True
        own = [changed_at(self.folder / name) or 0.0 for name in STUDY_FILES]
        changed = max(own + [last_change(member) or 0.0 for member in self._members()])
        return not self.watched.process_lives and self._clock() - changed >= QUIET_S

    @property
    def _is_compared(self) -> bool:
        study = read_study_record(self.folder)
        return study is not None and bool(study.comparison)

    def end_lines(self) -> list[str]:
        """Return the page of the comparison, or the command that leads to it."""
        if self._is_compared:
            page = self.folder / "study.html"
            return ["finished and compared" + f": {page}" * page.exists()]
        command = continue_command(self.folder)
        return [f"to go on: {command}"] if command else []


Scene = Single | Several


def scene_of(folder: Path, clock: Clock) -> Scene:
    """Return the scene for a folder."""
    if is_run(folder) and not is_several(folder):
        return Single(folder, clock)
    return Several(folder, clock)


def is_watchable(folder: Path) -> bool:
    """Return whether there is something to watch: a run, a study or chain, or a folder of runs such
    as a study's in a mirror.
    """
    try:
        return (
            is_several(folder)
            or is_run(folder)
            or any(is_run(entry) for entry in folder.iterdir() if entry.is_dir())
        )
    except OSError:
        return False


def is_awaited(name: str, runs: Path) -> bool:
    """Return whether a run that is missing may be about to begin: its name is valid for a run, and
    no existing run has almost the same name.
    """
    try:
        folder_name(name)
        known = [entry.name for entry in runs.iterdir()] if runs.is_dir() else []
    except (ValueError, OSError):
        return False
    return not close_names(name, known)
