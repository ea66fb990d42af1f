"""Show the results of a run in a notebook: scores and examples, the table of a study, the
report.
"""

from pathlib import Path

from brimful.base.errors import RequestError
from brimful.notebook.cell import require_notebook, show
from brimful.notebook.follow import folder_named
from brimful.notebook.job import run_command
from brimful.notebook.pages import framed, pages_of
from brimful.report.live.status import changed_at
from brimful.runs.bookkeeping import recorded_status
from brimful.runs.files import (
    EVALUATIONS_FOLDER,
    JOURNAL_FILE,
    SAMPLES_FILE,
    SCORES_FILE,
    STATUS_FILE,
)

REPORTED = (STATUS_FILE, JOURNAL_FILE, SAMPLES_FILE, SCORES_FILE, f"{EVALUATIONS_FOLDER}/*")
"""Files that a report shows and that may change after it was written."""
REPORT_FILES = ("report.html", "study.html")
TABLE_FILE = "study.md"
"""Of a study: its runs with intervals, as Markdown."""
SMALLEST_HEIGHT_PX, HEIGHT_PX = 200, 560
"""The least height that `report` takes, and that of scores and examples."""


def examples(run: str | Path, *texts: str) -> None:
    """Show the scores of a finished run and a few outputs of its model, before and after tuning
    where it was tuned.

    Args:
        run: A run's name or folder, or a study's.
        texts: Prompts, or texts to sort; without any, what the run kept.

    Raises:
        RunFolderError: there is no such run; CommandFailed: it is not finished, or a text cannot be
            answered.
    """
    require_notebook()
    folder = folder_named(run)
    table = folder / TABLE_FILE
    if table.is_file():
        text = table.read_text(encoding="utf-8")
        show("", text, markdown=text)
    (page,) = pages_of("brimful.notebook.answers", [str(folder), *texts])
    show(framed(page.html, f"scores and examples of {folder.name}", HEIGHT_PX), page.text)


def _is_current(page: Path) -> bool:
    """Return whether a run is finished, and its page newer than everything that it shows."""
    folder, written = page.parent, changed_at(page)
    if written is None or recorded_status(folder) != "finished":
        return False
    return all(
        (changed_at(path) or 0.0) <= written
        for pattern in REPORTED
        for path in folder.glob(pattern)
    )


def report(run: str | Path, height: int = 900) -> None:
    """Show a run's report inside the notebook; of an unfinished run as it stands.

    Args:
        run: A run's name or folder, or a study's.
        height: Height of the frame, in pixels.

    Raises:
        RequestError: a height too small to read in; RunFolderError: there is no such run;
            CommandFailed: it cannot be written.
    """
    require_notebook()
    if height < SMALLEST_HEIGHT_PX:
        raise RequestError(f"height={height}: a report needs {SMALLEST_HEIGHT_PX} pixels or more.")
    folder = folder_named(run)
    page, study = (folder / name for name in REPORT_FILES)
    if study.is_file() and not page.is_file():
        page = study
    elif not _is_current(page):
        run_command(["report", str(folder)])
    frame = framed(page.read_text(encoding="utf-8"), f"report of {folder.name}", height)
    show(frame, f"report: {page}")
