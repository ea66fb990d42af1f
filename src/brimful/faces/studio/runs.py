"""Acts of the tab "Runs": how each stands, live while it is written, its report, several side by
side; and stopping, continuing and exporting one.
"""

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from brimful.base.errors import RequestError
from brimful.base.units import format_bytes
from brimful.faces.studio.asked import PageRequest
from brimful.faces.studio.html import blocks_piece, problem_of, problem_piece, render, view_piece
from brimful.faces.studio.jobs import Jobs, interrupt
from brimful.faces.studio.library import Library
from brimful.model.gguf_writing import GgufType
from brimful.report.commands import name_of
from brimful.report.comparison.compare import compare
from brimful.report.comparison.page import comparison_view, named_runs
from brimful.report.listing.listing import Listed, find_runs
from brimful.report.live.status import read_run_or_empty, run_writer
from brimful.report.live.view import live_blocks
from brimful.report.live.watched import Watched
from brimful.report.page.run_page import run_view
from brimful.report.table import Cell, table_of
from brimful.report.views import Block, Code, Command, Paragraph, fold
from brimful.runs.files import MODEL_FOLDER

OF_A_RUN = ("predictions", "time", "curves", "samples", "environment")
OF_RUNS = ("scores", "time", "differences", "curves")
"""Sections that are shown, in this order."""
MAX_RUNS = 8
"""Compared at once."""
EXPORT = " export"
"""Ends the name of a run's export among the commands; no run is called so."""
EXPORTS = {"as it is": [], "merged": ["--merge"]} | {
    kind: ["--gguf", kind] for kind in get_args(GgufType)
}
"""Options of exports: the model as it was trained; adapters merged into their base; a GGUF file."""
POLL_S = 1.0
DRAWN_EVERY_S = 3.0
"""How often a run is drawn again at most."""


