"""The tables of a run as plain values for CSV: numbers without formatting, units in the names of
columns or, one quantity a row, in the name of the row.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brimful.report import tables
from brimful.report.labels import NAMES as LABEL_METRICS
from brimful.report.labels import label_scores, names_of, quantity
from brimful.report.tasks import Tasks
from brimful.report.time_spent import NAMES, time_spent
from brimful.runs.runfiles import LAYERS, Json, RunFiles, items, number, pair, section

Cell = str | float | int | bool | None
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
"""Names of records whose unit is not in them, and how their columns are called."""
OF_LABELS = {
    "loss": "loss_nats_per_text",
    "loss_low": "loss_low_nats_per_text",
    "loss_high": "loss_high_nats_per_text",
}
NOT_IN_TABLES = ("kind", "baselines", "run")


@dataclass(frozen=True)
class CsvTable:
    """One file: its name without ending, what it holds, its columns and rows."""

    name: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def text(self) -> str:
        """As RFC 4180 has it, with a heading line; None is an empty cell."""
        buffer = io.StringIO()
        writer = csv.writer(buffer)
        writer.writerows([self.columns, *self.rows])
        return buffer.getvalue()


def csv_tables(run: RunFiles, tasks: Tasks) -> list[CsvTable]:
    """Every table of a report that the run has something for."""
    found = [
        _predictions(run),
        of_records(
            "steps",
            "What was recorded at optimizer steps.",
            run.of_kind("step"),
            OF_LABELS if label_scores(run.scores) else RENAMED,
        ),
        of_records("evaluations", "Evaluations while training.", run.of_kind("evaluation")),
        of_records("checkpoints", "Checkpoints written.", run.of_kind("checkpoint")),
        _time(run),
        _named(
            "memory_terms",
            "The plan's parts of the peak memory.",
            "bytes",
            tables.memory_terms(run),
        ),
        _named(
            "step_time_terms",
            "The plan's parts of the time of a step.",
            "seconds",
            tables.time_terms(run),
        ),
        _monitor(run),
        _scores(run),
        *_labels(run),
        _tasks(tasks),
        of_records(
            "layers_feedback",
            "Gradient by feedback against backpropagation.",
            _layers(run, "alignment", "segments"),
        ),
        of_records(
            "layers_attention", "Attention, layer by layer.", _layers(run, "attention", "layers")
        ),
        of_records(
            "data_splits", "What each split holds.", _by_name("split", section(run.data, "splits"))
        ),
        of_records(
            "plan_choices",
            "Every choice of the plan, its reason and the runner-up.",
            _dicts(run.plan.get("choices")),
        ),
        _facts("environment", "The machine and the versions.", run.environment),
    ]
    return [table for table in found if table is not None and table.rows]


def of_records(
    name: str, about: str, records: Sequence[Json], renamed: Mapping[str, str] = RENAMED
) -> CsvTable | None:
    """A row for each record, a column for each field that any of them has; intervals are two
    columns.
    """
    flat = [dict(_flat(record)) for record in records]
    keys = [
        key
        for key in dict.fromkeys(key for record in flat for key in record)
        if key not in NOT_IN_TABLES
    ]
    columns = tuple({**RENAMED, **renamed}.get(key, key) for key in keys)
    return (
        CsvTable(
            name, about, columns, tuple(tuple(record.get(key) for key in keys) for record in flat)
        )
        if keys
        else None
    )


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Cell]]:
    """Nested names joined with `_`; an interval as its two ends, other lists joined with `;`."""
    for key, value in record.items():
        if key in NOT_IN_TABLES:
            continue
        interval = pair(value) if "interval" in key else None
        if interval:
            stem = prefix + key.replace("_interval", "").replace("interval", "").strip("_")
            yield from (
                (f"{stem}_low".lstrip("_"), interval[0]),
                (f"{stem}_high".lstrip("_"), interval[1]),
            )
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}_")
        elif isinstance(value, list):
            yield prefix + key, ";".join(map(str, value))
        elif value is None or isinstance(value, bool | str | int):
            yield prefix + key, value
        else:
            yield prefix + key, number(value)


def _predictions(run: RunFiles) -> CsvTable:
    columns = (
        "quantity",
        "predicted",
        "predicted_low",
        "predicted_high",
        "measured",
        "relative_error",
        "inside_interval",
        "predicted_from",
        "measured_as",
    )
    rows = tuple(
        (
            each.key,
            each.predicted,
            *(each.interval or (None, None)),
            each.measured,
            each.error,
            each.came_true,
            each.basis,
            each.way,
        )
        for each in tables.comparisons(run)
    )
    return CsvTable(
        "predictions",
        "What the plan said and what came true; the unit ends the quantity's name.",
        columns,
        rows,
    )


def _time(run: RunFiles) -> CsvTable | None:
    spent = time_spent(run)
    if spent is None:
        return None
    rows = tuple(
        (name, getattr(spent, name), spent.share(getattr(spent, name)))
        for name in NAMES
        if getattr(spent, name)
    )
    return CsvTable(
        "time_spent", "Where the time went, over all sessions.", ("part", "seconds", "share"), rows
    )


def _named(name: str, about: str, unit: str, terms: Iterable[tuple[str, float]]) -> CsvTable:
    return CsvTable(name, about, ("part", unit), tuple(terms))


def _monitor(run: RunFiles) -> CsvTable | None:
    samples: list[Json] = [
        {"time": sample.time, "covers_s": sample.covers_s, **sample.readings}
        for sample in run.monitored.samples
    ]
    return of_records(
        "monitor",
        "What was sampled of device and machine beside the run; docs/monitor.md explains the"
        " columns.",
        samples,
    )


def _scores(run: RunFiles) -> CsvTable | None:
    """Scored splits with their baselines; those of a classifier are in its own tables."""
    records: list[Json] = []
    for name, record in tables.scored_splits(run.scores).items():
        if record.get("kind") == "labels":
            continue
        records.append(
            {"split": name, "scored": "model"}
            | {key: value for key, value in record.items() if key != "kind"}
        )
        rivals = tables.baselines_of(record)
        records += [
            {
                "split": name,
                "scored": rival.name,
                "loss": rival.loss,
                "bits_per_byte": rival.bits_per_byte,
            }
            for rival in rivals
        ]
    return of_records(
        "scores", "The final scores, with 95 % intervals, and what counting alone reaches.", records
    )


def _labels(run: RunFiles) -> list[CsvTable | None]:
    """Of a classifier: metrics, labels one by one, and the most confident mistakes."""
    scores = label_scores(run.scores)
    metrics: list[Json] = []
    for split, score in scores.items():
        names = [
            *LABEL_METRICS,
            *(key for key in section(score, "metrics") if key not in LABEL_METRICS),
            "loss",
        ]
        for model, record in (("model", score), ("floor", section(score, "floor"))):
            found = ((name, *quantity(record, name)) for name in names)
            metrics += [
                {"split": split, "scored": model, "metric": name, "value": value, "interval": ends}
                for name, value, ends in found
                if value is not None
            ]
    by_label = [
        {
            "split": split,
            "label": label,
            "texts": section(section(score, "by_label"), label).get("support"),
        }
        | {
            key: quantity({"metrics": section(section(score, "by_label"), label)}, key)[0]
            for key in ("precision", "recall", "f1")
        }
        for split, score in scores.items()
        for label in names_of(score)
    ]
    mistakes = [
        {"split": split, **record}
        for split, score in scores.items()
        for record in _dicts(score.get("mistakes"))
    ]
    return [
        of_records(
            "label_metrics",
            "Metrics of the classifier and its floor, with 95 % intervals; loss in nats per text.",
            _intervals_as_lists(metrics),
        ),
        of_records("labels", "Precision, recall and F1 of every label.", by_label),
        of_records("label_mistakes", "The most confident mistakes.", mistakes),
    ]


def _intervals_as_lists(records: Sequence[Json]) -> list[Json]:
    return [
        record | {"interval": None if record["interval"] is None else list(record["interval"])}
        for record in records
    ]


def _tasks(tasks: Tasks) -> CsvTable | None:
    records = [
        {"task": name, "metric": metric, **(values if isinstance(values, dict) else {})}
        for name, summary in tasks.summaries.items()
        for metric, values in section(summary, "metrics").items()
    ]
    return of_records("tasks", "Scores on tasks, with 95 % intervals.", records)


def _layers(run: RunFiles, group: str, key: str) -> list[Json]:
    return _dicts(section(section(run.scores, LAYERS), group).get(key))


def _facts(name: str, about: str, values: Json) -> CsvTable:
    return CsvTable(name, about, ("name", "value"), tuple(_flat(values)))


def _by_name(column: str, values: Json) -> list[Json]:
    return [{column: name, **value} for name, value in values.items() if isinstance(value, dict)]


def _dicts(value: object) -> list[Json]:
    return [each for each in items(value) if isinstance(each, dict)]
