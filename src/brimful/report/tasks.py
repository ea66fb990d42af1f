"""Tasks in a report: how a model was asked, its scores with intervals and by type of question, how
answers failed, and a few answers to look at.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from brimful.base.types import Counts
from brimful.base.warning_codes import as_note
from brimful.evaluation.metric import of_kind, split_kind
from brimful.report.comparison.results import CONDITIONS
from brimful.report.table import Cell, Table, table_of
from brimful.report.views import (
    AuthoredAnswer,
    Block,
    Fold,
    Heading,
    Paragraph,
    Prompted,
    fold,
    text,
)
from brimful.runs.scores import MetricValue
from brimful.runs.tasks import RecordedAnswer, TaskEvaluations, TaskSummary

SIDE_METRICS = ("length", "unended")
"""Metrics that describe answers but not how good they are."""
MAX_SHOWN = 2
"""Answers shown of the best, and as many of the worst."""
MAX_UNREAD = 3
"""Answers shown of those that could not be read."""
MAX_LINES, MAX_LINE_CHARACTERS, MAX_VERDICT_CHARACTERS = 14, 240, 120
PROMPTS = {"template": "through its template, as in training", "plain": "as text to continue"}
ENDINGS = {
    "end_of_text": "ended by itself",
    "stop": "ended by itself",
    "length": "cut by the token limit",
    "loop": "ended in a loop",
}


@dataclass(frozen=True)
class TaskView:
    """One task.

    Attributes:
        about: How it was asked and judged.
        metrics: Metrics with their intervals, beside the untuned model's where it was asked the
            same.
        before_about: How the untuned model was asked, where that differs.
        errors: Kinds of failed answers with their counts, the most frequent first.
        by_kind: Metrics by type of question, a column each; None where there are no types.
        before_by_kind: The same of the untuned model.
    """

    name: str
    about: str
    metrics: Table | None
    before_about: str
    errors: Counts
    notes: tuple[str, ...]
    by_kind: Table | None = None
    before_by_kind: Table | None = None


def main_metric(summary: TaskSummary) -> tuple[str, MetricValue]:
    """Return the first metric that says how good answers are, with its name; ("", no value) where
    there is none.
    """
    main = (each for each in summary.metrics.items() if each[0] not in SIDE_METRICS)
    return next(main, ("", MetricValue()))


def comparable(summary: TaskSummary, other: TaskSummary) -> bool:
    """Return whether two models had the same task, apart from how they were asked."""
    return all(summary.values.get(name) == other.values.get(name) for name in CONDITIONS)


def metric_cell(metric: MetricValue | None) -> Cell:
    """A metric in its unit, with its interval."""
    if metric is None:
        return Cell(None)
    if metric.unit == "share":
        return Cell(metric.value, "{:.1%}".format, metric.interval)
    return Cell(metric.value, "{:.4g}".format, metric.interval, unit=metric.unit)


def task_views(tasks: TaskEvaluations, before: TaskEvaluations | None) -> list[TaskView]:
    """Return a view of every task, with the untuned model's scores where it had the same one."""
    views = []
    for name, summary in tasks.summaries.items():
        other = before.summaries.get(name) if before else None
        if other is not None and not comparable(summary, other):
            other = None
        views.append(_task_view(name, summary, other or TaskSummary()))
    return views


def _task_view(name: str, summary: TaskSummary, before: TaskSummary) -> TaskView:
    is_asked_differently = before.prompt and _manner(before) != _manner(summary)
    notes = [f"before tuning: {note}" for note in before.notes if note not in summary.notes]
    return TaskView(
        name,
        _about(summary),
        _metric_table(summary, before),
        _manner(before) if is_asked_differently else "",
        summary.errors,
        (*summary.notes, *notes),
        _by_kind(summary),
        _by_kind(before),
    )


def _metric_table(summary: TaskSummary, before: TaskSummary) -> Table | None:
    names = [name for name in summary.metrics if not split_kind(name)[1]]
    rows = [
        (name, metric_cell(summary.metrics[name]), metric_cell(before.metrics.get(name)))
        for name in names
    ]
    table = table_of(("Metric", "This model", "Before tuning"), rows)
    return table.without_empty_columns() if table else None