class RunActs:
    """What the tab does.

    Args:
        library: The runs.
        jobs: Commands that were started here.
        starts: Whether the page may start and stop what changes runs.
    """

    def __init__(self, library: Library, jobs: Jobs, *, starts: bool) -> None:
        self._library, self._jobs, self._starts = library, jobs, starts

    def listed(self, asked: PageRequest) -> None:
        """The runs in the folder now; a choice stays if the run still exists."""
        listed = self._library.listed()
        names = [each.name for each in listed]
        # Of a run that was started here there may be nothing yet but what it prints.
        begun = [name for name in self._jobs.names() if not name.endswith(EXPORT)]
        names = [*(name for name in begun if name not in names), *names]
        wanted = asked.text("wanted") or asked.text("run")
        chosen = wanted if wanted in names else next(iter(names), "")
        compared = asked.texts("compared")
        asked.show("runs-run", render("options.html.j2", names=names, chosen=chosen))
        asked.show("runs-compared", render("boxes.html.j2", names=names, chosen=compared))
        asked.show("runs-list", blocks_piece(_list_blocks(listed, self._library.folder)))

    def watch(self, asked: PageRequest) -> None:
        """How a run stands, again whenever its files change, until the page leaves."""
        name, told = asked.text("run"), ""
        if not name:
            asked.show("runs-view", "")
            return
        seen = _Seen(asked.text("as") == "Report")
        while not asked.left.is_set():
            try:
                if name in self._jobs.names() and not self._library.holds(name):
                    self._before_its_folder(asked, name)
                else:
                    self._as_it_is(asked, name, seen)
            except Exception as error:
                if told != (told := f"{type(error).__name__}: {error}"):
                    asked.show("runs-problem", problem_piece(problem_of(error)))
                seen.state = seen.watched = None
            else:
                if told:
                    asked.show("runs-problem", "")
                told = ""
            asked.left.wait(POLL_S)

    def _before_its_folder(self, asked: PageRequest, name: str) -> None:
        code = self._jobs.exit_code(name)
        state = "begins ..." if code is None else f"ended with exit code {code}"
        blocks: list[Block] = [Paragraph(f"{name} {state}"), Code(self._jobs.printed(name))]
        asked.show("runs-live", blocks_piece(blocks))
        for slot in ("runs-view", "runs-actions"):
            asked.show(slot, "")

    def _as_it_is(self, asked: PageRequest, name: str, seen: "_Seen") -> None:
        folder = self._library.path(name)
        state, pid, now = self._library.state(name), self._pid(name), time.monotonic()
        if self._starts and seen.could != f"{state} {pid}":
            seen.could = f"{state} {pid}"
            asked.show("runs-actions", self._actions(name, pid))
        if seen.as_report:
            asked.show("runs-live", "")
            asked.show("runs-view", render("frame.html.j2", name=name))
            return
        seen.watched = seen.watched or Watched(folder)
        seen.watched.poll()
        asked.show("runs-live", blocks_piece(live_blocks(seen.watched)))
        if state != seen.state and now - seen.drawn_at >= DRAWN_EVERY_S:
            view = run_view(read_run_or_empty(folder))
            asked.show("runs-view", view_piece(view, OF_A_RUN))
            seen.drawn_at, seen.state = now, state

    def _actions(self, name: str, pid: int | None) -> str:
        """Return what can be done with a run, and the commands that do the same."""
        folder, printed = self._library.path(name), Code(self._jobs.printed(name))
        is_finished = pid is None and (folder / MODEL_FOLDER).is_dir()
        return render(
            "actions.html.j2",
            pid=pid,
            command="" if pid else _continues(find_runs(folder)[0]),
            exports=EXPORTS if is_finished else (),
            shown=fold("What it printed", printed) if printed.text else (),
        )

    def _pid(self, name: str) -> int | None:
        """Return the process that writes a run, where it is one of this machine."""
        writer = run_writer(self._library.path(name)) if self._library.holds(name) else None
        return self._jobs.pid(name) or (writer.pid if writer else None)

    def compare(self, asked: PageRequest) -> None:
        """Runs side by side: scores, costs, and which differences are real."""
        names = asked.texts("compared")
        if len(names) > MAX_RUNS:
            raise RequestError(f"at most {MAX_RUNS} runs are compared here, not {len(names)}.")
        piece = ""
        if len(names) > 1:
            folders = [self._library.path(name) for name in names]
            view = comparison_view(compare(folders), named_runs(folders), folders[0])
            piece = view_piece(view, OF_RUNS) + _shell("compare", *map(name_of, folders))
        asked.show("runs-comparison", piece)

    def stop(self, asked: PageRequest) -> None:
        """End a run as Ctrl-C does: it saves a checkpoint first."""
        pid = self._pid(asked.text("run"))
        if pid is None:
            raise RequestError(f"no process of this machine writes {asked.text('run')!r}.")
        interrupt(pid)

    def go_on(self, asked: PageRequest) -> None:
        """Continue a run by the command that `brimful runs` shows."""
        name = asked.text("run")
        (entry,) = find_runs(self._library.path(name))
        if not (command := _continues(entry)):
            raise RequestError(f"nothing continues {name}: {entry.told}.")
        self._jobs.start(name, shlex.split(command)[1:])
        asked.go("runs")

    def export(self, asked: PageRequest) -> None:
        """Write the model for use elsewhere, beside the run."""
        name, kind = asked.text("run"), asked.text("kind")
        if kind not in EXPORTS:
            raise RequestError(f"there is no export {kind!r}, only {', '.join(EXPORTS)}.")
        words, job = ["export", name_of(self._library.path(name)), *EXPORTS[kind]], name + EXPORT
        self._jobs.start(job, words)
        code = None
        while code is None and not asked.left.wait(POLL_S):
            code = self._jobs.exit_code(job)
            printed = blocks_piece([Code(self._jobs.printed(job))])
            asked.show("runs-export", _shell(*words) + printed)
        if code:
            raise RequestError(f"the export ended with exit code {code}; its lines say why.")


class _Seen:
    """What was shown of a run."""

    def __init__(self, as_report: bool) -> None:
        self.as_report = as_report
        self.watched: Watched | None = None
        self.state: str | None = None
        self.could, self.drawn_at = "", -DRAWN_EVERY_S


def _shell(*words: str) -> str:
    return blocks_piece([Command("In a shell", shlex.join(["brimful", *words]))])


def _continues(entry: Listed) -> str:
    """Return the command that continues a run; "" where nothing does, or there is no need."""
    return entry.command if entry.command.startswith(("brimful run ", "brimful train ")) else ""


def _list_blocks(listed: Sequence[Listed], folder: Path) -> tuple[Block, ...]:
    """Return all runs of a folder, one line each."""
    rows = [
        (
            Cell(each.name, note=each.command),
            Cell(each.told, note="; ".join(each.problems)),
            Cell(each.score or "-"),
            Cell(each.size_bytes, format_bytes),
        )
        for each in listed
    ]
    if not rows:
        advice = "`brimful run quickstart` makes one in about three minutes."
        return (Paragraph(f"No runs in {folder} yet. {advice}", "note"),)
    table = table_of(("Run", "State", "Score", "On disk"), rows)
    return fold(f"All runs: {len(rows)}, with state, score, size, and how to go on", table)
