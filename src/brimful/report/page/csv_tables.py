"""The tables of a run as plain values for CSV: numbers without formatting, units in the names of
columns or, one quantity a row, in the name of the row.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from brimful.base.types import Bounds, Json, Texts
from brimful.report.labels import NAMES as LABEL_METRICS
from brimful.report.labels import metric_of
from brimful.report.predictions import comparisons, memory_terms, time_terms
from brimful.report.scores import baselines_of
from brimful.report.table import Table, Value, table_of
from brimful.report.time_spent import NAMES as TIME_PARTS
from brimful.report.time_spent import time_spent
from brimful.runs.folder import RunFolder
from brimful.runs.parsing import parse_value
from brimful.runs.records import Record
from brimful.runs.scores import LabelMetrics, LabelScore, MetricValue

RENAMED = {
    "loss": "loss_nats_per_token",
    "loss_low": "loss_low_nats_per_token",
    "loss_high": "loss_high_nats_per_token",
    "tokens_per_second": "tokens_per_s",
    "seconds": "duration_s",
    "time": "time_unix_s",
    "start": "start_unix_s",
    "bytes": "size_bytes",
}
"""Columns of fields whose names lack their unit."""
RENAMED_OF_LABELS = RENAMED | {
    "loss": "loss_nats_per_text",
    "loss_low": "loss_low_nats_per_text",
    "loss_high": "loss_high_nats_per_text",
}
NOT_IN_TABLES = ("kind", "baselines", "run")


@dataclass(frozen=True)
class CsvFile:
    """One file: its name without ending, what it holds, and its table."""

    name: str
    about: str
    table: Table


def csv_files(run: RunFolder) -> list[CsvFile]:
    """Return every table of a report that the run has something for."""
    of_steps = RENAMED_OF_LABELS if run.scores.labels else RENAMED
    layers = run.scores.layers
    files = {
        "predictions": (
            "What the plan said and what was measured; the unit ends the quantity's name.",
            _predictions(run),
        ),
        "steps": (
            "What was recorded at optimizer steps.",
            records_table(_values(run.steps), of_steps),
        ),
        "evaluations": ("Evaluations while training.", records_table(_values(run.evaluations))),
        "checkpoints": ("Checkpoints written.", records_table(_values(run.checkpoints))),
        "time_spent": ("Where the time went, over all sessions.", _time(run)),
        "memory_terms": (
            "The plan's parts of the peak memory.",
            table_of(("part", "bytes"), memory_terms(run)),
        ),
        "step_time_terms": (
            "The plan's parts of the time of a step.",
            table_of(("part", "seconds"), time_terms(run)),
        ),
        "monitor": (
            "What was sampled of device and machine beside the run; docs/monitor.md explains the"
            " columns.",
            _monitor(run),
        ),
        "scores": (
            "The final scores, with 95 % intervals, and what counting alone reaches.",
            _scores(run),
        ),
        "label_metrics": (
            "Metrics of the classifier and its floor, with 95 % intervals; loss in nats per text.",
            records_table(_label_metrics(run)),
        ),
        "labels": ("Precision, recall and F1 of every label.", records_table(_by_label(run))),
        "label_mistakes": ("The most confident mistakes.", records_table(_mistakes(run))),
        "tasks": ("Scores on tasks, with 95 % intervals.", records_table(_tasks(run))),
        "layers_feedback": (
            "Gradient by feedback against backpropagation.",
            records_table([each.values for each in layers.alignment.segments]),
        ),
        "layers_attention": (
            "Attention, layer by layer.",
            records_table([each.values for each in layers.attention.layers]),
        ),
        "data_splits": (
            "What each split holds.",
            records_table({"split": name, **each.values} for name, each in run.data.splits.items()),
        ),
        "plan_choices": (
            "Every choice of the plan, its reason and the runner-up.",
            records_table(vars(each) for each in (run.plan.choices if run.plan else ())),
        ),
        "environment": (
            "The machine and the versions.",
            table_of(("name", "value"), _flat(run.environment.values)),
        ),
    }
    return [CsvFile(name, about, table) for name, (about, table) in files.items() if table]


def records_table(records: Iterable[Json], names: Texts = RENAMED) -> Table | None:
    """Return a table with a row for each record and a column for each field that any of them has;
    an interval has two columns.
    """
    flat = [dict(_flat(record)) for record in records]
    keys = list(dict.fromkeys(key for record in flat for key in record))
    rows = [tuple(record.get(key) for key in keys) for record in flat]
    return table_of([names.get(key, key) for key in keys], rows) if keys else None


def _flat(record: Json, prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Join nested names with `_`, and lists with `;`; give an interval as its two ends."""
    for key, value in record.items():
        name = f"{prefix}{key}"
        interval = parse_value(Bounds, value) if "interval" in key else None
        if key in NOT_IN_TABLES:
            continue
        if interval is not None:
            stem = prefix + key.replace("_interval", "").replace("interval", "").strip("_")
            yield f"{stem}_low".lstrip("_"), interval[0]
            yield f"{stem}_high".lstrip("_"), interval[1]
        elif isinstance(value, dict):
            yield from _flat(value, f"{name}_")
        elif isinstance(value, list):
            yield name, ";".join(map(str, value))
        elif isinstance(value, float):
            yield name, parse_value(float, value)
        else:
            yield name, value