def _by_kind(summary: TaskSummary) -> Table | None:
    """Metrics in rows, types of question in columns with their number of examples."""
    names = [split_kind(name) for name in summary.metrics if split_kind(name)[1]]
    kinds = list(dict.fromkeys(kind for _, kind in names))
    metrics = list(dict.fromkeys(metric for metric, _ in names))
    headings = []
    for kind in kinds:
        first = summary.metrics.get(of_kind(metrics[0], kind), MetricValue())
        headings.append(kind if first.n is None else f"{kind} (n = {first.n:,.0f})")
    rows = [
        (metric, *(metric_cell(summary.metrics.get(of_kind(metric, kind))) for kind in kinds))
        for metric in metrics
    ]
    return table_of(("", *headings), rows)


def _manner(summary: TaskSummary) -> str:
    """`template` -> `through its template, as in training`."""
    style, _, shots = summary.prompt.partition("few-shot ")
    if shots and not style:
        return f"as text to continue, after {shots} solved examples"
    return PROMPTS.get(summary.prompt, summary.prompt)


def _about(summary: TaskSummary) -> str:
    """How the task was asked and judged, in one line."""
    texts = {
        "asked {}": _manner(summary),
        "{}": _sampling(summary),
        "at most {:.0f} tokens": summary.max_new_tokens or None,
        "n = {:,.0f}": summary.n,
        "{:,.0f} skipped": summary.skipped or None,
        "judged by {}": summary.verifier,
        "isolation: {}": summary.isolation,
        "version {}": summary.version,
    }
    parts = [text.format(value) for text, value in texts.items() if value not in ("", None)]
    return "; ".join(filter(None, [*parts, summary.data]))


def _sampling(summary: TaskSummary) -> str:
    if summary.temperature is None:
        return ""
    how = f"temperature {summary.temperature:g}" if summary.temperature else "greedy"
    samples = summary.samples or 1
    return how if samples == 1 else f"{samples:.0f} samples, {how}"


def task_blocks(tasks: TaskEvaluations, before: TaskEvaluations | None) -> Iterator[Block]:
    """Every task with its scores, what failed, and what must be known."""
    for task in task_views(tasks, before):
        about = f"{task.about}."
        if task.before_about:
            about += f" Before tuning asked {task.before_about}."
        yield Heading(task.name)
        yield Paragraph(about, "note")
        if task.metrics:
            yield task.metrics
        yield from fold("By type of question", task.by_kind)
        yield from fold("By type of question, before tuning", task.before_by_kind)
        failed = ", ".join(f"{count} x {kind}" for kind, count in task.errors.items())
        yield from text(f"Failed answers: {failed}" if failed else "")
        yield from (Paragraph(as_note(note, "B501"), "note") for note in task.notes)


def answer_sets(tasks: TaskEvaluations, before: TaskEvaluations | None) -> list[Fold]:
    """Return, for every set of questions, a few of the best and of the worst answers, and of those
    that could not be read; tasks that share the answers have one set.
    """
    sets = []
    for names in _tasks_with_same_answers(tasks):
        sets += _answer_sets(names, tasks, before)
    return sets


def _tasks_with_same_answers(tasks: TaskEvaluations) -> list[list[str]]:
    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for name, answers in tasks.answers.items():
        if answers:
            key = tuple((each.id, each.completion) for each in answers)
            groups.setdefault(key, []).append(name)
    return list(groups.values())


