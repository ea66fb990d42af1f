"""Tasks in a report: how a model was asked, what it scored with intervals and by type of question,
how answers failed, and a few to look at.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_journal, read_json
from brimful.evaluation.metric import of_kind, split_kind
from brimful.evaluation.nats import FOLDER, summary_files
from brimful.report.comparison.results import CONDITIONS
from brimful.report.quantities import format_score
from brimful.report.table import Table
from brimful.runs.runfiles import Json, items, number, pair, section

SIDE_METRICS = ("length", "unended")
"""What tells about answers but not how good they are."""
MAX_SHOWN = 2
"""Answers shown of the best, and as many of the worst."""
MAX_UNREAD = 3
"""Answers shown of those that could not be read."""
MAX_LINES, MAX_LINE_CHARACTERS, MAX_VERDICT_CHARACTERS = 14, 240, 120


@dataclass(frozen=True)
class MetricRow:
    """One metric as text: the value, its 95 % interval, the untuned model's value and interval; ""
    for what is not known.
    """

    name: str
    value: str
    interval: str
    before: str = ""
    before_interval: str = ""


@dataclass(frozen=True)
class TaskView:
    """One task.

    Attributes:
        about: How it was asked and judged.
        before_about: How the untuned model was asked, where that differs.
        errors: Kinds of failed answers with their counts, the most frequent first.
        by_kind: Metrics by type of question, a column each; None where there are no types.
        before_by_kind: The same of the untuned model.
    """

    name: str
    about: str
    rows: tuple[MetricRow, ...]
    before_about: str
    errors: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    by_kind: Table | None = None
    before_by_kind: Table | None = None

    @property
    def has_before(self) -> bool:
        return any(row.before for row in self.rows)


@dataclass(frozen=True)
class AnswerView:
    """One answer, cut to a few lines."""

    id: str
    prompt: str
    answer: str
    reference: str
    verdict: str
    is_good: bool
    scores: str
    before: str | None = None
    before_verdict: str = ""
    before_is_good: bool = False


@dataclass(frozen=True)
class AnswersView:
    """Answers to the questions that some tasks share: the best and the worst, or those that could
    not be read.
    """

    tasks: str
    about: str
    answers: tuple[AnswerView, ...]


@dataclass(frozen=True)
class Tasks:
    """Everything of a run's evaluations on tasks; `damaged` says what of it cannot be read."""

    summaries: dict[str, Json]
    records: dict[str, list[Json]]
    damaged: tuple[str, ...] = ()


def read_tasks(run_folder: Path, order: Sequence[str] = ()) -> Tasks:
    """Summaries and answers by task, as found, those of `order` first; nothing where no task was
    run.
    """
    summaries: dict[str, Json] = {}
    records: dict[str, list[Json]] = {}
    damaged = []
    places = {name: place for place, name in enumerate(order)}
    for path in sorted(
        summary_files(run_folder), key=lambda path: (places.get(path.stem, len(places)), path.name)
    ):
        try:
            summary = read_json(path)
        except (RunFolderError, OSError, ValueError) as error:
            damaged.append(f"{FOLDER}/{path.name} cannot be read: {error}")
            continue
        if not isinstance(summary, dict) or not section(summary, "metrics"):
            damaged.append(f"{FOLDER}/{path.name} does not hold the summary of a task.")
            continue
        task = str(summary.get("task", path.stem))
        summaries[task] = summary
        try:
            records[task] = list(read_journal(path.with_suffix(".jsonl")))
        except (OSError, ValueError) as error:
            damaged.append(f"{FOLDER}/{path.stem}.jsonl cannot be read: {error}")
    return Tasks(summaries, records, tuple(damaged))


def main_metric(summary: Json) -> tuple[str, Json] | None:
    """The first metric that says how good answers are, and its record."""
    found = section(summary, "metrics")
    names = [name for name in found if name not in SIDE_METRICS and isinstance(found[name], dict)]
    return (names[0], found[names[0]]) if names else None


def comparable(summary: Json, other: Json | None) -> bool:
    """Whether two models had the same task, apart from how they were asked."""
    return other is not None and all(summary.get(name) == other.get(name) for name in CONDITIONS)


