"""Train from a notebook: start the process or find it again, show it in one output until it ends,
and stop it when the cell is interrupted.
"""

import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from brimful.base.discover import did_you_mean
from brimful.base.env import notebook_is_small, runs_folder
from brimful.base.errors import BrimfulError, RunFolderError
from brimful.base.rundir import writer_of
from brimful.notebook.cell import Board, is_shutting_down
from brimful.notebook.job import FOLDER, CommandFailed, Job, ProcessResult
from brimful.notebook.panel import RunPanel, page, written_now
from brimful.recipe import Recipe, load
from brimful.runs.files import JOURNAL_FILE

POLL_S = 0.5
RESTART_GRACE_S = 2.5
"""A kernel that is restarted is interrupted first and receives the order to end a moment later, so
an interrupt stops training only after this time.
"""
STOPPED_EXIT_CODES = {75, 130, 143}
"""Of a run that stopped at the end of its session, by an interrupt, or by a request to end."""
LOG_LINES = 3
RUNNING = (
    "Training is a process of its own: a closed tab or a restarted kernel leaves it alone, and"
    " running this cell again shows it again. Interrupting this cell stops it at the next step,"
    " with a checkpoint."
)
GO_ON = "Run this cell again to go on from there."
Wait = Callable[[float], None]


class TrainingEnded(BrimfulError):
    """Training ended before its end: interrupted, out of session, refused or killed."""


def train(
    recipe: str | Path,
    *overrides: str,
    session: str | None = None,
    mirror: str | Path | None = None,
) -> Path:
    """Run a recipe's whole chain (plan, train, sample, evaluate, report) in a process of its own
    and show it here until it ends.

    The same cell again continues what is unfinished; where the process still runs it only shows it.

    Args:
        recipe: A shipped recipe's name or a .yaml file.
        overrides: `key=value` changes.
        session: Time from the start of this cell after which the machine is taken away, such as
            "11h"; the last checkpoint comes before it.
        mirror: Folder on another disk, such as a mounted drive, that gets a verified copy; a new
            machine continues from it.

    Returns:
        The folder of the run, or of the study's runs.

    Raises:
        RecipeError: the recipe or a change breaks a rule.
        RunFolderError: the same run is being trained by another command.
        TrainingEnded: it was interrupted, refused or killed; says how to go on.
    """
    board = Board()
    arguments = ["run", str(recipe), *overrides]
    if mirror:
        arguments.append(f"run.mirror={mirror}")
    if session:
        arguments.append(f"--session={session}")
    resolved = load(str(recipe), overrides)
    place = place_of(resolved)
    job = Job(place.parent / FOLDER / place.name)
    if job.process() is None:
        _refuse_other_writer(place)
        job.start(arguments)
    elif job.arguments != arguments:
        raise RunFolderError(
            f"{place} is being trained by another command: brimful {shlex.join(job.arguments)}."
            " Run the"
            " cell with that one again and interrupt it, or give this run a name of its own:"
            " run.name=NAME."
        )
    return _TrainingView(board, job, place).show_to_the_end()


def watch(run: str | Path) -> Path:
    """Show a run that any process here trains, or how it stands; interrupting the cell ends the
    view and not the run.

    Args:
        run: A run's name, its folder, or the folder of its mirror.

    Returns:
        Its folder.

    Raises:
        RunFolderError: there is no such folder.
    """
    board, place = Board(), folder_named(run)
    panel: RunPanel | None = None
    try:
        while True:
            current = written_now([place], None)
            panel = _panel_of(panel, current or (panel.folder if panel else _newest(place)))
            panel.look()
            notes = (panel.state_line(),)
            if current is None:
                board.show(*page(panel, place.name, "not running", "done", (), notes), now=True)
                return place
            board.show(*page(panel, place.name, "running", "running", (), notes))
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return place


def _newest(place: Path) -> Path:
    """Return the run itself, or of several the one that was written last."""
    journals = [place / JOURNAL_FILE, *place.glob(f"*/{JOURNAL_FILE}")]
    written = [path for path in journals if path.is_file()]
    return max(written, key=lambda path: path.stat().st_mtime, default=journals[0]).parent


def sized(recipe: str) -> str:
    """Return the recipe itself; with BRIMFUL_NOTEBOOK=small its small version `small/RECIPE.yaml`
    beside the notebook, for any CPU, without downloads.

    Raises:
        RecipeError: there is no such file, when it is loaded.
    """
    return f"small/{recipe}.yaml" if notebook_is_small() else recipe


def sized_changes(*changes: str) -> list[str]:
    """Return the changes; with BRIMFUL_NOTEBOOK=small none, because the small version of a recipe
    fits a CPU as it is.
    """
    return [] if notebook_is_small() else list(changes)


