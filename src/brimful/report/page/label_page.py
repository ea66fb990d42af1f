"""A classifier's part of report.html: what its template shows, from the scores and the data of a
run.
"""

from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from brimful.report.labels import (
    MOST_LABELS,
    MetricRow,
    Mistake,
    choice_sentences,
    confused_pairs,
    confusion_table,
    count_sentence,
    cut,
    floor_sentence,
    label_scores,
    label_table,
    listed,
    main_split,
    metric_rows,
    mistakes,
    names_of,
    shown,
    with_interval,
)
from brimful.report.page.label_plots import label_pictures
from brimful.report.table import Table
from brimful.report.tables import ordered_splits
from brimful.runs.runfiles import Json, RunFiles, items, number, section

MOST_CHARACTERS = 400
"""Of a text that a page shows."""


@dataclass(frozen=True)
class LabelsView:
    """Everything of the split that a classifier is judged by, and the metrics of the others."""

    split: str
    about: str
    rows: tuple[MetricRow, ...]
    sentences: tuple[str, ...]
    pictures: tuple[dict[str, Any], ...]
    labels: Table | None
    all_labels: Table | None
    matrix: Table | None
    pairs: Table | None
    mistakes: tuple[Mistake, ...]
    others: Table | None

    @property
    def has_floor(self) -> bool:
        return any(row.floor for row in self.rows)

    @property
    def has_differences(self) -> bool:
        return any(row.difference for row in self.rows)

    @property
    def has_repeated(self) -> bool:
        return any(row.repeated for row in self.rows)


def labels_view(run: RunFiles) -> LabelsView | None:
    """None where no split was scored."""
    scores, split = label_scores(run.scores), main_split(run.scores)
    if split is None:
        return None
    score = scores[split]
    told = [*choice_sentences(score, split), floor_sentence(score)]
    validation = scores.get("validation") if split != "validation" else None
    pictures = label_pictures(score, split, validation)
    labels, is_single = label_table(score), isinstance(score.get("confusion"), list)
    return LabelsView(
        split,
        f"{listed(names_of(score))}; {count_sentence(score)}",
        tuple(metric_rows(score)),
        tuple(each for each in told if each),
        tuple(
            {
                "key": each.key,
                "title": each.title,
                "svg": Markup(each.svg),  # noqa: S704
                "about": each.about,
                "is_wide": each.is_wide,
            }
            for each in pictures
        ),
        _first(labels),
        labels if labels and len(labels.rows) > MOST_LABELS else None,
        None if is_single else confusion_table(score),
        confused_pairs(score),
        tuple(replace(each, text=cut(each.text, MOST_CHARACTERS)) for each in mistakes(score)),
        _others({name: each for name, each in scores.items() if name != split}),
    )


def _first(table: Table | None) -> Table | None:
    return replace(table, rows=table.rows[:MOST_LABELS]) if table else None


def _others(scores: dict[str, Json]) -> Table | None:
    """Metrics in rows, a column for each other split."""
    if not scores:
        return None
    found = {
        name: {row.name.partition(" (base rate")[0]: row for row in metric_rows(score)}
        for name, score in scores.items()
    }
    names = dict.fromkeys(metric for rows in found.values() for metric in rows)
    nothing = MetricRow("", "", "", "")
    cells = tuple(
        (
            metric,
            *(
                with_interval(row.value, row.interval)
                for row in (rows.get(metric, nothing) for rows in found.values())
            ),
        )
        for metric in names
    )
    return Table(
        ("Metric", *(f"{name}: {count_sentence(score)}" for name, score in scores.items())), cells
    )


def text_table(data: Json) -> Table | None:
    """Texts of every split and how long they are; None for data without labels."""
    splits = section(data, "splits")
    rows = []
    for name in ordered_splits(splits):
        split = section(splits, name)
        words = section(split, "words")
        rows.append(
            (
                name,
                *(
                    shown(number(value), "{:,.0f}".format)
                    for value in (
                        split.get("texts"),
                        *(words.get(key) for key in ("median", "p99", "most")),
                    )
                ),
            )
        )
    columns = ("Split", "Texts", "Words, median", "99 % have at most", "Longest")
    return (
        Table(columns, tuple(rows))
        if any("texts" in section(splits, name) for name in splits)
        else None
    )


def label_count_table(data: Json) -> Table | None:
    """How many texts of each split have each label, with its share, the most frequent first; None
    where the data do not say.
    """
    counts = {
        name: section(section(section(data, "splits"), name), "labels")
        for name in ordered_splits(section(data, "splits"))
    }
    counts = {name: each for name, each in counts.items() if each}
    texts = {
        name: number(section(section(data, "splits"), name).get("texts")) or 0 for name in counts
    }
    labels = list(dict.fromkeys(label for each in counts.values() for label in each))
    if len(labels) > MOST_LABELS:
        labels.sort(
            key=lambda label: -sum(number(each.get(label)) or 0 for each in counts.values())
        )
    rows = [
        (label, *(_count_of(each.get(label), texts[name]) for name, each in counts.items()))
        for label in labels[:MOST_LABELS]
    ]
    rows += (
        [(f"{len(labels) - MOST_LABELS} more", *("" for _ in counts))]
        if len(labels) > MOST_LABELS
        else []
    )
    return Table(("Label", *counts), tuple(rows)) if rows else None


def _count_of(value: object, texts: float) -> str:
    count = number(value) or 0
    return f"{count:,.0f} ({count / texts:.1%})" if texts else f"{count:,.0f}"


def duplicate_table(data: Json) -> Table | None:
    """Texts of each split that repeat earlier ones, and those whose labels contradict one
    another.
    """
    found = {
        name: value
        for name, value in section(data, "duplicates").items()
        if isinstance(value, dict)
    }
    keys = ("texts", "exact", "normalised", "near", "repeated", "conflicts")
    rows = tuple(
        (name, *(shown(number(found[name].get(key)), "{:,.0f}".format) for key in keys))
        for name in ordered_splits(found)
    )
    columns = (
        "Split",
        "Texts",
        "Repeated exactly",
        "But for case and spaces",
        "Nearly",
        "Repeated in all",
        "With other labels elsewhere",
    )
    return Table(columns, rows) if rows else None


def repeat_table(data: Json) -> Table | None:
    """A few texts that repeat others, with both places and labels."""
    rows = []
    for record in items(section(data, "duplicates").get("examples")):
        other = section(record, "of")
        if other:
            rows.append(
                (
                    _place(record),
                    str(record.get("kind", "")),
                    str(record.get("text", "")),
                    _place(other),
                    str(other.get("text", "")),
                )
            )
    return Table(("Text", "Kind", "", "Repeats", ""), tuple(rows)) if rows else None


def conflict_table(data: Json) -> Table | None:
    """A few texts that stand there with different labels."""
    found = [
        record
        for record in items(section(data, "duplicates").get("conflict_examples"))
        if isinstance(record, dict)
    ]
    rows = tuple(
        (str(record.get("text", "")), "; ".join(map(_place, items(record.get("rows")))))
        for record in found
    )
    return Table(("Text", "Labels"), rows) if rows else None


def _place(record: object) -> str:
    """`spam in test, messages.tsv:12`."""
    values = record if isinstance(record, dict) else {}
    return f"{values.get('label', '')} in {values.get('split', '')}, {values.get('where', '')}"
