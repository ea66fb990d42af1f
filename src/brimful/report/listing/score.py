"""The one score by which a run is known, as text, where there is room for no more."""

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json
from brimful.evaluation.nats import summary_files
from brimful.report import labels
from brimful.report.comparison.results import title
from brimful.report.labels import label_scores, main_split, metric_rows, span, with_interval
from brimful.report.quantities import format_score
from brimful.report.tables import best_evaluation, main_score
from brimful.report.tasks import main_metric
from brimful.runs.runfiles import Json, RunFiles, is_tuned, items, kind_of, number, pair, section


def score_told(run: RunFiles) -> str:
    """The main score of a run with its 95 % interval; before it is scored, the best while training;
    "" where there is none.

    A classifier's main metric; of a tuned model its first task's; else bits per byte, or the loss
    where that is what there is.
    """
    if kind_of(run) == "labels":
        return _of_labels(run)
    return (_of_task(run) if is_tuned(run) else "") or _of_loss(run)


def _of_labels(run: RunFiles) -> str:
    split = main_split(run.scores)
    if split is not None:
        score = label_scores(run.scores)[split]
        row = next(
            (row for row in metric_rows(score) if row.key == labels.main_metric(score)), None
        )
        return "" if row is None else f"{row.name} {with_interval(row.value, row.interval)}"
    best = best_evaluation(run)
    watched = labels.watched(best or {})
    key = next(iter(watched), None)
    return (
        ""
        if key is None or best is None
        else (
            f"{labels.WATCHED[key]} {labels.form_of(key)(watched[key])} so far, step"
            f" {best.get('step')}"
        )
    )


def _of_task(run: RunFiles) -> str:
    order = [str(name) for name in items(section(run.recipe, "evaluation").get("tasks"))]
    files = sorted(
        summary_files(run.folder),
        key=lambda path: (order.index(path.stem) if path.stem in order else len(order), path.name),
    )
    for path in files:
        try:
            summary = read_json(path)
        except (RunFolderError, OSError):
            continue
        if isinstance(summary, dict) and (
            told := _metric_told(str(summary.get("task", path.stem)), summary)
        ):
            return told
    return ""


def _metric_told(task: str, summary: Json) -> str:
    main = main_metric(summary)
    value = None if main is None else number(main[1].get("value"))
    if main is None or value is None:
        return ""
    unit = str(main[1].get("unit", ""))
    interval = span(
        pair(main[1].get("interval")),
        lambda end: format_score(end, unit if unit == "share" else ""),
    )
    return f"{title(task, main[0])} {with_interval(format_score(value, unit), interval)}"


def _of_loss(run: RunFiles) -> str:
    score = main_score(run)
    if score is None:
        return ""
    is_text = kind_of(run) == "text" and not is_tuned(run)
    so_far = (
        ""
        if score.name in run.scores
        else (
            f" {'while training' if run.is_finished else 'so far'},"
            f" {score.name.rpartition(', ')[2]}"
        )
    )
    if is_text and score.bits_per_byte is not None:
        return (
            with_interval(
                f"{score.bits_per_byte:.3f} bits/byte",
                span(score.bits_per_byte_interval, lambda end: f"{end:.3f}"),
            )
            + so_far
        )
    if score.loss is None:
        return ""
    unit = "nats/masked token" if kind_of(run) == "masked" else "nats/token"
    return (
        with_interval(
            f"loss {score.loss:.3f} {unit}", span(score.loss_interval, lambda end: f"{end:.3f}")
        )
        + so_far
    )