def place_of(recipe: Recipe) -> Path:
    """Return the folder of the recipe's run, or of its runs."""
    folder = Path(recipe.run.folder) if recipe.run.folder else runs_folder()
    return folder / recipe.run_name


def folder_named(run: str | Path) -> Path:
    """Return the folder of a run, or of the runs of a study, by its name or its path.

    Raises:
        RunFolderError: there is none.
    """
    runs = runs_folder()
    for place in (runs / run, Path(run)):
        if place.is_dir():
            return place
    known = sorted(path.name for path in runs.glob("[!.]*") if path.is_dir())
    raise RunFolderError(
        f"there is no run {str(run)!r} in {runs}{did_you_mean(str(run), known)} `nb.train` returns"
        " the folder of the run it made."
    )


def _refuse_other_writer(place: Path) -> None:
    writer = writer_of(place)
    if writer is not None:
        raise RunFolderError(
            f"{place} is being written by process {writer.pid}, which no notebook"
            f" started. nb.watch({place.name!r}) shows it; run.name=NAME starts another run."
        )


def _panel_of(panel: RunPanel | None, folder: Path) -> RunPanel:
    return panel if panel is not None and panel.folder == folder else RunPanel(folder)


class _TrainingView:
    """Shows one process until it ends."""

    def __init__(self, board: Board, job: Job, place: Path) -> None:
        self._board, self._job, self._place = board, job, place
        self._panel: RunPanel | None = None
        self._is_stopping = False

    def show_to_the_end(self) -> Path:
        """Show the run until its process ends and return its folder. The first interrupt asks it to
        stop at its next step, the second one stops only the showing.
        """
        while True:
            try:
                self._until_it_ends()
                break
            except KeyboardInterrupt:
                if self._is_stopping:
                    raise TrainingEnded(
                        f"{self._place.name} is still on its way to its next step, where it stops."
                        " Run this cell again to see it."
                    ) from None
                if not self._is_restart():
                    self._job.stop()
                    self._is_stopping = True
        return self._show_result(self._job.result())

    def _until_it_ends(self) -> None:
        while (process := self._job.process()) is not None:
            self._look(written_now([self._place, self._place.parent], process.pid))
            is_training = self._panel is not None and self._panel.is_training
            status, tone = "training" if is_training else "working", "running"
            if self._is_stopping:
                status, tone = "stopping at the next step", "stopped"
            note = f"Process {process.pid}; everything it says: {self._job.log}"
            log = () if is_training else self._job.log_lines(LOG_LINES)
            self._show(status, tone, log, (RUNNING, note))
            time.sleep(POLL_S)
        self._look(None if self._panel or not self._place.is_dir() else _newest(self._place))

    def _look(self, current: Path | None) -> None:
        """Read on in the run that is being written; between two of them, in the last one."""
        folder = current or (self._panel.folder if self._panel else None)
        if folder is not None:
            self._panel = _panel_of(self._panel, folder)
            self._panel.look()

    def _show(
        self, status: str, tone: str, log: Sequence[str], notes: Sequence[str], *, now: bool = False
    ) -> None:
        self._board.show(*page(self._panel, self._place.name, status, tone, log, notes), now=now)

    def _is_restart(self) -> bool:
        """Return whether the interrupt came with the end of the kernel, which training outlives."""
        self._show("interrupted", "stopped", (), (RUNNING,), now=True)
        until_s = time.monotonic() + RESTART_GRACE_S
        try:
            while time.monotonic() < until_s and not is_shutting_down():
                time.sleep(0.05)
        except KeyboardInterrupt:
            return False
        return is_shutting_down()

    def _show_result(self, result: ProcessResult) -> Path:
        """Show how the process ended, and return the run's folder.

        Raises:
            TrainingEnded, CommandFailed: it did not end well, so that the notebook's Run All stops
                here.
        """
        log = (f"Full log: {self._job.log}",)
        if result.exit_code == 0:
            note = f"In {self._place}: the model, its scores and report.html."
            self._show("finished", "done", (), (note,), now=True)
            return self._place
        if result.exit_code is None:
            self._show("killed", "failed", (), log, now=True)
            what = "was killed. If you did not kill it, the machine most likely ran out of memory"
            raise TrainingEnded(f"{self._place.name} {what}. {GO_ON}")
        if result.exit_code in STOPPED_EXIT_CODES:
            self._show("stopped", "stopped", (), log, now=True)
            message = result.message.replace("Run the same command to continue.", "")
            raise TrainingEnded(f"{message.strip().rstrip('.')}. {GO_ON}")
        self._show("ended with an error", "failed", (), log, now=True)
        raise CommandFailed(result.message)
