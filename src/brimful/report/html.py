"""`report.html`: one file that opens offline, reads on a phone, prints, and says what was predicted beside what came true."""

from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from brimful.base.rundir import write_text_atomically
from brimful.report import headline, tables, tuned
from brimful.report.label_page import conflict_table, duplicate_table, label_count_table, labels_view, repeat_table, text_table
from brimful.report.layers import layer_tables
from brimful.report.masked import masked_table
from brimful.report.plots import Curve, curves
from brimful.report.runfiles import Json, RunFiles, is_tuned, items, kind_of, number, read_run, section
from brimful.report.tasks import answer_views, read_tasks, task_views

FILE_NAME = "report.html"
MAX_SAMPLES = 8
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
    """The whole page. Every text of the run is escaped; control characters and lone surrogates become the replacement character."""
    return render_page("report.html.j2", _values(run) | _values_of_labels(run) | _values_of_tasks(run))


def render_page(template: str, values: dict[str, Any]) -> str:
    """A page by a template of this package, its values escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("brimful", "report"), autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return _clean(environment.get_template(template).render(values))


def _values(run: RunFiles) -> dict[str, Any]:
    return {
        "run": run,
        "status": headline.status(run),
        "sentence": headline.sentence(run),
        "verdict": headline.verdict(run),
        "bars": headline.score_bars(run),
        "commands": headline.commands(run),
        "plan_verdict": headline.plan_verdict(run),
        "comparisons": [_comparison_row(comparison) for comparison in tables.comparisons(run)],
        "memory_terms": _shares(tables.memory_terms(run), "bytes"),
        "time_terms": _shares(tables.time_terms(run), "step_time_s"),
        "curves": [_figure(curve) for curve in curves(run)],
        "has_evaluations": bool(run.of_kind("evaluation")),
        "events": tables.event_table(run),
        "memory_events": tables.memory_event_table(run),
        "samples": [_sample(sample) for sample in run.samples[-MAX_SAMPLES:]],
        "num_hidden_samples": max(0, len(run.samples) - MAX_SAMPLES),
        "kind": kind_of(run),
        "scores": _score_table(run),
        "layers": layer_tables(run),
        "tuning": tuned.tuning_table(run),
        "sources": [_source(source) for source in items(run.data.get("sources"))],
        "splits": tuned.example_table(run) or text_table(run.data) or tables.split_table(run),
        "tokenizer": tables.tokenizer_table(run),
        "leakage": tables.leakage_table(run, "Prompts" if is_tuned(run) else "Documents"),
        "data_notes": [str(note) for note in items(run.data.get("notes"))],
        "plan": tables.plan_table(run),
        "batch": tuned.batch_sentence(run) if is_tuned(run) else tables.batch_sentence(run),
        "environment": tables.environment_table(run),
        "brimful_version": str(run.environment.get("brimful", "")),
    }


def _score_table(run: RunFiles) -> tables.Table | None:
    """Losses; those of a classifier stand with its other metrics."""
    kind = kind_of(run)
    if kind != "text":
        return masked_table(run) if kind == "masked" else None
    return tuned.answer_score_table(run) if is_tuned(run) else tables.score_table(run)


def _values_of_labels(run: RunFiles) -> dict[str, Any]:
    data = run.data
    return {
        "label_scores": labels_view(run),
        "label_counts": label_count_table(data),
        "duplicates": duplicate_table(data),
        "repeats": repeat_table(data),
        "conflicts": conflict_table(data),
    }


def _values_of_tasks(run: RunFiles) -> dict[str, Any]:
    untuned = tuned.before_tuning(run)
    order = [str(name) for name in items(section(run.recipe, "evaluation").get("tasks"))]
    tasks, before = read_tasks(run.folder, order), None if untuned is None else read_tasks(untuned.folder)
    return {
        "cards": headline.cards(run, tasks),
        "task_verdict": headline.task_verdict(tasks, before),
        "tasks": task_views(tasks, before),
        "damaged_tasks": tasks.damaged,
        "answer_sets": answer_views(tasks, before),
    }


def _comparison_row(comparison: tables.Comparison) -> dict[str, str]:
    def show(value: float | None) -> str:
        return "-" if value is None else tables.format_quantity(comparison.key, value)

    interval = f"{show(comparison.interval[0])} to {show(comparison.interval[1])}" if comparison.interval else ""
    return {
        "name": comparison.name,
        "basis": comparison.basis,
        "predicted": show(comparison.predicted),
        "interval": interval,
        "measured": show(comparison.measured),
        "way": comparison.way,
        "error": "-" if comparison.error is None else tables.format_error(comparison.error).replace("-", "\N{MINUS SIGN}"),
        "inside": {True: "yes", False: "no", None: "-"}[comparison.came_true],
        "tone": {True: "good", False: "bad", None: ""}[comparison.came_true],
    }


def _shares(terms: list[tuple[str, float]], unit: str) -> list[dict[str, str]]:
    """Parts of a whole as a bar has them: name, size in `unit`, share and colour."""
    total = sum(size for _, size in terms)
    return [
        {"name": name, "size": tables.format_quantity(unit, size), "percent": f"{size / total:.2%}", "hue": str(205 + 47 * place)}
        for place, (name, size) in enumerate(terms)
    ]


def _figure(curve: Curve) -> dict[str, Any]:
    """The drawings are made here, from numbers, so they are the only text that is not escaped."""
    return {"key": curve.key, "title": curve.title, "wide": Markup(curve.wide), "narrow": Markup(curve.narrow)}  # noqa: S704


def _sample(sample: Json) -> dict[str, str]:
    settings = [f"{name.replace('_', '-')} {sample[name]}" for name in ("temperature", "top_k", "top_p", "seed") if sample.get(name) is not None]
    if sample.get("finish") == FILLED:
        return {"prompt": str(sample.get("prompt") or ""), "completion": str(sample.get("completion") or ""), "about": ""}
    tokens = number(sample.get("tokens"))
    ending = {"end_of_text": "ended by itself", "length": "cut at the length asked for"}.get(str(sample.get("finish")), "")
    about = [*settings, *([f"{tokens:.0f} tokens"] if tokens is not None else []), *([ending] if ending else [])]
    return {"prompt": str(sample.get("prompt") or ""), "completion": str(sample.get("completion") or ""), "about": ", ".join(about)}


def _source(source: object) -> str:
    if not isinstance(source, dict):
        return str(source)
    return str(source.get("description") or source.get("name") or ", ".join(f"{key}: {value}" for key, value in source.items()))


def _clean(text: str) -> str:
    kept = "".join(character if character in "\n\t" or character.isprintable() or ord(character) > 0x9F else "\ufffd" for character in text)
    return kept.encode("utf-8", "replace").decode("utf-8")