def task_views(tasks: Tasks, before: Tasks | None) -> list[TaskView]:
    """A view of every task; the untuned model's scores where it had the same one."""
    views = []
    for name, summary in tasks.summaries.items():
        other = before.summaries.get(name) if before else None
        other = other if comparable(summary, other) else None
        whole = {
            metric: record
            for metric, record in section(summary, "metrics").items()
            if not split_kind(metric)[1]
        }
        rows = tuple(
            _row(metric, record, section(section(other, "metrics"), metric))
            for metric, record in whole.items()
        )
        errors = tuple(
            (str(error), f"{count}") for error, count in section(summary, "errors").items()
        )
        asked, asked_before = (_manner(each) for each in (summary, other or {}))
        own_notes, notes_before = (
            [str(note) for note in items(each.get("notes"))] for each in (summary, other or {})
        )
        notes = (
            *own_notes,
            *(f"before tuning: {note}" for note in notes_before if note not in own_notes),
        )
        before_about = asked_before if other and asked_before != asked else ""
        views.append(
            TaskView(
                name,
                _about(summary),
                rows,
                before_about,
                errors,
                notes,
                _by_kind(summary),
                _by_kind(other or {}),
            )
        )
    return views


def _by_kind(summary: Json) -> Table | None:
    """Metrics in rows, types of question in columns with their number of examples."""
    metrics = section(summary, "metrics")
    names = [split_kind(name) for name in metrics if split_kind(name)[1]]
    kinds, rows = (
        list(dict.fromkeys(kind for _, kind in names)),
        list(dict.fromkeys(metric for metric, _ in names)),
    )
    counts = [number(section(metrics, of_kind(rows[0], kind)).get("n")) for kind in kinds]
    headings = [
        kind if n is None else f"{kind} (n = {n:,.0f})"
        for kind, n in zip(kinds, counts, strict=True)
    ]
    cells = [
        (metric, *(_with_interval(section(metrics, of_kind(metric, kind))) for kind in kinds))
        for metric in rows
    ]
    return Table(("", *headings), tuple(cells)) if kinds else None


def _with_interval(record: Json) -> str:
    value, interval = _cells(record)
    return f"{value} ({interval})" if interval else value


def _row(name: str, record: object, other: Json) -> MetricRow:
    values = record if isinstance(record, dict) else {}
    return MetricRow(name, *_cells(values), *_cells(other))


def _cells(record: Json) -> tuple[str, str]:
    value, unit, interval = (
        number(record.get("value")),
        str(record.get("unit", "")),
        pair(record.get("interval")),
    )
    if value is None:
        return "", ""
    return format_score(value, unit), " to ".join(
        format_score(bound, "share" if unit == "share" else "") for bound in interval or ()
    )


def _manner(summary: Json) -> str:
    """`template` -> `through its template, as in training`."""
    prompt = str(summary.get("prompt", ""))
    if prompt.startswith("few-shot "):
        return f"as text to continue, after {prompt.removeprefix('few-shot ')} solved examples"
    return {"template": "through its template, as in training", "plain": "as text to continue"}.get(
        prompt, prompt
    )


def _about(summary: Json) -> str:
    n, skipped, most = (number(summary.get(key)) for key in ("n", "skipped", "max_new_tokens"))
    told = [
        f"asked {_manner(summary)}" if summary.get("prompt") else "",
        _sampling(summary),
        f"at most {most:.0f} tokens" if most else "",
        f"n = {n:,.0f}" if n is not None else "",
        f"{skipped:,.0f} skipped" if skipped else "",
        f"judged by {summary['verifier']}" if summary.get("verifier") else "",
        f"isolation: {summary['isolation']}" if summary.get("isolation") else "",
        f"version {summary.get('version')}" if summary.get("version") is not None else "",
        str(summary.get("data") or ""),
    ]
    return "; ".join(part for part in told if part)


def _sampling(summary: Json) -> str:
    temperature, samples = number(summary.get("temperature")), number(summary.get("samples")) or 1
    if temperature is None:
        return ""
    how = "greedy" if temperature == 0 else f"temperature {temperature:g}"
    return how if samples == 1 else f"{samples:.0f} samples, {how}"


def answer_views(tasks: Tasks, before: Tasks | None) -> list[AnswersView]:
    """For every set of questions a few of the best and of the worst answers, and of those that
    could not be read; tasks that share the answers have one set.
    """
    return [view for names in _shared(tasks) for view in _views(names, tasks, before)]


def _shared(tasks: Tasks) -> list[list[str]]:
    """Names of tasks with the same answers, together."""
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, records in tasks.records.items():
        if records:
            groups.setdefault(
                tuple((str(record.get("id")), str(record.get("completion"))) for record in records),
                [],
            ).append(name)
    return list(groups.values())