def _values(records: Sequence[Record]) -> list[Json]:
    return [each.values for each in records]


def _predictions(run: RunFolder) -> Table | None:
    columns = (
        "quantity",
        "predicted",
        "predicted_low",
        "predicted_high",
        "measured",
        "relative_error",
        "inside_interval",
        "rough_guess",
        "predicted_from",
        "measured_as",
    )
    rows = [
        (
            each.key,
            each.predicted,
            *(each.interval or (None, None)),
            each.measured,
            each.error,
            each.judgement.is_inside,
            each.judgement.is_guess,
            each.basis,
            each.source,
        )
        for each in comparisons(run)
    ]
    return table_of(columns, rows)


def _time(run: RunFolder) -> Table | None:
    spent = time_spent(run)
    if spent is None:
        return None
    known = {name: getattr(spent, name) for name in TIME_PARTS}
    rows = [(name, seconds, spent.share(seconds)) for name, seconds in known.items() if seconds]
    return table_of(("part", "seconds", "share"), rows)


def _monitor(run: RunFolder) -> Table | None:
    return records_table(
        {"time": sample.time, "covers_s": sample.covers_s, **sample.readings}
        for sample in run.monitored.samples
    )


def _scores(run: RunFolder) -> Table | None:
    """Scored splits with their baselines; those of a classifier are in its own tables."""
    records: list[Json] = []
    for split, score in run.scores.likelihood.items():
        records.append({"split": split, "scored": "model", **score.values})
        for each in baselines_of(score):
            losses = {"loss": each.loss, "bits_per_byte": each.bits_per_byte}
            records.append({"split": split, "scored": each.name, **losses})
    return records_table(records)


def _label_metrics(run: RunFolder) -> Iterator[Json]:
    """A row for each metric of the classifier, then of the floor, on each split."""
    for split, score in run.scores.labels.items():
        own = {name: metric_of(score, name) for name in _metric_names(score)}
        for scored, metrics in (("model", own), ("floor", score.floor.metrics)):
            for name in own:
                each = metrics.get(name, MetricValue())
                ends = None if each.interval is None else list(each.interval)
                row = {"split": split, "scored": scored, "metric": name, "value": each.value}
                if each.value is not None:
                    yield {**row, "interval": ends}


def _metric_names(score: LabelScore) -> list[str]:
    return list(dict.fromkeys([*LABEL_METRICS, *score.metrics, "loss"]))


def _by_label(run: RunFolder) -> Iterator[Json]:
    for split, score in run.scores.labels.items():
        for label in score.labels:
            metrics = score.by_label.get(label, LabelMetrics())
            yield {
                "split": split,
                "label": label,
                "texts": None if metrics.support is None else int(metrics.support),
                "precision": metrics.precision.value,
                "recall": metrics.recall.value,
                "f1": metrics.f1.value,
            }


def _mistakes(run: RunFolder) -> Iterator[Json]:
    for split, score in run.scores.labels.items():
        for each in score.mistakes:
            yield {"split": split, **each.values}


def _tasks(run: RunFolder) -> Iterator[Json]:
    for task, summary in run.tasks.summaries.items():
        for name, values in summary.values["metrics"].items():
            yield {"task": task, "metric": name, **(values if isinstance(values, dict) else {})}
