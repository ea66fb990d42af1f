"""`report.html`: one file that opens offline, reads on a phone, prints, and shows predictions
beside measurements.

`PARTS` lists the parts of the page. Each has a module that makes its view from the run, and a
template `templates/run/KEY.html.j2` that shows the view.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from brimful.base.rundir import write_text_atomically
from brimful.report import tuned
from brimful.report.base_to_tuned import base_to_tuned
from brimful.report.judgement import BANDS, GUESS_WIDTH
from brimful.report.kinds import report_kind
from brimful.report.page import data_page, headline
from brimful.report.page.events import event_table, memory_event_table
from brimful.report.page.facts import environment_table
from brimful.report.page.label_page import labels_view
from brimful.report.page.layers import layer_tables
from brimful.report.page.memory_page import memory_view
from brimful.report.page.plan_page import plan_table
from brimful.report.page.plots import curves
from brimful.report.page.predicted import origin_table, predictions
from brimful.report.page.recovery_points import recovery_view
from brimful.report.page.reproduce import identity_table, steps_to_reproduce
from brimful.report.page.samples import samples_view
from brimful.report.page.time_page import time_view
from brimful.report.tasks import answer_sets, task_views
from brimful.runs import RunFolder, read_run

FILE_NAME = "report.html"
NOT_ON_A_PAGE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters other than tab and line feed."""


@dataclass(frozen=True)
class PagePart:
    """One part of the page of a run.

    Attributes:
        key: Its anchor, and the name of its template.
        title: In the contents; "" leaves it out there.
        view: Makes what the template shows; None where a run has nothing of it.
    """

    key: str
    title: str
    view: Callable[[RunFolder], object]


def write_report(run_folder: Path) -> Path:
    """Write `run_folder/report.html` from what the run folder holds, finished or not.

    Returns:
        The path of the report.

    Raises:
        RunFolderError: not a run folder, or the report cannot be written there.
    """
    path = run_folder / FILE_NAME
    write_text_atomically(path, render_report(read_run(run_folder)))
    return path


def render_report(run: RunFolder) -> str:
    """Return the whole page. Every text of the run is escaped; control characters and lone
    surrogates become the replacement character.
    """
    views = [(part, part.view(run)) for part in PARTS]
    values = {
        "run": run,
        "head": _head(run),
        "kind": report_kind(run),
        "views": [(part, view) for part, view in views if view is not None],
    }
    return render_page("report.html.j2", values)


def render_page(template: str, values: dict[str, Any], page_width: str = "1000px") -> str:
    """Return a page by a template of this package, its values escaped."""
    return _clean(_templates().get_template(template).render({"page_width": page_width} | values))


@functools.cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("brimful", "report/templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _head(run: RunFolder) -> dict[str, Any]:
    untuned = tuned.before_tuning(run)
    return {
        "status": headline.status(run),
        "sentence": headline.sentence(run),
        "verdict": headline.verdict(run),
        "task_verdict": headline.task_verdict(run.tasks, untuned.tasks if untuned else None),
        "plan_verdict": headline.plan_verdict(run),
        "cards": headline.cards(run),
    }


def _predictions(run: RunFolder) -> dict[str, Any]:
    rows, scale = predictions(run)
    return {
        "rows": rows,
        "scale": scale,
        "origins": origin_table(run),
        "bands": [f"{band.limit * 100:.0f} %" for band in BANDS[:-1]],
        "guess_width": f"{GUESS_WIDTH:g}",
    }


def _curves(run: RunFolder) -> dict[str, Any]:
    return {
        "drawings": curves(run),
        "events": event_table(run),
        "memory_events": memory_event_table(run),
    }


def _scores(run: RunFolder) -> dict[str, Any] | None:
    """The losses; None for a classifier whose losses stand with its other metrics."""
    if run.scores.labels:
        return None
    return {"bars": headline.score_bars(run), "table": report_kind(run).score_table(run)}


def _tasks(run: RunFolder) -> dict[str, Any] | None:
    tasks, untuned = run.tasks, tuned.before_tuning(run)
    before = untuned.tasks if untuned else None
    if not tasks.summaries and not tasks.problems:
        return None
    return {
        "problems": tasks.problems,
        "tasks": task_views(tasks, before),
        "answer_sets": answer_sets(tasks, before),
    }


def _data(run: RunFolder) -> dict[str, Any]:
    return {
        "splits": data_page.split_table(run),
        "label_counts": data_page.label_count_table(run),
        "duplicates": data_page.duplicate_table(run),
        "repeats": data_page.repeat_table(run),
        "conflicts": data_page.conflict_table(run),
        "tokenizer": data_page.tokenizer_table(run),
        "leakage": data_page.leakage_table(run, report_kind(run).texts),
    }


def _plan(run: RunFolder) -> dict[str, Any]:
    return {"table": plan_table(run), "batch": report_kind(run).batch_sentence(run)}


def _reproduce(run: RunFolder) -> dict[str, Any]:
    return {
        "steps": steps_to_reproduce(run),
        "identity": identity_table(run),
        "commands": headline.commands(run),
    }


PARTS = (
    PagePart("base", "Base and tuned", base_to_tuned),
    PagePart("curves", "Curves", _curves),
    PagePart("predictions", "Predictions", _predictions),
    PagePart("labels", "Labels", labels_view),
    PagePart("scores", "Scores", _scores),
    PagePart("tasks", "Tasks", _tasks),
    PagePart("samples", "Samples", samples_view),
    PagePart("time", "Time", time_view),
    PagePart("memory", "Memory", memory_view),
    PagePart("layers", "Layers", lambda run: layer_tables(run) or None),
    PagePart("tuning", "", tuned.tuning_table),
    PagePart("data", "Data", _data),
    PagePart("plan", "Plan", _plan),
    PagePart("recovery", "Recovery", recovery_view),
    PagePart("reproduce", "Reproduce", _reproduce),
    PagePart("environment", "Environment", lambda run: {"table": environment_table(run)}),
)
"""The parts of the page, in order."""


def _clean(text: str) -> str:
    """Replace characters that no page can hold."""
    return NOT_ON_A_PAGE.sub("\ufffd", text).encode("utf-8", "replace").decode("utf-8")
