"""One run, and several side by side, as pieces of the page."""

from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from brimful.base.units import format_bytes
from brimful.report.comparison.compare import compare
from brimful.report.comparison.page import named_runs
from brimful.report.comparison.plots import overlays
from brimful.report.comparison.text import remarks, sentences
from brimful.report.comparison.units import comparison_table
from brimful.report.drawing import Drawing
from brimful.report.kinds import report_kind
from brimful.report.listing.listing import Listed
from brimful.report.page import headline
from brimful.report.page.html import render_report
from brimful.report.page.plots import curves
from brimful.report.page.predicted import predictions
from brimful.report.page.time_page import time_view
from brimful.report.quantities import listed
from brimful.runs import read_run
from brimful.studio.html import render

MAX_SAMPLES = 4
MAX_RUNS = 8
"""Compared at once."""


def run_view(run_folder: Path) -> str:
    """Return how a run stands: in a sentence, predicted and measured, curves, samples; and what is
    missing.

    Raises:
        RunFolderError: not a run folder.
    """
    run = read_run(run_folder)
    return render(
        "run.html.j2",
        run=run,
        status=headline.status(run),
        sentence=headline.sentence(run),
        verdict=headline.verdict(run),
        predictions=predictions(run)[0],
        time=time_view(run),
        curves=_drawn(curves(run)),
        samples=run.samples[-MAX_SAMPLES:],
        prompt_end=report_kind(run).prompt_end,
    )


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
    comparison = compare(run_folders)
    runs = named_runs(run_folders)
    title = listed([name for name, _ in runs])
    return render(
        "comparison.html.j2",
        title=title,
        table=comparison_table(comparison),
        sentences=sentences(comparison),
        remarks=remarks(comparison),
        curves=_drawn(overlays(runs)),
        keys=[{"name": name, "place": place + 1} for place, (name, _) in enumerate(runs)],
    )


def list_view(listed: Sequence[Listed], folder: Path) -> str:
    """Return all runs of a folder, one line each."""
    runs = [{**vars(each), "size": format_bytes(each.size_bytes)} for each in listed]
    return render("list.html.j2", runs=runs, folder=str(folder))


def _drawn(drawings: Sequence[Drawing]) -> list[dict[str, str]]:
    return [{"key": each.key, "title": each.title, "svg": _svg(each)} for each in drawings]


def _svg(drawing: Drawing) -> Markup:
    """Return a drawing, twice where it has another shape for a phone."""
    # The SVG is drawn by this program; texts in it are escaped.
    wide = Markup(drawing.wide)  # noqa: S704
    if not drawing.phone_size:
        return wide
    narrow = Markup(drawing.narrow)  # noqa: S704
    return Markup('<div class="desk">{}</div><div class="phone">{}</div>').format(wide, narrow)
