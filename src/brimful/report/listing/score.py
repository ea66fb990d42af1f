"""The one score by which a run is known, as text."""

from brimful.report import labels, quantities
from brimful.report.comparison.results import title
from brimful.report.scores import best_evaluation, main_score
from brimful.report.table import Cell
from brimful.report.tasks import main_metric, metric_cell
from brimful.runs.files import SCORES_FILE
from brimful.runs.folder import RunFolder
from brimful.runs.tasks import TaskSummary


def main_score_text(run: RunFolder) -> str:
    """Return the main score of a run with its 95 % interval; before the run is scored, the best
    while training; "" where there is none.

    The score is a classifier's main metric; for a tuned model that of its first task; else bits
    per byte, or the loss where there is no other. Scores that cannot be read are called so, and no
    earlier ones are shown in their place.
    """
    if run.lost_scores:
        return f"{SCORES_FILE} is damaged or lost: evaluate again"
    if run.kind.gives_labels:
        return _label_score(run)
    tasks = map(_task_score, run.tasks.summaries.values()) if run.is_tuned else ()
    return next(filter(None, tasks), "") or _text_score(run)


def _label_score(run: RunFolder) -> str:
    split = labels.main_split(run.scores)
    if split is not None:
        score = run.scores.labels[split]
        main = labels.main_metric(score)
        metric = next((each for each in labels.metrics_of(score) if each.key == main), None)
        return f"{metric.name} {_with_interval(metric.value)}" if metric else ""
    best = best_evaluation(run)
    watched = quantities.watched(best.values) if best else {}
    if best is None or not watched:
        return ""
    key, value = next(iter(watched.items()))
    return f"{quantities.WATCHED[key]} {labels.format_of(key)(value)} so far, step {best.step}"


def _task_score(summary: TaskSummary) -> str:
    """Return the first metric that says how good answers are, "" where it has no value."""
    name, metric = main_metric(summary)
    if metric.value is None:
        return ""
    return f"{title(summary.task, name)} {_with_interval(metric_cell(metric))}"


def _text_score(run: RunFolder) -> str:
    score = main_score(run)
    if score is None:
        return ""
    so_far = ""
    if score.name not in run.scores.likelihood:
        when = "while training" if run.is_finished else "so far"
        so_far = f" {when}, {score.name.rpartition(', ')[2]}"
    if run.kind.continues_text and score.bits_per_byte is not None:
        value, interval = score.bits_per_byte, score.bits_per_byte_interval
        bits = Cell(value, "{:.3f}".format, interval, unit="bits/byte")
        return f"{_with_interval(bits)}{so_far}"
    if score.loss is None:
        return ""
    loss = Cell(score.loss, "{:.3f}".format, score.loss_interval, unit=run.kind.loss_unit)
    return f"loss {_with_interval(loss)}{so_far}"


def _with_interval(cell: Cell) -> str:
    """`93.9% (91.8% to 96.4%)`."""
    return f"{cell.text} ({cell.interval_text})" if cell.interval else cell.text
