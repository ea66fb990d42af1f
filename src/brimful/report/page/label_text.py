"""The scores of a classifier as lines for a terminal."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from brimful.base.units import format_duration
from brimful.report.labels import (
    MOST_LABELS,
    choice_sentences,
    confused_pairs,
    confusion_table,
    count_sentence,
    cut,
    floor_sentence,
    known_cell,
    label_table,
    label_text,
    main_split,
    metric_table,
    names_in_words,
)
from brimful.report.table import Table, terminal_lines
from brimful.runs.scores import LabelMistake, LabelScore, RunScores

_INDENT = "  "
MOST_MISTAKES = 3
MOST_CHARACTERS = 100
"""Of a text."""
MOST_COLUMNS = 8
"""Labels whose confusion matrix a terminal shows."""


def label_lines(scores: RunScores, width: float = math.inf) -> list[str]:
    """Return metrics and the threshold of every split; of the one that counts also labels,
    confusions and a few mistakes. Tables fit `width` columns.
    """
    main = main_split(scores)
    lines = []
    for split, score in scores.labels.items():
        lines += _split_lines(split, score, width - len(_INDENT), is_main=split == main)
    return [_printable(line) for line in lines]


def _split_lines(split: str, score: LabelScore, width: float, *, is_main: bool) -> list[str]:
    about = f"{split}: {names_in_words(score.labels)}; {count_sentence(score)}"
    if score.seconds:
        about += f"; {format_duration(score.seconds)}"
    metrics = terminal_lines(metric_table(score, with_floor=is_main), width)
    lines = [about + " (intervals are 95 %)" if metrics else about]
    lines += _indented(metrics or ["nothing could be measured"])
    lines += _indented(choice_sentences(score, split))
    if not is_main:
        return lines
    lines += _indented(filter(None, [floor_sentence(score)]))
    lines += _indented(_first_labels(score, width))
    if isinstance(score.confusion, Mapping) or len(score.labels) <= MOST_COLUMNS:
        lines += _indented(terminal_lines(_first_rows(confusion_table(score)), width))
    pairs = terminal_lines(confused_pairs(score), width)
    lines += _indented(["most often confused:", *pairs] if pairs else [])
    return lines + _indented(_mistake_lines(score.mistakes[:MOST_MISTAKES]))


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"{_INDENT}{line}" for line in lines]


def _first_labels(score: LabelScore, width: float) -> list[str]:
    table, hidden = label_table(score), len(score.labels) - MOST_LABELS
    lines = terminal_lines(_first_rows(table), width)
    if table is None or hidden <= 0:
        return lines
    return [f"the {MOST_LABELS} labels with the lowest F1 ({hidden} more in scores.json):", *lines]


def _first_rows(table: Table | None) -> Table | None:
    return replace(table, rows=table.rows[:MOST_LABELS]) if table else None


def _mistake_lines(mistakes: Iterable[LabelMistake]) -> list[str]:
    lines = []
    for each in mistakes:
        given, own = label_text(each.predicted), label_text(each.label)
        probability = known_cell(each.probability, "{:.3f}".format)
        text = cut(each.text, MOST_CHARACTERS)
        lines.append(f"  {given} with {probability}, but {own}: {text} ({each.where})")
    return ["most confident mistakes:", *lines] if lines else []


def _printable(text: str) -> str:
    """Replace line breaks and control characters, which a terminal would obey, by blanks."""
    return "".join(character if character.isprintable() else " " for character in text)
