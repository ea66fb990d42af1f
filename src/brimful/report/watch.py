"""`brimful watch`: a run, or the member of a study that is being written, as it goes on in another process or on another machine."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live

from brimful.base.errors import RunFolderError
from brimful.report.commands import STUDY_FILES, STUDY_RECIPE, continue_command, is_several, name_of
from brimful.report.life import changed_at, json_or_none, last_change, status_word, writing
from brimful.report.listing import is_run, planned_runs, read_recipe
from brimful.report.panel import print_line
from brimful.report.progress import SHOWN_ABOVE, LineListener
from brimful.report.run_state import describe
from brimful.report.runfiles import Json, section
from brimful.report.watch_view import WatchView, standing
from brimful.report.watched import Tell, Watched

POLL_S = 1.0
START_WAIT_S = 60.0
"""A folder that is not there yet, or holds nothing of a run, is waited for so long."""
QUIET_S = 15 * 60.0
"""A study between two runs, or a copy in a mirror, in which nothing changed for so long is over."""
Clock = Callable[[], float]
Sleep = Callable[[float], None]


def watch(folder: Path, console: Console, once: bool = False, *, clock: Clock = time.time, sleep: Sleep = time.sleep) -> None:
    """Show a run while another process writes it, until it ends; Ctrl-C leaves it running.

    On a terminal one view that is updated in place, elsewhere lines. A run that is about to start is waited for.

    Args:
        folder: Of a run, a study or a chain; also its copy in a mirror.
        console: Where to show.
        once: Show how it stands, and return.
        clock, sleep: Unix seconds, and waiting; replaced in tests.

    Raises:
        RunFolderError: there is no such folder, or no run in it.
    """
    try:
        if not once:
            _wait_for(folder, console, clock, sleep)
        _require(folder)
        scene = _Several(folder, clock) if is_several(folder) else _Single(folder, clock)
        scene.poll()
        if once:
            _print_state(scene, console)
            _print_end(scene, console)
        elif console.is_terminal and not console.is_dumb_terminal:
            _live(scene, console, sleep)
        else:
            _in_lines(scene, console, sleep)
    except KeyboardInterrupt:
        print_line(console, "left; what was watched goes on by itself")


def _wait_for(folder: Path, console: Console, clock: Clock, sleep: Sleep) -> None:
    """Until there is something of a run, or it is clear that none comes."""
    started = clock()
    if _is_watchable(folder):
        return
    print_line(console, f"waiting up to {START_WAIT_S:.0f} s for a run in {folder} (Ctrl-C leaves)")
    while not _is_watchable(folder) and clock() - started < START_WAIT_S:
        sleep(POLL_S)


def _is_watchable(folder: Path) -> bool:
    return is_several(folder) or is_run(folder)


def _require(folder: Path) -> None:
    if not _is_watchable(folder):
        what = "holds no run" if folder.is_dir() else "is a file" if folder.exists() else "does not exist"
        raise RunFolderError(f"{folder} {what}. Give the name of a run or the path of its folder; `brimful runs` lists them.")


class _Single:
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
        """Whether nothing more is to come."""
        life = self.watched.life()
        if life.word == "running":
            return False
        if life.word == "not started":
            return self._clock() - self._started >= START_WAIT_S
        changed = last_change(self.folder)
        is_old = changed is None or self._clock() - changed >= QUIET_S
        return life.word != "interrupted" or not life.is_mirrored or is_old

    def end_told(self) -> list[str]:
        """How it goes on, for what is not finished."""
        life = self.watched.life()
        if life.word not in {"stopped", "interrupted", "not started"}:
            return []
        started_by = str((json_or_none(self.folder / "environment.json") or {}).get("command", ""))
        command = continue_command(self.folder, command=started_by, is_mirrored=life.is_mirrored)
        return [f"to go on: {command}"] if command else []


class _Several:
    """A study or a chain: the member that is being written, else the one that changed last."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self._clock = folder, clock
        self._planned = planned_runs(read_recipe(folder / STUDY_RECIPE))
        self.watched = Watched(self._chosen() or folder, clock)
        self.of_several = ""

    def poll(self, tell: Tell | None = None) -> None:
        """As of a single run; another member is shown as soon as it is written."""
        chosen = self._chosen()
        if chosen is not None and chosen != self.watched.folder:
            before, self.watched = self.watched, Watched(chosen, self._clock)
            self.watched.keep_process(before)
        members = self._members()
        finished = sum(status_word(member) == "finished" for member in members)
        of = f" of {self._planned}" if self._planned else ""
        self.of_several = f"{name_of(self.folder)}: {finished}{of} runs finished" + f"; {self.watched.folder.name}" * bool(members)
        self.watched.poll(tell)

    def _members(self) -> list[Path]:
        try:
            return sorted(entry for entry in self.folder.iterdir() if entry.is_dir() and is_run(entry))
        except OSError:
            return []

    def _chosen(self) -> Path | None:
        members = self._members()
        written = [member for member in members if writing(member) is not None]
        return written[0] if written else max(members, key=lambda member: last_change(member) or 0.0, default=None)

    @property
    def is_over(self) -> bool:
        """Compared in the end, or left by its process: between two runs that scores and plans, so that no folder is written."""
        if self.watched.writer is not None:
            return False
        if section(json_or_none(self.folder / "study.json"), "comparison"):
            return True
        if (self._members() and self.watched.life().word == "interrupted") or self.watched.process_has_ended:
            return True
        own = [changed_at(self.folder / name) or 0.0 for name in STUDY_FILES]
        changed = max(own + [last_change(member) or 0.0 for member in self._members()])
        return not self.watched.process_lives and self._clock() - changed >= QUIET_S

    def end_told(self) -> list[str]:
        """How it goes on, where it was not compared."""
        if section(json_or_none(self.folder / "study.json"), "comparison"):
            return ["the study is finished and compared"]
        command = continue_command(self.folder)
        return [f"to go on: {command}"] if command else []