def _answer_sets(
    names: list[str], tasks: TaskEvaluations, before: TaskEvaluations | None
) -> list[Fold]:
    merged = _merged([tasks.answers[name] for name in names])
    metrics = [main_metric(tasks.summaries[name])[0] for name in names]
    ranked = sorted(merged.values(), key=lambda each: _quality(each, metrics), reverse=True)
    shown = _best_and_worst(ranked)
    about = f"all {len(ranked)}"
    if len(shown) < len(ranked):
        about = f"the {MAX_SHOWN} best and the {MAX_SHOWN} worst of {len(ranked)} by these scores"
    chosen = [(about, shown)]
    unread = [each for each in merged.values() if each.status == "unparsed" and each not in shown]
    unread = unread[:MAX_UNREAD]
    if unread:
        chosen.append((f"{len(unread)} more that could not be read", unread))
    earlier_answers = before.answers if before else {}
    earlier = _merged([earlier_answers.get(name, ()) for name in names])
    told = "cut to a few lines; all of them are in evaluations/."
    return [
        Fold(
            f"Answers to look at: {' and '.join(names)}, {about}",
            (
                Paragraph(f"Shown are {about}, {told}", "note"),
                *(_sample(each, earlier.get(each.id)) for each in answers),
            ),
        )
        for about, answers in chosen
    ]


def _merged(answers_of_tasks: Sequence[Sequence[RecordedAnswer]]) -> dict[str, RecordedAnswer]:
    """Return one answer by example, with the scores of all tasks (the first's where two have one
    name) and the first error that one of them names.
    """
    merged: dict[str, RecordedAnswer] = {}
    for answers in answers_of_tasks:
        for each in answers:
            first = merged.get(each.id, each)
            scores = {**each.scores, **first.scores}
            in_order = dict.fromkeys([*first.scores, *each.scores])
            merged[each.id] = replace(
                first,
                scores={name: scores[name] for name in in_order},
                error=first.error or each.error,
            )
    return merged


def _quality(answer: RecordedAnswer, metrics: Sequence[str]) -> tuple[bool, float]:
    return not answer.error, sum(answer.scores.get(name, 0.0) for name in metrics)


def _best_and_worst(ranked: list[RecordedAnswer]) -> list[RecordedAnswer]:
    """Return the first and the last few; of the worst, those that failed in different ways before
    others.
    """
    if len(ranked) <= 2 * MAX_SHOWN:
        return ranked
    worst = ranked[: MAX_SHOWN - 1 : -1]
    first_of_kind = {each.error: each for each in reversed(worst)}
    different = [each for each in worst if first_of_kind[each.error] is each]
    others = [each for each in worst if first_of_kind[each.error] is not each]
    return [*ranked[:MAX_SHOWN], *[*different, *others][:MAX_SHOWN]]


def _sample(answer: RecordedAnswer, earlier: RecordedAnswer | None) -> Prompted:
    scores = ", ".join(f"{name} {value:.3g}" for name, value in answer.scores.items())
    about = "; ".join(filter(None, (scores, ENDINGS.get(answer.finish))))
    answers = [
        AuthoredAnswer("Answer", cut(answer.completion)),
        AuthoredAnswer("Reference", cut(answer.reference)),
    ]
    if earlier is not None:
        answers.append(AuthoredAnswer("Before tuning", cut(earlier.completion), *_verdict(earlier)))
    prompt = cut(answer.prompt, from_end=answer.shots not in ("", "0"))
    return Prompted(prompt, "", f"{answer.id}: {about}", tuple(answers), *_verdict(answer))


def _verdict(answer: RecordedAnswer) -> tuple[str, bool]:
    """What the answer was judged to be, and whether that is good."""
    status, error = answer.status, answer.error
    if error or status not in {"", "passed", "correct"}:
        text = error or status
        if status and answer.detail and error.startswith(status):
            text = f"{status}: {answer.detail}"
        return text[:MAX_VERDICT_CHARACTERS], False
    if not status and answer.scores.get("syntax"):
        return "parses as Python", True
    return status, True


def cut(text: str, *, from_end: bool = False) -> str:
    """Return at most `MAX_LINES` lines of a text, the first or the last ones, and in words how many
    were left out.
    """
    lines = text.strip("\n").split("\n")
    lines = [
        line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:MAX_LINE_CHARACTERS]}..."
        for line in lines
    ]
    num_hidden = len(lines) - MAX_LINES
    if num_hidden <= 1:
        return "\n".join(lines)
    hidden = f"... ({num_hidden} more lines)"
    shown = [hidden, *lines[num_hidden:]] if from_end else [*lines[:MAX_LINES], hidden]
    return "\n".join(shown)
