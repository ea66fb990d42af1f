"""One run, and several side by side, as pieces of the page."""

from collections.abc import Sequence
from pathlib import Path

from brimful.base.units import format_bytes
from brimful.report.comparison.compare import compare
from brimful.report.comparison.page import comparison_view as comparison_page
from brimful.report.comparison.page import named_runs
from brimful.report.listing.listing import Listed
from brimful.report.page.html import render_report
from brimful.report.page.run_page import run_view as run_page
from brimful.report.views import View
from brimful.runs import read_run
from brimful.studio.html import render

OF_A_RUN = ("predictions", "time", "curves", "samples", "environment")
OF_RUNS = ("scores", "time", "differences", "curves")
"""Sections that are shown, in this order."""
MAX_RUNS = 8
"""Compared at once."""


def run_view(run_folder: Path) -> str:
    """Return how a run stands: in a sentence, predicted and measured, curves, samples; and what is
    missing.

    Raises:
        RunFolderError: not a run folder.
    """
    return _piece(run_page(read_run(run_folder)), OF_A_RUN)


def _piece(view: View, keys: Sequence[str]) -> str:
    """Return some sections of a view."""
    sections = [each for key in keys for each in view.sections if each.key == key]
    return render("view.html.j2", view=view, sections=sections)


def report_view(run_folder: Path) -> str:
    """Return the report of a run as it is now, in a frame that cannot reach the page.

    Raises:
        RunFolderError: not a run folder.
    """
    run = read_run(run_folder)
    return render("frame.html.j2", title=f"Report of {run.name}", page=render_report(run))


def comparison_view(run_folders: Sequence[Path]) -> str:
    """Return runs side by side: scores, costs, and which differences are real.

    Raises:
        BrimfulError: they cannot be compared.
    """
    runs = named_runs(run_folders)
    return _piece(comparison_page(compare(run_folders), runs, run_folders[0]), OF_RUNS)


def list_view(listed: Sequence[Listed], folder: Path) -> str:
    """Return all runs of a folder, one line each."""
    runs = [{**vars(each), "size": format_bytes(each.size_bytes)} for each in listed]
    return render("list.html.j2", runs=runs, folder=str(folder))
