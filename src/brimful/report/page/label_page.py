"""A classifier's part of report.html: metrics beside the floor's, figures, labels one by one and
the most confident mistakes of the split that it is judged by.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from brimful.report.labels import (
    MOST_LABELS,
    choice_sentences,
    confused_pairs,
    confusion_table,
    count_sentence,
    floor_sentence,
    label_table,
    main_split,
    metric_table,
    mistake_table,
    names_in_words,
    other_splits_table,
)
from brimful.report.page.label_axes import Picture
from brimful.report.page.label_plots import label_pictures
from brimful.report.table import Table
from brimful.runs import RunFolder

MOST_CHARACTERS = 400
"""Of a text that a page shows."""


@dataclass(frozen=True)
class LabelsView:
    """Everything of the split that a classifier is judged by, and the metrics of the others."""

    split: str
    about: str
    metrics: Table | None
    sentences: tuple[str, ...]
    pictures: tuple[Picture, ...]
    labels: Table | None
    all_labels: Table | None
    matrix: Table | None
    pairs: Table | None
    mistakes: Table | None
    others: Table | None


def labels_view(run: RunFolder) -> LabelsView | None:
    """None where no split was scored."""
    scores, split = run.scores.labels, main_split(run.scores)
    if split is None:
        return None
    score = scores[split]
    sentences = [*choice_sentences(score, split), floor_sentence(score)]
    labels = label_table(score)
    has_many = labels is not None and len(labels.rows) > MOST_LABELS
    return LabelsView(
        split,
        f"{names_in_words(score.labels)}; {count_sentence(score)}",
        metric_table(score),
        tuple(filter(None, sentences)),
        tuple(label_pictures(scores)),
        replace(labels, rows=labels.rows[:MOST_LABELS]) if labels else None,
        labels if has_many else None,
        confusion_table(score) if isinstance(score.confusion, Mapping) else None,
        confused_pairs(score),
        mistake_table(score, MOST_CHARACTERS),
        other_splits_table({name: each for name, each in scores.items() if name != split}),
    )
