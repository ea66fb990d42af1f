"""Results as lines for a terminal."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from brimful.base.types import Json
from brimful.report.judgement import judgements_in_words
from brimful.report.page.label_text import label_lines
from brimful.report.page.layers import alignment_sentences, attention_sentences
from brimful.report.page.predicted import prediction_tables
from brimful.report.page.score_tables import loss_table
from brimful.report.predictions import Comparison, comparisons, told_of_others
from brimful.report.table import Table
from brimful.report.tasks import task_blocks
from brimful.report.terminal import told
from brimful.report.views import Block, text
from brimful.runs.folder import RunFolder
from brimful.runs.parsing import mapping, parse
from brimful.runs.scores import LayerFacts, read_scores
from brimful.runs.tasks import TaskEvaluations, TaskSummary

if TYPE_CHECKING:
    # It needs torch, which a line of text does not.
    from brimful.evaluation.diagnose import Finding

_MARKS = {"ok": "ok  ", "warn": "WARN", "bad": "BAD "}


def evaluation_lines(results: Json, width: float = math.inf) -> list[str]:
    """Return the results of an evaluation, as scores.json holds them: a table of losses and one for
    each task; more for the split that a classifier is judged by. Tables fit `width` columns.
    """
    scores, tasks = read_scores(results), mapping(results.get("tasks"))
    summaries = {name: parse(TaskSummary, mapping(each)) for name, each in tasks.items()}
    masked = {name: each for name, each in scores.likelihood.items() if each.is_masked}
    others = {name: each for name, each in scores.likelihood.items() if not each.is_masked}
    tables = [*filter(None, map(loss_table, (masked, others)))]
    how = ", every token scored once" if others else ""
    heading = text(f"held-out losses{how}; intervals are 95 %:" if tables else "")
    losses = told([*heading, *tables], width).plain.splitlines()
    answered = task_blocks(TaskEvaluations(summaries=summaries), None)
    asked = told(answered, width).plain.splitlines()
    return [*label_lines(scores, width), *losses, *layer_lines(scores.layers), *asked]


def layer_lines(layers: LayerFacts) -> list[str]:
    """Return averages over layers, a line for each; `brimful diagnose` shows the layers."""
    sentences = (*alignment_sentences(layers.alignment), *attention_sentences(layers.attention))
    lines = [f"  {each}" for each in sentences]
    heading = f"layers, on {layers.tokens or 0:,.0f} tokens of validation:"
    return [heading, *lines] if lines else []


def prediction_lines(run: RunFolder) -> list[str]:
    """Return what a run's plan predicted beside what was measured; see `comparison_lines`."""
    return [*comparison_lines(comparisons(run)), *filter(None, [told_of_others(run)])]


def comparison_lines(compared: Sequence[Comparison]) -> list[str]:
    """Return predicted, measured, error and whether that lies inside the interval, a line for each
    prediction; rough guesses last, under a line of their own; none without predictions.
    """
    summary = judgements_in_words([each.judgement for each in compared])
    blocks = map(_narrow, prediction_tables(compared) if compared else ())
    return [*told(blocks).plain.splitlines(), *filter(None, [summary])]


def _narrow(block: Block) -> Block:
    """Predictions without the ends of their intervals, so that they fit 80 columns."""
    if not isinstance(block, Table):
        return block
    rows = [(name, str(getattr(each, "text", each)), *rest) for name, each, *rest in block.rows]
    return Table((*block.columns[:-1], "Interval"), tuple(rows))


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


def _layer_line(row: Json) -> str:
    """`block 1: cosine 0.31, norm ratio 0.98`."""
    values = (
        f"{key.replace('_', ' ')} {_digits(value)}" for key, value in row.items() if key != "layer"
    )
    return f"{row['layer']}: {', '.join(values)}"


def _digits(value: object) -> str:
    if isinstance(value, tuple | list):
        return " ".join(map(_digits, value))
    return f"{value:.3g}" if isinstance(value, float) else "-"
