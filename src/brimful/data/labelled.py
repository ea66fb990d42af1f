"""From recipe to labelled texts: read the rows, prepare the texts, understand the labels, split,
look for repeated texts. Encodes nothing.

Suffixes: E texts of a split, C labels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from brimful.base.arrays import Array, Bools, Floats
from brimful.base.errors import DataError
from brimful.base.text import clause, listed
from brimful.base.types import JsonDict, Progress
from brimful.base.warning_codes import all_coded, coded
from brimful.data.account import Account
from brimful.data.cache_places import cache_key
from brimful.data.labels import (
    LabelCell,
    Labels,
    Names,
    are_lists,
    check_known,
    choose_names,
    label_counts,
    names_in_cell,
    naming_notes,
    positive_of,
    targets_of,
)
from brimful.data.leakage import normalised
from brimful.data.preparation import preparation, preparation_identity
from brimful.data.readers import Reading
from brimful.data.rebalance import confidence_of, rebalanced
from brimful.data.repeats import (
    NONE,
    LabelledRow,
    Repeats,
    find_repeats,
    repeat_notes,
    repeat_report,
)
from brimful.data.rows import LABEL_KEY, Row, as_named, cell_of, column_name, short, text_or_empty
from brimful.data.sources import AnyPart, Rows, RowSource, open_rows
from brimful.data.splits import SPLITS, held_out_shares
from brimful.data.stratified import STRATIFIED_SEED, hold_out
from brimful.recipe import DataRecipe, LabelsRecipe, Recipe

_FIELDS = {"text_column", "label_column", "validation", "test", "duplicates"}
_RULES = {"kind", "names", "mapping", "separator", "positive", "preprocess", "near_duplicates"}
"""Of the recipe: what decides which texts there are, where they belong, what their labels are and
which of them repeat others.
"""
_HIDDEN = "-1"
"""How benchmarks publish texts whose labels they keep to themselves."""
_HEADER_ROWS, _HEADER_CHARACTERS = 10, 30
_LISTED = 10
_PROGRESS_EVERY = 1000


@dataclass(frozen=True)
class LabelledSplit:
    """One split.

    Attributes:
        texts: E, prepared.
        targets: int64 [E], numbers of labels; with several labels per text float32 [E, C] of 0 and
            1.
        wheres: Place of each, for errors and reports.
        is_repeated_E: The text repeats one before it, exactly, but for case and white space, or
            nearly: in training an earlier training text, in validation a training text, in test one
            of training or validation. Repeated held-out texts stay here, for scores beside the main
            ones; nothing is chosen by them.
    """

    texts: tuple[str, ...]
    targets: Array
    wheres: tuple[str, ...]
    is_repeated_E: Bools


@dataclass(frozen=True)
class LabelledTexts:
    """Everything a classifier needs of the data but token ids.

    Attributes:
        splits: train, validation, and test where there is one.
        labels: What texts are classified into.
        report: What data.json says of it: sources, splits with label counts, labels, duplicates,
            notes.
        fingerprint: Changes when texts, splits, labels or the marks of repeated texts do.
        log_kept_C: log of the share of each label's training texts that `labels.rebalance` kept;
            None: all.
    """

    splits: dict[str, LabelledSplit]
    labels: Labels
    report: JsonDict
    fingerprint: str
    log_kept_C: Floats | None = None


def read_labelled(recipe: Recipe, progress: Progress | None = None) -> LabelledTexts:
    """Read, prepare, split and compare the labelled texts of a recipe.

    Training texts are never left out for standing in validation or test: the held-out text is
    marked instead, so what is learned does not depend on what is held out. With
    data.duplicates=drop, marked texts leave validation and test altogether.

    Args:
        recipe: Its sections data and labels count.
        progress: Called with what is going on.

    Raises:
        DataError: the data cannot be read, labels are missing, unknown or all alike, or a split
            lacks what it needs.
    """
    data, rules = recipe.data, recipe.label_rules
    if data.split_by == "position":
        raise DataError(
            "data.split_by=position cuts text, but labelled texts are held out whole and by label:"
            " use data.split_by=document."
        )
    if data.text_column == data.label_column:
        raise DataError(
            f"data.text_column and data.label_column are the same column, {data.text_column!r}."
            " Name the one that holds the labels."
        )
    source = open_rows(data)
    account = Account()
    items, read_notes = _read(source, data, rules, account, progress)
    multiple = are_lists([item.cell for item in items if item.split in {None, "train"}], rules)
    labelled = [names_in_cell(item.cell, rules, multiple=multiple) for item in items]
    _check_header(items, labelled, data)
    rows = _rows_in_splits(items, labelled, data)
    training = [row.labels for row in rows if row.split == 0]
    names = choose_names(training, rules, (data.text_column, data.label_column), multiple=multiple)
    _check_labels(rows, names, rules)
    counts = Counter(name for found in training for name in found)
    labels = Labels(names, multiple, positive_of(names, counts, rules, multiple=multiple))
    log_kept_C, rebalancing = None, []
    if rules.rebalance is not None:
        rows, log_kept_C, note = rebalanced(rows, labels, rules.rebalance)
        rebalancing = [coded("B208", note)]
    repeats = find_repeats(rows, rules.near_duplicates, progress)
    splits, dropped = _splits(rows, labels, repeats, data)
    missing = _check_splits(splits, labels, data, rules)
    duplicates = {**repeat_report(rows, repeats, rules.near_duplicates), "dropped": dropped}
    naming = naming_notes([item.cell for item in items], labels, rules, counts)
    found = (
        *all_coded("B201", (*source.notes, *read_notes)),
        *naming,
        *rebalancing,
        *all_coded("B209", missing),
    )
    report = account.told_in(
        {
            "sources": [part.description for part in source.parts],
            "splits": {name: _split_report(split, labels) for name, split in splits.items()},
            "labels": _labels_report(labels, rules),
            "duplicates": duplicates,
            "notes": [*found, *all_coded("B210", repeat_notes(duplicates, dropped))],
        }
    )
    fingerprint = _fingerprint(source, data, rules)
    return LabelledTexts(splits, labels, report, fingerprint, log_kept_C)


def _fingerprint(source: RowSource, data: DataRecipe, rules: LabelsRecipe) -> str:
    decided = rules.model_dump(mode="json", include=_RULES)
    if rules.rebalance is not None:
        decided["rebalance"] = rules.rebalance.model_dump(mode="json")
    return cache_key(
        source=source.fingerprint,
        split_seed=STRATIFIED_SEED,
        steps=preparation_identity(rules.preprocess),
        **data.model_dump(mode="json", include=_FIELDS),
        labels=decided,
    )


@dataclass(frozen=True)
class _Item:
    """A text with its label's cell and how sure that is; split None: to be held out, or not, with
    others of its `pool`.
    """

    text: str
    cell: LabelCell
    split: str | None
    pool: tuple[float, float]
    confidence: float


def _read(
    source: RowSource,
    data: DataRecipe,
    rules: LabelsRecipe,
    account: Account,
    progress: Progress | None,
) -> tuple[list[_Item], list[str]]:
    """All texts in the order of the source, and notes; empty texts are left out."""
    items: list[_Item] = []
    notes: list[str] = []
    empty: list[str] = []
    prepare = preparation(rules.preprocess)
    for part in source.parts:
        hidden = _hidden(part, data)
        notes += [
            f"{name}: all labels are {_HIDDEN}, that is, not published; the split is left out"
            for name in hidden
        ]
        own = {name: rows for name, rows in part.splits.items() if name not in hidden}
        pool = held_out_shares(own, data)
        for name, row in ((name, row) for name, rows in own.items() for row in rows):
            text = prepare(text_or_empty(row.columns, data.text_column, row.where))
            if not text.strip():
                empty.append(row.where)
                continue
            split: str | None = name
            if name == "train" and any(pool):
                split = None
            confidence = confidence_of(row, rules.rebalance)
            items.append(_Item(text, _label_cell(row, data), split, pool, confidence))
            unread = _unread(row, data, rules)
            account.add("columns", row.where, *unread, count=min(len(unread), 1))
            if progress and len(items) % _PROGRESS_EVERY == 0:
                progress("reading", len(items), None)
    total = len(items) + len(empty)
    if len(empty) > len(items):
        raise DataError(
            f"{len(empty):,} of {total:,} rows have no text in column {data.text_column!r}, the"
            f" first is {empty[0]}. Is data.text_column the right column?"
        )
    if empty:
        notes.append(
            f"{len(empty):,} of {total:,} rows have no text and are left out, the first is"
            f" {empty[0]}"
        )
    return items, notes + _header_notes(items, data)


def _unread(row: Row, data: DataRecipe, rules: LabelsRecipe) -> list[str]:
    confidence = None if rules.rebalance is None else rules.rebalance.confidence
    names = as_named(row.columns)
    return row.unread(
        {
            column_name(each, names, row.where)
            for each in (data.text_column, data.label_column, confidence)
            if each is not None
        }
    )


def _label_cell(row: Row, data: DataRecipe) -> LabelCell:
    return LabelCell(cell_of(row.columns, data.label_column, row.where, LABEL_KEY), row.where)


def _hidden(part: AnyPart[Rows], data: DataRecipe) -> list[str]:
    """Held-out splits of a source whose labels are not published."""
    held_out = {name: rows for name, rows in part.splits.items() if name != "train"}
    return [
        name
        for name, rows in held_out.items()
        if all(str(_label_cell(row, data).value).strip() == _HIDDEN for row in rows)
    ]


def _header_notes(items: Sequence[_Item], data: DataRecipe) -> list[str]:
    """A note where the name of the label column is also a label: the first row may be no header."""
    same = [item.cell.where for item in items if item.cell.value == data.label_column]
    may_be_wrong = Reading.of(data).has_header and data.header is not True
    if not same or not may_be_wrong or not isinstance(data.label_column, str):
        return []
    return [
        f"the label column is named {data.label_column!r}, and {len(same):,} rows have that label,"
        f" the first is {same[0]}: is the first row of a file no header? Then data.header=false,"
        " with columns by number"
    ]


def _check_header(items: Sequence[_Item], labelled: Sequence[Names], data: DataRecipe) -> None:
    """Raise DataError if columns are given by number and a first row reads like names: one word,
    and a label that no other row has.
    """
    if data.header != "auto" or Reading.of(data).has_header or len(items) < _HEADER_ROWS:
        return
    files = [item.cell.where.rpartition(":")[0] for item in items]
    counts = Counter(zip(files, labelled, strict=True))
    for item, file, names in zip(items, files, labelled, strict=True):
        is_name = len(item.text) <= _HEADER_CHARACTERS and len(item.text.split()) == 1
        if item.cell.where.endswith(":1") and is_name and counts[file, names] == 1:
            raise DataError(
                f"{item.cell.where}: the first row reads like names of columns ({short(item.text)}"
                f" as text, {short(', '.join(names))} as a label that no other row has). Say"
                " whether it is: data.header=true, or data.header=false."
            )


def _rows_in_splits(
    items: Sequence[_Item], labelled: Sequence[Names], data: DataRecipe
) -> list[LabelledRow]:
    """All rows, training first, then validation, then test, each in the order of the source."""
    splits = [item.split or "" for item in items]
    counts = Counter(name for names in labelled for name in names)
    pools: dict[tuple[float, float], list[int]] = {}
    for number, item in enumerate(items):
        if item.split is None:
            pools.setdefault(item.pool, []).append(number)
    for shares, numbers in pools.items():
        texts = [normalised(items[number].text) for number in numbers]
        rarest = [
            min(labelled[number], key=lambda name: (counts[name], name), default="")
            for number in numbers
        ]
        for number, split in zip(numbers, hold_out(texts, rarest, *shares), strict=True):
            splits[number] = split
    rows = [
        LabelledRow(item.text, names, SPLITS.index(split), item.cell.where, item.confidence)
        for item, names, split in zip(items, labelled, splits, strict=True)
    ]
    return sorted(rows, key=lambda row: row.split)


def _check_labels(rows: Sequence[LabelledRow], names: Names, rules: LabelsRecipe) -> None:
    for number, split in enumerate(SPLITS):
        of_split = [row for row in rows if row.split == number]
        check_known(
            [row.labels for row in of_split], [row.where for row in of_split], names, split, rules
        )


def _splits(
    rows: Sequence[LabelledRow], labels: Labels, repeats: Repeats, data: DataRecipe
) -> tuple[dict[str, LabelledSplit], int]:
    """The splits, and how many repeated texts were dropped from validation and test."""
    splits, dropped = {}, 0
    is_repeated = repeats.kind_R != NONE
    for number, name in enumerate(SPLITS):
        chosen = kept = [place for place, row in enumerate(rows) if row.split == number]
        if data.duplicates == "drop" and name != "train":
            kept = [place for place in chosen if not is_repeated[place]]
        dropped += len(chosen) - len(kept)
        if chosen:
            splits[name] = LabelledSplit(
                tuple(rows[place].text for place in kept),
                targets_of([rows[place].labels for place in kept], labels),
                tuple(rows[place].where for place in kept),
                is_repeated[kept],
            )
    return splits, dropped


def _check_splits(
    splits: Mapping[str, LabelledSplit], labels: Labels, data: DataRecipe, rules: LabelsRecipe
) -> list[str]:
    """Check that every split holds texts that repeat none of an earlier split, and of two labels
    both. Return notes about other labels that a split lacks.

    A test split that the source brings may lack one of two labels: nothing is chosen by it.

    Raises:
        DataError: says the numbers and what to change.
    """
    notes = []
    for name in SPLITS:
        if name == "test" and data.test == 0 and name not in splits:
            continue
        missing, absent = "", list(labels.names)
        if name in splits:
            fresh_E = _is_fresh(name, splits[name])
            counts = label_counts(splits[name].targets[fresh_E], labels)
            absent = [label for label, count in zip(labels.names, counts, strict=True) if not count]
        if name not in splits or not fresh_E.any():
            missing = "text"
        elif absent and labels.positive is not None and (name != "test" or data.test > 0):
            missing = f"text with the label {absent[0]!r}"
        if missing:
            raise DataError(
                f"the {name} split would hold no {missing}{_numbers(splits, labels)}."
                f" {_remedy(labels, data, rules)}"
            )
        if absent and name != "train":
            notes.append(
                f"{name}: no text has the label {listed(absent, _LISTED)} ({len(absent)} of"
                f" {len(labels.names)} labels), so its scores there cannot be measured"
            )
    return notes


def _is_fresh(name: str, split: LabelledSplit) -> Bools:
    """Whether each text repeats none of an earlier split."""
    if name == "train":
        return np.ones(len(split.texts), dtype=bool)
    return ~split.is_repeated_E


def _numbers(splits: Mapping[str, LabelledSplit], labels: Labels) -> str:
    described = []
    for name, split in splits.items():
        counts = zip(labels.names, label_counts(split.targets, labels), strict=True)
        shown = ", ".join(f"{label} {count:,}" for label, count in islice(counts, _LISTED))
        repeated = int((~_is_fresh(name, split)).sum())
        repeating = clause(repeated, f", of which {repeated:,} repeat texts before them")
        described.append(f"{name} {len(split.texts):,} texts ({shown}){repeating}")
    has_repeats = any(split.is_repeated_E.any() for split in splits.values())
    apart = clause(has_repeats, " when texts that repeat others are left out")
    return f"{apart}: {'; '.join(described)}"


def _remedy(labels: Labels, data: DataRecipe, rules: LabelsRecipe) -> str:
    needs, near = "texts", ""
    if labels.positive is not None:
        needs = "both labels"
    if rules.near_duplicates:
        near = (
            ", or look for near duplicates less widely (labels.near_duplicates, now"
            f" {rules.near_duplicates:g})"
        )
    shares = f"data.validation={data.validation:g} and data.test={data.test:g}"
    return f"It needs {needs}: add texts, hold out other shares (now {shares}){near}."


def _labels_report(labels: Labels, rules: LabelsRecipe) -> JsonDict:
    return {
        "names": list(labels.names),
        "multiple": labels.multiple,
        "positive": labels.positive_name,
        "mapping": rules.mapping,
    }


def _split_report(split: LabelledSplit, labels: Labels) -> JsonDict:
    counts, words = [len(text.split()) for text in split.texts], None
    if counts:
        words = {
            "median": float(np.median(counts)),
            "p99": float(np.percentile(counts, 99)),
            "most": max(counts),
        }
    return {
        "texts": len(split.texts),
        "labels": dict(zip(labels.names, label_counts(split.targets, labels), strict=True)),
        "characters": sum(map(len, split.texts)),
        "words": words,
    }
