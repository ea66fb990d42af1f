"""The one score by which a run is known, as text."""

from brimful.report import labels
from brimful.report.comparison.results import title
from brimful.report.labels import label_scores, main_split, metric_rows, span, with_interval
from brimful.report.quantities import format_score
from brimful.report.tables import best_evaluation, main_score
from brimful.report.tasks import SIDE_METRICS
from brimful.runs import RunFolder
from brimful.runs.tasks import TaskSummary


def main_score_text(run: RunFolder) -> str:
    """Return the main score of a run with its 95 % interval; before the run is scored, the best
    while training; "" where there is none.

    The score is a classifier's main metric; for a tuned model that of its first task; else bits
    per byte, or the loss where there is no other.
    """
    if run.kind.gives_labels:
        return _label_score(run)
    tasks = map(_task_score, run.tasks.summaries.values()) if run.is_tuned else ()
    return next(filter(None, tasks), "") or _text_score(run)


def _label_score(run: RunFolder) -> str:
    scores = run.old.scores
    split = main_split(scores)
    if split is not None:
        score = label_scores(scores)[split]
        main = labels.main_metric(score)
        row = next((row for row in metric_rows(score) if row.key == main), None)
        return "" if row is None else f"{row.name} {with_interval(row.value, row.interval)}"
    best = best_evaluation(run.old) or {}
    watched = labels.watched(best)
    if not watched:
        return ""
    key, value = next(iter(watched.items()))
    return f"{labels.WATCHED[key]} {labels.form_of(key)(value)} so far, step {best.get('step')}"


def _task_score(summary: TaskSummary) -> str:
    """Return the first metric that says how good answers are, "" where it has no value."""
    name = next((name for name in summary.metrics if name not in SIDE_METRICS), None)
    metric = summary.metrics[name] if name is not None else None
    if name is None or metric is None or metric.value is None:
        return ""
    unit = "share" if metric.unit == "share" else ""
    interval = span(metric.interval, lambda end: format_score(end, unit))
    value = format_score(metric.value, metric.unit)
    return f"{title(summary.task, name)} {with_interval(value, interval)}"


def _text_score(run: RunFolder) -> str:
    score = main_score(run.old)
    if score is None:
        return ""
    so_far = ""
    if score.name not in run.scores.likelihood:
        when = "while training" if run.is_finished else "so far"
        so_far = f" {when}, {score.name.rpartition(', ')[2]}"
    if run.kind.continues_text and not run.is_tuned and score.bits_per_byte is not None:
        value = f"{score.bits_per_byte:.3f} bits/byte"
        interval = span(score.bits_per_byte_interval, "{:.3f}".format)
        return with_interval(value, interval) + so_far
    if score.loss is None:
        return ""
    unit = "nats/masked token" if run.kind.fills_masks else "nats/token"
    interval = span(score.loss_interval, "{:.3f}".format)
    return with_interval(f"loss {score.loss:.3f} {unit}", interval) + so_far
