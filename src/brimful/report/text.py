"""Results as lines for a terminal."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brimful.base.units import format_duration
from brimful.base.warning_codes import as_note
from brimful.evaluation.metric import split_kind
from brimful.report.judgement import GUESS_WIDTH, judgements_in_words
from brimful.report.page.label_text import label_lines
from brimful.report.predictions import Comparison, comparisons
from brimful.report.quantities import format_error, format_quantity, format_score
from brimful.report.table import aligned
from brimful.report.tasks import metric_cell
from brimful.runs import read_run
from brimful.runs.parsing import Bounds, mapping, parse
from brimful.runs.scores import BaselineScore, LayerFacts, LikelihoodScore, MetricValue, read_scores
from brimful.runs.tasks import TaskSummary

if TYPE_CHECKING:
    # It needs torch, which a line of text does not.
    from brimful.evaluation.diagnose import Finding

GUESSES_HEADING = f"rough guesses, not counted (interval {GUESS_WIDTH:g}x wide or wider):"
_MARKS = {"ok": "ok  ", "warn": "WARN", "bad": "BAD "}


def evaluation_lines(results: Mapping[str, Any], width: float = math.inf) -> list[str]:
    """Return the results of an evaluation, as scores.json holds them: a few lines per split and per
    task; more for the split that a classifier is judged by. Tables fit `width` columns.
    """
    scores = read_scores(results)
    lines = label_lines(scores, width)
    for split, score in scores.likelihood.items():
        lines += _masked_lines(split, score) if score.is_masked else _score_lines(split, score)
    lines += layer_lines(scores.layers)
    for name, summary in mapping(results.get("tasks")).items():
        lines += task_lines(name, parse(TaskSummary, mapping(summary)))
    return lines


def _score_lines(split: str, score: LikelihoodScore) -> list[str]:
    """Loss, perplexity, bits per byte with intervals, speed, and the counting baselines; of a score
    with named values these and the loss.
    """
    if score.named:
        named = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in score.named.items()]
        loss = f"loss {_number(score.loss)}{_interval(score.loss_interval)}"
        took = f"{score.windows or 0:,} scored in {format_duration(score.seconds or 0.0)}"
        return [f"{split}: {took}", f"  {', '.join([loss, *named])}"]
    # Each example is a window of its own; longer texts are cut into several.
    is_whole = score.windows == score.documents
    how = f"context {score.context}, stride {score.stride}"
    if is_whole:
        how = f"of {score.documents or 0:,.0f} examples"
    perplexity = f"perplexity {_number(score.perplexity, 2)}"
    if score.words:
        perplexity += f" per token, {_number(score.perplexity_per_word, 2)} per word"
    bits = f"{_number(score.bits_per_byte)} bits/byte{_interval(score.bits_per_byte_interval)}"
    return [
        f"{split}: {score.tokens or 0:,.0f} tokens, every one scored once, {how}",
        f"  loss {_number(score.loss)} nats/token, {perplexity}, {bits}",
        f"  {_speed(score, 'tokens')}",
        *(_baseline_line(name, baseline) for name, baseline in score.baselines.items()),
    ]


def _baseline_line(name: str, baseline: BaselineScore) -> str:
    loss, bits = _number(baseline.loss), _number(baseline.bits_per_byte)
    return f"  {name} baseline: {loss} nats/token, {bits} bits/byte"


def _masked_lines(split: str, score: LikelihoodScore) -> list[str]:
    """The loss over hidden tokens, which makes neither a perplexity nor bits per byte."""
    return [
        (
            f"{split}: {score.tokens or 0:,.0f} masked tokens,"
            f" {score.masked_share or 0:.0%} of all,"
            f" predicted from both sides, context {score.context}"
        ),
        f"  loss {_number(score.loss)} nats/masked token{_interval(score.loss_interval)}",
        f"  {_speed(score, 'masked tokens')}",
    ]


def _speed(score: LikelihoodScore, unit: str) -> str:
    return f"{score.tokens_per_second or 0:,.0f} {unit}/s, {format_duration(score.seconds or 0.0)}"


def layer_lines(layers: LayerFacts) -> list[str]:
    """Return averages over layers, a line for each; `brimful diagnose` shows the layers."""
    alignment, attention = layers.alignment, layers.attention
    values = {
        "gradient cosine with backprop": alignment.mean_cosine,
        "attention cosine with softmax": attention.mean_cosine,
        "orthogonality violation": attention.mean_violation,
    }
    lines = [f"  {name} {value:.3g}" for name, value in values.items() if value is not None]
    if attention.dead:
        lines.append(f"  dead attention: {', '.join(attention.dead)}")
    heading = f"layers, on {layers.tokens or 0:,.0f} tokens of validation:"
    return [heading, *lines] if lines else []


def task_lines(name: str, summary: TaskSummary) -> list[str]:
    """Return a few lines on a task: how it was asked, every metric with its interval, and how
    answers failed.
    """
    about = [
        f"version {summary.version}",
        f"n = {summary.n or 0:.0f}",
        f"prompt: {summary.prompt}",
    ]
    if summary.isolation:
        about.append(f"isolation: {summary.isolation}")
    lines = [f"{name}: {', '.join(about)}", *_metric_lines(summary.metrics)]
    if summary.errors:
        errors = (f"{count} x {error}" for error, count in summary.errors.items())
        lines.append(f"  {', '.join(errors)}")
    return [*lines, *(f"  {as_note(each, 'B501')}" for each in summary.notes)]


def _metric_lines(metrics: Mapping[str, MetricValue]) -> list[str]:
    """A line for every metric, and below it one for each type of question that has it."""
    lines: dict[str, list[str]] = {}
    for name, value in metrics.items():
        metric, kind = split_kind(name)
        text = format_score(value.value, value.unit)
        if value.interval:
            text += f" (95 % {metric_cell(value).interval_text})"
        line = f"    {kind}: {text}, n = {value.n or 0:.0f}" if kind else f"  {metric}: {text}"
        lines.setdefault(metric, []).append(line)
    return [line for group in lines.values() for line in group]


def prediction_lines(run_folder: Path) -> list[str]:
    """Return what a run's plan predicted beside what was measured; see `comparison_lines`.

    Raises:
        RunFolderError: not a run folder.
    """
    return comparison_lines(comparisons(read_run(run_folder)))


def comparison_lines(compared: Sequence[Comparison]) -> list[str]:
    """Return predicted, measured, error and whether that lies inside the interval, a line for each
    prediction; rough guesses last, under a line of their own; none without predictions.
    """
    if not compared:
        return []
    ranked = sorted(compared, key=lambda each: each.judgement.is_guess)
    rows = [("", "predicted", "measured", "error", "", "interval")]
    heading, *lines = aligned([*rows, *map(_prediction_row, ranked)])
    guesses = sum(each.judgement.is_guess for each in compared)
    counted = len(compared) - guesses
    if guesses:
        lines.insert(counted, GUESSES_HEADING)
    summary = judgements_in_words([each.judgement for each in compared])
    return [heading, *lines, *filter(None, [summary])]


def _prediction_row(each: Comparison) -> tuple[str, ...]:
    judgement = each.judgement
    return (
        each.name,
        format_quantity(each.key, each.predicted),
        "-" if each.measured is None else format_quantity(each.key, each.measured),
        "-" if judgement.error is None else format_error(judgement.error),
        judgement.word,
        judgement.inside or "-",
    )


def finding_lines(findings: Sequence["Finding"]) -> list[str]:
    """Return one line per finding and per layer, its advice below where there is something to
    do.
    """
    lines: list[str] = []
    for finding in findings:
        lines.append(f"{_MARKS[finding.verdict]} {finding.name}: {finding.value}")
        lines += [f"     {_layer_line(row)}" for row in finding.layers]
        if finding.advice and finding.verdict != "ok":
            lines.append(f"     {finding.advice}")
    return lines


def _layer_line(row: Mapping[str, Any]) -> str:
    """`block 1: cosine 0.31, norm ratio 0.98`."""
    values = (
        f"{key.replace('_', ' ')} {_digits(value)}" for key, value in row.items() if key != "layer"
    )
    return f"{row['layer']}: {', '.join(values)}"


def _digits(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_digits, value))
    return f"{value:.3g}" if isinstance(value, float) else "-"


def _number(value: float | None, digits: int = 4) -> str:
    return "not finite" if value is None else f"{value:.{digits}f}"


def _interval(interval: Bounds | None) -> str:
    return f" (95 % {interval[0]:.4f} to {interval[1]:.4f})" if interval else ""
