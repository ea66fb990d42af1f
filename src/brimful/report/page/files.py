"""`RUN/files/`: every figure of a report as PNG and SVG, every table as CSV, and a README that
names them.
"""

from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.rundir import write_text_atomically
from brimful.report.drawing import Shown, save
from brimful.report.page.csv_tables import csv_files
from brimful.report.page.label_plots import label_pictures
from brimful.report.page.memory_page import memory_chart_of
from brimful.report.page.plots import curves
from brimful.report.page.time_page import time_bars
from brimful.report.table import csv_text
from brimful.runs.folder import RunFolder

FOLDER, README = "files", "README.txt"


def write_files(run: RunFolder) -> list[Path]:
    """Write what the report shows into the folder `files` of a run, as files that can be read
    alone. Files of an earlier report are replaced.

    Returns:
        The files, the README first.

    Raises:
        RunFolderError: a file cannot be written there.
    """
    folder = run.folder / FOLDER
    written: list[Path] = []
    lines: list[tuple[str, str]] = []
    try:
        folder.mkdir(exist_ok=True)
        for shown in figures(run):
            written += save(shown, folder)
            lines.append((f"{shown.key}.png, .svg", f"{shown.title}."))
        for file in csv_files(run):
            path = folder / f"{file.name}.csv"
            write_text_atomically(path, csv_text(file.table))
            written.append(path)
            lines.append((path.name, file.about))
        readme = folder / README
        write_text_atomically(readme, _readme(run, lines))
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error.strerror or error}. Free some room, or copy the"
            " run folder elsewhere."
        ) from error
    return [readme, *written]


def figures(run: RunFolder) -> list[Shown]:
    """Return every figure of the report, in its order."""
    time, memory = time_bars(run), memory_chart_of(run)
    found: list[Shown] = [time] if time.bars else []
    found += [memory] if memory else []
    return [*found, *curves(run), *label_pictures(run.scores.labels)]


def _readme(run: RunFolder, lines: list[tuple[str, str]]) -> str:
    """A line for each figure and table."""
    width = max((len(name) for name, _ in lines), default=0)
    head = (
        f"Figures and tables of the run {run.name}, as its report.html shows them. Numbers are"
        " plain; units end the names of columns or quantities."
    )
    names = [f"{name.ljust(width)}  {' '.join(about.split())}" for name, about in lines]
    return "\n".join([head, "", *names, ""])
