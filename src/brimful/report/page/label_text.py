"""The scores of a classifier as lines for a terminal."""

import math
from collections.abc import Iterator

from brimful.base.units import format_duration
from brimful.report.labels import (
    choice_sentences,
    count_sentence,
    cut,
    floor_sentence,
    known_cell,
    label_text,
    main_split,
    metric_table,
    names_in_words,
)
from brimful.report.page.label_page import label_folds
from brimful.report.terminal import told
from brimful.report.views import Block, Fold, Paragraph
from brimful.runs.scores import LabelScore, RunScores

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
    main, lines = main_split(scores), []
    for split, score in scores.labels.items():
        blocks = _blocks(split, score, is_main=split == main)
        about, *rest = told(blocks, width - len(_INDENT)).plain.splitlines()
        lines += [about, *(f"{_INDENT}{line}" for line in rest)]
    return lines


def _blocks(split: str, score: LabelScore, *, is_main: bool) -> Iterator[Block]:
    metrics = metric_table(score, with_floor=is_main)
    about = f"{split}: {names_in_words(score.labels)}; {count_sentence(score)}"
    if score.seconds:
        about += f"; {format_duration(score.seconds)}"
    yield Paragraph(f"{about} (intervals are 95 %)" if metrics else about)
    yield metrics or Paragraph("nothing could be measured")
    yield from map(Paragraph, choice_sentences(score, split))
    if is_main:
        yield from map(Paragraph, filter(None, [floor_sentence(score)]))
        yield from label_folds(score, MOST_COLUMNS)
        mistakes = tuple(_mistakes(score))
        if mistakes:
            yield Fold("most confident mistakes", mistakes)


def _mistakes(score: LabelScore) -> Iterator[Paragraph]:
    for each in score.mistakes[:MOST_MISTAKES]:
        given, own = label_text(each.predicted), label_text(each.label)
        probability = known_cell(each.probability, "{:.3f}".format)
        text = " ".join(cut(each.text, MOST_CHARACTERS).split())
        yield Paragraph(f"  {given} with {probability}, but {own}: {text} ({each.where})")
