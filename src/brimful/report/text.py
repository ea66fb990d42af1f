"""Results as lines for a terminal."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.base.units import format_duration
from brimful.evaluation.metric import split_kind
from brimful.report.labels import label_scores
from brimful.report.page import masked
from brimful.report.page.label_text import label_lines
from brimful.report.quantities import format_error, format_quantity, format_score
from brimful.report.table import aligned
from brimful.report.tables import Comparison, comparisons
from brimful.runs.runfiles import LAYERS, number, read_run, section

if TYPE_CHECKING:
    from brimful.evaluation.diagnose import Finding  # it needs torch, which a line of text does not

_MARKS = {"ok": "ok  ", "warn": "WARN", "bad": "BAD "}


def evaluation_lines(made: Mapping[str, Any]) -> list[str]:
    """What an evaluation found: a few lines per split and per task; more for the split that a
    classifier is judged by.
    """
    labelled = label_scores(made)
    likelihoods = {
        name: score
        for name, score in made.items()
        if name not in ("tasks", LAYERS) and name not in labelled
    }
    return [
        *label_lines(labelled),
        *score_lines(likelihoods),
        *layer_lines(made.get(LAYERS, {})),
        *task_lines(made.get("tasks", {})),
    ]


def score_lines(scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A few lines per split: loss, perplexity, bits per byte with intervals, speed, and the
    counting baselines beside them.
    """
    lines: list[str] = []
    for name, score in scores.items():
        if score.get("kind") == masked.KIND:
            lines += masked.masked_lines(name, score)
            continue
        low, high = score["bits_per_byte_interval"] or (None, None)
        interval = f" (95 % {low:.4f} to {high:.4f})" if low is not None else ""
        is_whole = (
            score["windows"] == score["documents"]
        )  # examples, never windows of a longer text
        how = (
            f"of {score['documents']:,} examples"
            if is_whole
            else f"context {score['context']}, stride {score['stride']}"
        )
        per_word = (
            f" per token, {_number(score['perplexity_per_word'], 2)} per word"
            if score.get("words")
            else ""
        )
        lines += [
            f"{name}: {score['tokens']:,} tokens, every one scored once, {how}",
            (
                f"  loss {_number(score['loss'])} nats/token, perplexity"
                f" {_number(score['perplexity'], 2)}{per_word}, {_number(score['bits_per_byte'])}"
                f" bits/byte{interval}"
            ),
            f"  {score['tokens_per_second']:,.0f} tokens/s, {format_duration(score['seconds'])}",
        ]
        for label, baseline in score.get("baselines", {}).items():
            if isinstance(baseline, Mapping):
                lines.append(
                    f"  {label} baseline: {_number(baseline['loss'])} nats/token,"
                    f" {_number(baseline['bits_per_byte'])} bits/byte"
                )
    return lines


def layer_lines(record: Mapping[str, Any]) -> list[str]:
    """Averages over layers, a line for each; `brimful diagnose` has the layers."""
    alignment, attention = section(record, "alignment"), section(record, "attention")
    figures = {
        "gradient cosine with backprop": number(alignment.get("mean_cosine")),
        "attention cosine with softmax": number(attention.get("mean_cosine")),
        "orthogonality violation": number(attention.get("mean_violation")),
    }
    told = [f"  {name} {value:.3g}" for name, value in figures.items() if value is not None]
    told += [f"  dead attention: {', '.join(attention['dead'])}"] if attention.get("dead") else []
    return [f"layers, on {record['tokens']:,} tokens of validation:", *told] if told else []


def task_lines(tasks: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A few lines per task: how it was asked, every metric with its interval, and how answers
    failed.
    """
    lines: list[str] = []
    for name, summary in tasks.items():
        told = [
            f"version {summary['version']}",
            f"n = {summary['n']}",
            f"prompt: {summary['prompt']}",
        ]
        told += [f"isolation: {summary['isolation']}"] if "isolation" in summary else []
        lines.append(f"{name}: {', '.join(told)}")
        lines += _metric_lines(summary["metrics"])
        if summary.get("errors"):
            lines.append(
                "  " + ", ".join(f"{count} x {error}" for error, count in summary["errors"].items())
            )
        lines += [f"  note: {note}" for note in summary.get("notes", ())]
    return lines


def _metric_lines(metrics: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line for every metric, and below it one for each type of question that it is told for."""
    lines: dict[str, list[str]] = {}
    for name, value in metrics.items():
        metric, kind = split_kind(name)
        low, high = value["interval"] or (None, None)
        interval = (
            ""
            if low is None
            else (
                f" (95 % {format_score(low, value['unit'])} to {format_score(high, value['unit'])})"
            )
        )
        told = f"{format_score(value['value'], value['unit'])}{interval}"
        lines.setdefault(metric, []).append(
            f"    {kind}: {told}, n = {value['n']}" if kind else f"  {metric}: {told}"
        )
    return [line for group in lines.values() for line in group]


def prediction_lines(run_folder: Path) -> list[str]:
    """What a run's plan predicted beside what was measured; see `comparison_lines`.

    Raises:
        RunFolderError: not a run folder.
    """
    return comparison_lines(comparisons(read_run(run_folder)))


def comparison_lines(compared: Sequence[Comparison]) -> list[str]:
    """Predicted, measured, error and whether that lies inside the interval, a line for each
    prediction; none without predictions.
    """
    rows = [("", "predicted", "interval", "measured", "error", "inside?")]
    for each in compared:
        predicted, measured = (
            format_quantity(each.key, each.predicted),
            _quantity(each.key, each.measured),
        )
        interval = (
            " to ".join(format_quantity(each.key, value) for value in each.interval)
            if each.interval
            else "-"
        )
        error = "-" if each.error is None else format_error(each.error)
        rows.append(
            (
                each.name,
                predicted,
                interval,
                measured,
                error,
                {True: "yes", False: "no", None: "-"}[each.came_true],
            )
        )
    return aligned(rows) if compared else []


def _quantity(key: str, value: float | None) -> str:
    return "-" if value is None else format_quantity(key, value)


def finding_lines(findings: Sequence["Finding"]) -> list[str]:
    """One line per finding and per layer, its advice below where there is something to do."""
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.verdict]} {finding.name}: {finding.value}")
        lines += [f"     {_of_layer(row)}" for row in finding.layers]
        if finding.advice and finding.verdict != "ok":
            lines.append(f"     {finding.advice}")
    return lines


def _of_layer(row: Mapping[str, Any]) -> str:
    """`block 1: cosine 0.31, norm ratio 0.98`."""
    return f"{row['layer']}: " + ", ".join(
        f"{key.replace('_', ' ')} {_figure(value)}" for key, value in row.items() if key != "layer"
    )


def _figure(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(_figure(part) for part in value)
    return f"{value:.3g}" if isinstance(value, float) else "-"


def _number(value: float | None, digits: int = 4) -> str:
    return "not finite" if value is None else f"{value:.{digits}f}"
