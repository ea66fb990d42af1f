"""Show the results of a run in a notebook: scores and examples, the table of a study, the
report.
"""

import json
from html import escape
from pathlib import Path

from brimful.base.errors import RequestError
from brimful.notebook.cell import require_notebook, show
from brimful.notebook.example_groups import ScoresAndExamples
from brimful.notebook.follow import folder_named
from brimful.notebook.job import run_command
from brimful.notebook.panel import BOX, FAINT
from brimful.report.live.status import changed_at
from brimful.runs.bookkeeping import recorded_status
from brimful.runs.files import (
    EVALUATIONS_FOLDER,
    JOURNAL_FILE,
    SAMPLES_FILE,
    SCORES_FILE,
    STATUS_FILE,
)
from brimful.runs.parsing import parse

REPORTED = (STATUS_FILE, JOURNAL_FILE, SAMPLES_FILE, SCORES_FILE, f"{EVALUATIONS_FOLDER}/*")
"""Files that a report shows and that may change after it was written."""
REPORT_FILES = ("report.html", "study.html")
TABLE_FILE = "study.md"
"""Of a study: its runs with intervals, as Markdown."""
PRE = "white-space:pre-wrap;background:none;color:inherit;margin:2px 0;font-size:12px"
SMALLEST_HEIGHT_PX = 200


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
    output = run_command([str(folder), *texts], module="brimful.notebook.answers")
    show(*examples_page(parse(ScoresAndExamples, json.loads(output))))


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


def examples_page(answers: ScoresAndExamples) -> tuple[str, str]:
    """Return scores and examples as HTML and as text."""
    lines = answers.lines
    parts = [f'<pre style="{PRE}">{escape(chr(10).join(lines))}</pre>'] if lines else []
    text = list(lines)
    for group in answers.groups:
        parts.append(f'<div style="margin-top:8px"><b>{escape(group.title)}</b></div>')
        text.append(group.title)
        for example in group.examples:
            cells = "".join(
                '<div style="flex:1 1 260px;min-width:0"><div'
                f' style="{FAINT}">{escape(title)}</div><pre'
                f' style="{PRE}">{escape(body)}</pre></div>'
                for title, body in example.texts
            )
            parts.append(
                '<div style="border-top:1px solid rgba(128,128,128,.3);padding:4px 0"><pre'
                f' style="{PRE};font-weight:600">{escape(example.prompt)}</pre><div'
                f' style="display:flex;flex-wrap:wrap;gap:4px 18px">{cells}</div></div>'
            )
            text += [
                f"  {example.prompt}",
                *(f"    {title}: {body}" for title, body in example.texts),
            ]
    return f'<div style="{BOX};max-width:1000px">{"".join(parts)}</div>', "\n".join(text)


def report(run: str | Path, height: int = 900) -> None:
    """Show a run's report inside the notebook; of an unfinished run as it stands.

    Args:
        run: A run's name or folder, or a study's.
        height: Of the frame, in pixels.

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
    frame = (
        f'<iframe title="report of {escape(folder.name)}" sandbox="allow-scripts"'
        f' srcdoc="{escape(page.read_text(encoding="utf-8"))}"'
        f' style="width:100%;height:{height}px;border:1px solid'
        ' rgba(128,128,128,.4);border-radius:8px;background:#fff"></iframe>'
    )
    show(frame, f"report: {page}")
