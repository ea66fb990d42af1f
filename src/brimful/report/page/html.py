"""`report.html`: one file that opens offline, reads on a phone, prints, and says what was predicted
beside what came true.
"""

import functools
from pathlib import Path
from typing import Any

import jinja2

from brimful.base.rundir import write_text_atomically
from brimful.report import tables, tuned
from brimful.report.page import headline
from brimful.report.page.label_page import (
    conflict_table,
    duplicate_table,
    label_count_table,
    labels_view,
    repeat_table,
    text_table,
)
from brimful.report.page.layers import layer_tables
from brimful.report.page.masked import masked_table
from brimful.report.page.memory_page import memory_view
from brimful.report.page.plots import curves
from brimful.report.page.predicted import origin_table, predictions
from brimful.report.page.recovery_points import recovery_view
from brimful.report.page.reproduce import identity_table, steps_to_reproduce
from brimful.report.page.time_page import time_view
from brimful.report.table import Table
from brimful.report.tasks import answer_views, read_tasks, task_views
from brimful.runs.runfiles import (
    Json,
    RunFiles,
    is_tuned,
    items,
    kind_of,
    number,
    read_run,
    section,
)

FILE_NAME = "report.html"
MAX_SAMPLES = 8
SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("predictions", "Predictions", ()),
    ("time", "Time", ("time",)),
    ("memory", "Memory", ("memory",)),
    ("curves", "Curves", ()),
    ("labels", "Labels", ("label_scores",)),
    ("scores", "Scores", ("has_losses",)),
    ("tasks", "Tasks", ("tasks", "damaged_tasks")),
    ("samples", "Samples", ("samples",)),
    ("layers", "Layers", ("layers",)),
    ("data", "Data", ()),
    ("plan", "Plan", ()),
    ("recovery", "Recovery", ("recovery",)),
    ("reproduce", "Reproduce", ()),
    ("environment", "Environment", ()),
)
"""Anchor, title in the contents, and what at least one of must be there for the section to be."""
FILLED = "fill-mask"
"""How a sample ends whose prompt had a hidden word."""


def write_report(run_folder: Path) -> Path:
    """Write `run_folder/report.html` from whatever the run folder holds, finished or not.

    Returns:
        The path of the report.

    Raises:
        RunFolderError: not a run folder, or the report cannot be written there.
    """
    path = run_folder / FILE_NAME
    write_text_atomically(path, render_report(read_run(run_folder)))
    return path


def render_report(run: RunFiles) -> str:
    """The whole page. Every text of the run is escaped; control characters and lone surrogates
    become the replacement character.
    """
    values = _values(run) | _values_of_data(run) | _values_of_labels(run) | _values_of_tasks(run)
    return render_page("report.html.j2", values | {"contents": _contents(values)})


def _contents(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Anchors and titles of the sections that a page has."""
    return [
        (key, title)
        for key, title, needed in SECTIONS
        if not needed or any(values[name] for name in needed)
    ]


def render_page(template: str, values: dict[str, Any], page_width: str = "1000px") -> str:
    """A page by a template of this package, its values escaped."""
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


def _values(run: RunFiles) -> dict[str, Any]:
    """Of every run: what it is, the plan beside what came true, curves, data and how to repeat
    it.
    """
    rows, scale = predictions(run)
    return {
        "run": run,
        "status": headline.status(run),
        "sentence": headline.sentence(run),
        "verdict": headline.verdict(run),
        "plan_verdict": headline.plan_verdict(run),
        "bars": headline.score_bars(run),
        "predictions": rows,
        "prediction_scale": scale,
        "origins": origin_table(run),
        "time": time_view(run),
        "memory": memory_view(run),
        "curves": curves(run),
        "events": tables.event_table(run),
        "memory_events": tables.memory_event_table(run),
        "samples": [_sample(sample) for sample in run.samples[-MAX_SAMPLES:]],
        "num_hidden_samples": max(0, len(run.samples) - MAX_SAMPLES),
        "kind": kind_of(run),
        "scores": score_table(run),
        "layers": layer_tables(run),
        "tuning": tuned.tuning_table(run),
        "recovery": recovery_view(run),
        "brimful_version": str(run.environment.get("brimful", "")),
    }


def _values_of_data(run: RunFiles) -> dict[str, Any]:
    return {
        "sources": [_source(source) for source in items(run.data.get("sources"))],
        "splits": tuned.example_table(run) or text_table(run.data) or tables.split_table(run),
        "tokenizer": tables.tokenizer_table(run),
        "leakage": tables.leakage_table(run, "Prompts" if is_tuned(run) else "Documents"),
        "data_notes": [str(note) for note in items(run.data.get("notes"))],
        "plan": tables.plan_table(run),
        "batch": tuned.batch_sentence(run) if is_tuned(run) else tables.batch_sentence(run),
        "environment": tables.environment_table(run),
        "identity": identity_table(run),
        "reproduce": steps_to_reproduce(run),
        "commands": headline.commands(run),
    }


def score_table(run: RunFiles) -> Table | None:
    """Losses; those of a classifier stand with its other metrics."""
    kind = kind_of(run)
    if kind != "text":
        return masked_table(run) if kind == "masked" else None
    return tuned.answer_score_table(run) if is_tuned(run) else tables.score_table(run)


def _values_of_labels(run: RunFiles) -> dict[str, Any]:
    data, scored = run.data, labels_view(run)
    return {
        "label_scores": scored,
        "has_losses": scored is None,
        "label_counts": label_count_table(data),
        "duplicates": duplicate_table(data),
        "repeats": repeat_table(data),
        "conflicts": conflict_table(data),
    }


def _values_of_tasks(run: RunFiles) -> dict[str, Any]:
    untuned = tuned.before_tuning(run)
    order = [str(name) for name in items(section(run.recipe, "evaluation").get("tasks"))]
    tasks, before = (
        read_tasks(run.folder, order),
        None if untuned is None else read_tasks(untuned.folder),
    )
    return {
        "cards": headline.cards(run, tasks),
        "task_verdict": headline.task_verdict(tasks, before),
        "tasks": task_views(tasks, before),
        "damaged_tasks": tasks.damaged,
        "answer_sets": answer_views(tasks, before),
    }


def _sample(sample: Json) -> dict[str, str]:
    settings = [
        f"{name.replace('_', '-')} {sample[name]}"
        for name in ("temperature", "top_k", "top_p", "seed")
        if sample.get(name) is not None
    ]
    if sample.get("finish") == FILLED:
        return {
            "prompt": str(sample.get("prompt") or ""),
            "completion": str(sample.get("completion") or ""),
            "about": "",
        }
    tokens = number(sample.get("tokens"))
    ending = {"end_of_text": "ended by itself", "length": "cut at the length asked for"}.get(
        str(sample.get("finish")), ""
    )
    about = [
        *settings,
        *([f"{tokens:.0f} tokens"] if tokens is not None else []),
        *([ending] if ending else []),
    ]
    return {
        "prompt": str(sample.get("prompt") or ""),
        "completion": str(sample.get("completion") or ""),
        "about": ", ".join(about),
    }


def _source(source: object) -> str:
    if not isinstance(source, dict):
        return str(source)
    return str(
        source.get("description")
        or source.get("name")
        or ", ".join(f"{key}: {value}" for key, value in source.items())
    )


def _clean(text: str) -> str:
    kept = "".join(
        (
            character
            if character in "\n\t" or character.isprintable() or ord(character) > 0x9F
            else "\ufffd"
        )
        for character in text
    )
    return kept.encode("utf-8", "replace").decode("utf-8")
