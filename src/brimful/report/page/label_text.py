"""The scores of a classifier as lines for a terminal."""

from collections.abc import Iterable, Mapping

from brimful.base.units import format_duration
from brimful.report.labels import (
    MOST_LABELS,
    MetricRow,
    choice_sentences,
    confused_pairs,
    confusion_table,
    count_sentence,
    cut,
    floor_sentence,
    label_table,
    listed,
    main_split,
    metric_rows,
    mistakes,
    names_of,
    with_interval,
)
from brimful.report.table import Table, aligned
from brimful.runs.runfiles import Json, number

MOST_MISTAKES = 3
MOST_CHARACTERS = 100
"""Of a text."""
MOST_COLUMNS = 8
"""Labels whose confusion matrix a terminal shows."""


def label_lines(scores: Mapping[str, Json]) -> list[str]:
    """Metrics and the threshold of every split; of the one that counts also labels, confusions and
    a few mistakes.
    """
    main = main_split(scores)
    return [
        _printable(line)
        for name, score in scores.items()
        for line in _split_lines(name, score, is_main=name == main)
    ]


def _split_lines(name: str, score: Json, *, is_main: bool) -> list[str]:
    seconds = number(score.get("seconds"))
    about = f"{listed(names_of(score))}; {count_sentence(score)}" + (
        f"; {format_duration(seconds)}" if seconds else ""
    )
    lines = [
        f"{name}: {about}",
        *_indented(_metric_lines(score, with_floor=is_main)),
        *_indented(choice_sentences(score, name)),
    ]
    if not is_main:
        return lines
    lines += _indented([floor_sentence(score)] if floor_sentence(score) else [])
    lines += _table_lines(label_table(score), _about_labels(score))
    matrix = confusion_table(score)
    if matrix is not None and (
        len(names_of(score)) <= MOST_COLUMNS or not isinstance(score.get("confusion"), list)
    ):
        lines += _table_lines(matrix, "")
    lines += _table_lines(confused_pairs(score), "most often confused:")
    return [*lines, *_mistake_lines(score)]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _metric_lines(score: Json, *, with_floor: bool) -> list[str]:
    """A table: metric, value, floor, difference, with the texts that repeat; columns of which there
    is nothing are left out.
    """
    rows = metric_rows(score if with_floor else {**score, "floor": None})
    headings = ("", "value, 95 %", "floor, 95 %", "difference, 95 %", "with repeats")
    cells = [
        headings,
        *(
            (
                row.name,
                with_interval(row.value, row.interval),
                with_interval(row.floor, row.floor_interval),
                _difference(row),
                row.repeated,
            )
            for row in rows
        ),
    ]
    kept = [column for column in range(len(headings)) if any(row[column] for row in cells[1:])]
    return (
        aligned([[row[column] for column in kept] for row in cells])
        if rows
        else ["nothing could be measured"]
    )


def _difference(row: MetricRow) -> str:
    return with_interval(row.difference, row.difference_interval) + f", {row.verdict}" * bool(
        row.verdict
    )


def _about_labels(score: Json) -> str:
    hidden = len(names_of(score)) - MOST_LABELS
    return (
        f"the {MOST_LABELS} labels with the lowest F1 ({hidden} more in scores.json):"
        if hidden > 0
        else ""
    )


def _table_lines(table: Table | None, about: str) -> list[str]:
    if table is None:
        return []
    return [
        *_indented([about] if about else []),
        *_indented(aligned([table.columns, *table.text_rows[:MOST_LABELS]])),
    ]


def _mistake_lines(score: Json) -> list[str]:
    found = mistakes(score)[:MOST_MISTAKES]
    lines = ["most confident mistakes:"] * bool(found)
    for each in found:
        lines.append(
            f"  {each.predicted} with {each.probability}, but {each.label}:"
            f" {cut(each.text, MOST_CHARACTERS)} ({each.where})"
        )
    return _indented(lines)


def _printable(text: str) -> str:
    """On one line and without control characters, which a terminal would obey."""
    return "".join(character if character.isprintable() else " " for character in text)
