"""A classifier's part of report.html: metrics beside the floor's, figures, labels one by one and
the most confident mistakes of the split that it is judged by.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

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
from brimful.report.page.label_plots import label_pictures
from brimful.report.views import Block, Chapter, Paragraph, fold, section
from brimful.runs.folder import RunFolder
from brimful.runs.scores import LabelScore

MOST_CHARACTERS = 400
"""Of a text that a page shows."""
SHOWN_PICTURES = 3
"""Charts that are shown without a fold; further ones are folded."""
INTERVALS = (
    "Intervals are 95 % over texts; those of differences are over the same texts for both. What"
    " luck with the texts does not explain is called better or worse."
)


def labels_section(run: RunFolder) -> Chapter | None:
    """None where no split was scored."""
    scores, split = run.scores.labels, main_split(run.scores)
    if split is None:
        return None
    score, pictures = scores[split], label_pictures(scores)
    sentences = [*choice_sentences(score, split), *filter(None, [floor_sentence(score)])]
    others = other_splits_table({name: scores[name] for name in scores if name != split})
    more = pictures[SHOWN_PICTURES:]
    return section(
        "labels",
        "Labels",
        Paragraph(f"On {split}: {names_in_words(score.labels)}; {count_sentence(score)}."),
        metric_table(score),
        Paragraph(INTERVALS, "note"),
        *fold("Threshold, calibration and floor", *(Paragraph(each, "note") for each in sentences)),
        *pictures[:SHOWN_PICTURES],
        *fold(f"More pictures: {'; '.join(each.title for each in more)}", *more),
        *label_folds(score),
        *fold("The most confident mistakes", mistake_table(score, MOST_CHARACTERS)),
        *fold("Other splits", others),
        title="Labels",
    )


def label_folds(score: LabelScore, most_labels: float = math.inf) -> Iterator[Block]:
    """Tables of labels one by one, and of what is taken for what.

    Args:
        score: Score of a split.
        most_labels: Number of columns above which a matrix is left out, as are all labels beyond
            the first so many.
    """
    labels = label_table(score)
    if labels is not None and (count := len(labels.rows)) > MOST_LABELS:
        first = replace(labels, rows=labels.rows[:MOST_LABELS])
        yield from fold(f"The {MOST_LABELS} labels with the lowest F1", first)
        yield from fold(f"All {count} labels", labels if count <= most_labels else None)
    else:
        yield from fold("Label by label", labels)
    has_rows = isinstance(score.confusion, Mapping)
    if has_rows or len(score.labels) <= most_labels < math.inf:
        yield from fold("Given and missed", confusion_table(score))
    yield from fold("Most often confused", confused_pairs(score))