_Scene = _Single | _Several


def _live(scene: _Scene, console: Console, sleep: Sleep) -> None:
    with Live(WatchView(scene.watched, scene.of_several), console=console, auto_refresh=False) as live:

        def tell(record: Json) -> None:
            if record.get("kind") in SHOWN_ABOVE:
                print_line(live.console, describe(record, scene.watched.state))

        live.refresh()
        while not scene.is_over:
            sleep(POLL_S)
            scene.poll(tell)
            live.update(WatchView(scene.watched, scene.of_several), refresh=True)
    _print_end(scene, console)


def _in_lines(scene: _Scene, console: Console, sleep: Sleep) -> None:
    """How it stands, then lines as the run itself would print them, and a line when it falls silent."""
    _print_state(scene, console)
    lines = LineListener(console, scene.watched.state)
    shown, is_silent = scene.of_several, False

    def tell(record: Json) -> None:
        nonlocal shown
        if scene.of_several != shown:
            shown = scene.of_several
            print_line(console, shown)
        lines.state = scene.watched.state
        lines.show(record)

    while not scene.is_over:
        sleep(POLL_S)
        scene.poll(tell)
        if scene.watched.is_stale and not is_silent:
            print_line(console, standing(scene.watched))
        is_silent = scene.watched.is_stale
    print_line(console, standing(scene.watched))
    _print_end(scene, console)


def _print_state(scene: _Scene, console: Console) -> None:
    view = WatchView(scene.watched, scene.of_several)
    if console.is_terminal and not console.is_dumb_terminal:
        console.print(view)
        return
    for line in view.lines(console):
        print_line(console, line)


def _print_end(scene: _Scene, console: Console) -> None:
    if scene.is_over:
        for line in scene.end_told():
            print_line(console, line)
