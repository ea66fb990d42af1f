"""`RUN/files/`: every figure of a report as PNG and SVG, every table as CSV, and a README that
names them.
"""

from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.rundir import write_text_atomically
from brimful.report.drawing import Drawing
from brimful.report.labels import label_scores, main_split
from brimful.report.page.csv_tables import csv_tables
from brimful.report.page.label_plots import label_pictures
from brimful.report.page.memory_page import memory_view
from brimful.report.page.plots import curves
from brimful.report.page.time_page import time_view
from brimful.report.tasks import read_tasks
from brimful.runs.runfiles import RunFiles, read_run

FOLDER, README = "files", "README.txt"


def write_files(run_folder: Path) -> list[Path]:
    """Write what the report shows into `run_folder/files`, as files that can be read alone; those
    of an earlier report are replaced.

    Returns:
        The files, the README first.

    Raises:
        RunFolderError: not a run folder, or a file cannot be written there.
    """
    run, folder = read_run(run_folder), run_folder / FOLDER
    written: list[Path] = []
    lines: list[tuple[str, str]] = []
    try:
        folder.mkdir(exist_ok=True)
        for drawing in drawings(run):
            written += drawing.save(folder)
            lines.append((f"{drawing.key}.png, .svg", f"{drawing.title}."))
        for table in csv_tables(run, read_tasks(run_folder)):
            written.append(folder / f"{table.name}.csv")
            write_text_atomically(written[-1], table.text())
            lines.append((written[-1].name, table.about))
        readme = folder / README
        write_text_atomically(readme, _readme(run, lines))
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be written: {error.strerror or error}. Free some room, or copy the"
            " run folder elsewhere."
        ) from error
    return [readme, *written]


def drawings(run: RunFiles) -> list[Drawing]:
    """Every figure of the report, in its order."""
    time, memory, split = time_view(run), memory_view(run), main_split(run.scores)
    found = [view.drawing for view in (time, memory) if view is not None]
    found += curves(run)
    if split is not None:
        scores = label_scores(run.scores)
        validation = scores.get("validation") if split != "validation" else None
        found += [picture.drawing for picture in label_pictures(scores[split], split, validation)]
    return [drawing for drawing in found if drawing is not None]


def _readme(run: RunFiles, lines: list[tuple[str, str]]) -> str:
    """A line for each figure and table."""
    width = max((len(name) for name, _ in lines), default=0)
    head = (
        f"Figures and tables of the run {run.name}, as its report.html shows them. Numbers are"
        " plain; units end the names of columns or quantities."
    )
    return "\n".join(
        [
            head,
            "",
            *(f"{name.ljust(width)}  {' '.join(about.split())}" for name, about in lines),
            "",
        ]
    )