def _views(names: list[str], tasks: Tasks, before: Tasks | None) -> list[AnswersView]:
    merged = _merged([tasks.records[name] for name in names])
    metrics = [main[0] for name in names if (main := main_metric(tasks.summaries[name]))]
    ranked = sorted(merged.values(), key=lambda record: _quality(record, metrics), reverse=True)
    shown = _ends(ranked)
    told = (
        f"the {MAX_SHOWN} best and the {MAX_SHOWN} worst of {len(merged)} by these scores"
        if len(shown) < len(merged)
        else f"all {len(merged)}"
    )
    chosen = [(told, shown)]
    unread = [
        record
        for record in merged.values()
        if record.get("status") == "unparsed" and record not in shown
    ]
    if unread:
        chosen.append(
            (f"{min(len(unread), MAX_UNREAD)} more that could not be read", unread[:MAX_UNREAD])
        )
    earlier = (
        _merged([before.records[name] for name in names if name in before.records])
        if before
        else {}
    )
    title = " and ".join(names)
    return [
        AnswersView(
            title,
            about,
            tuple(_answer(record, earlier.get(str(record.get("id")))) for record in records),
        )
        for about, records in chosen
    ]


def _merged(tasks_records: Sequence[Sequence[Json]]) -> dict[str, Json]:
    """By example one answer, with the scores of all tasks (the first's where two have one name) and
    the first error that one of them found.
    """
    found: dict[str, Json] = {}
    for record in (record for records in tasks_records for record in records):
        earlier = found.get(str(record.get("id")), {})
        first = section(earlier, "scores")
        scores = first | {
            name: value for name, value in section(record, "scores").items() if name not in first
        }
        found[str(record.get("id"))] = (
            record
            | earlier
            | {
                "scores": scores,
                "error": earlier.get("error") or record.get("error"),
            }
        )
    return found


def _quality(record: Json, metrics: Sequence[str]) -> tuple[bool, float]:
    values = [number(section(record, "scores").get(metric)) or 0.0 for metric in metrics]
    return not record.get("error"), sum(values)


def _ends(ranked: list[Json]) -> list[Json]:
    """The first and the last few; of the worst, those that failed in different ways before
    others.
    """
    if len(ranked) <= 2 * MAX_SHOWN:
        return ranked
    worst = ranked[: MAX_SHOWN - 1 : -1]
    kinds: dict[str, Json] = {}
    for record in worst:
        kinds.setdefault(str(record.get("error")), record)
    chosen = [*kinds.values(), *(record for record in worst if record not in kinds.values())][
        :MAX_SHOWN
    ]
    return [*ranked[:MAX_SHOWN], *chosen]


def _answer(record: Json, earlier: Json | None) -> AnswerView:
    verdict, is_good = _verdict(record)
    earlier_verdict = _verdict(earlier or {})
    scores = ", ".join(
        f"{name} {value:.3g}"
        for name, each in section(record, "scores").items()
        if (value := number(each)) is not None
    )
    ending = {
        "end_of_text": "ended by itself",
        "stop": "ended by itself",
        "length": "cut by the token limit",
    }.get(str(record.get("finish")), "")
    return AnswerView(
        str(record.get("id", "")),
        cut(str(record.get("prompt") or ""), from_end=bool(record.get("shots"))),
        cut(str(record.get("completion") or "")),
        cut(str(record.get("reference") or "")),
        verdict,
        is_good,
        f"{scores}; {ending}" if ending else scores,
        None if earlier is None else cut(str(earlier.get("completion") or "")),
        *earlier_verdict,
    )


def _verdict(record: Json) -> tuple[str, bool]:
    """What was found, and whether that is good."""
    status, error, detail = (str(record.get(key) or "") for key in ("status", "error", "detail"))
    if error or status not in {"", "passed", "correct"}:
        told = (
            f"{status}: {detail}"
            if status and detail and error.startswith(status)
            else error or status
        )
        return told[:MAX_VERDICT_CHARACTERS], False
    if status:
        return status, True
    syntax = number(section(record, "scores").get("syntax"))
    return ("parses as Python", True) if syntax else ("", True)


def cut(text: str, *, from_end: bool = False) -> str:
    """At most `MAX_LINES` lines of a text, the first or the last ones, and what was left out in
    words.
    """
    lines = [
        line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:MAX_LINE_CHARACTERS]}..."
        for line in text.strip("\n").split("\n")
    ]
    left_out = len(lines) - MAX_LINES
    if left_out <= 1:
        return "\n".join(lines)
    told = f"... ({left_out} more lines)"
    return "\n".join([told, *lines[left_out:]] if from_end else [*lines[:MAX_LINES], told])
