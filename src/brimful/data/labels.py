"""Label columns: the labels there are, the labels of each cell, and targets to train on.

Suffixes: E texts, C labels.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.base.arrays import Array
from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.text import clause, listed
from brimful.base.types import Counts
from brimful.base.warning_codes import all_coded
from brimful.data.rows import short
from brimful.recipe import LabelsRecipe

Names = tuple[str, ...]
"""The labels of one text: exactly one, or, with several labels, any number."""
MANY_LABELS = 100
"""More labels than this, most rows with another one, are taken for texts in the wrong column."""
_LISTED = 12
_LONGEST = 200
"""Characters of a label."""
_COMPARED_CHARACTERS = 60


@dataclass(frozen=True)
class Labels:
    """What texts are classified into.

    Attributes:
        names: Names in the order of the model's outputs.
        multiple: A text may have any number of them.
        positive: Number of the label, of two, that F1, curves and thresholds are about; None with
            more, or with several per text.
    """

    names: Names
    multiple: bool = False
    positive: int | None = None

    @property
    def is_multiclass(self) -> bool:
        """Whether a text gets the likeliest of more than two labels, without a threshold."""
        return self.positive is None and not self.multiple

    @property
    def with_threshold(self) -> tuple[int, ...]:
        """Numbers of the labels that are given from a threshold on: the positive of two labels,
        every label with several per text, otherwise none.
        """
        if self.multiple:
            return tuple(range(len(self.names)))
        if self.positive is not None:
            return (self.positive,)
        return ()

    @property
    def decisions_per_text(self) -> int:
        """Yes-or-no decisions with several labels per text, otherwise 1."""
        if self.multiple:
            return len(self.names)
        return 1

    @property
    def positive_name(self) -> str | None:
        """The positive label's name; None where there is none."""
        if self.positive is None:
            return None
        return self.names[self.positive]


@dataclass(frozen=True)
class LabelCell:
    """One cell of the label column, and where it stands."""

    value: Any
    where: str


def are_lists(cells: Sequence[LabelCell], rules: LabelsRecipe) -> bool:
    """Whether texts have several labels: as the recipe says, or because cells are lists."""
    return rules.kind == "multiple" or (
        rules.kind == "auto" and any(isinstance(cell.value, list) for cell in cells)
    )


def names_in_cell(cell: LabelCell, rules: LabelsRecipe, *, multiple: bool) -> Names:
    """The labels a cell says, spelt as the mapping has them, each once.

    Raises:
        DataError: the cell is empty, holds a list where there is one label per text, or something
            that names no class.
    """
    if multiple:
        values = cell.value
        if isinstance(values, str):
            values = values.split(rules.separator)
        if not isinstance(values, list):
            values = [values]
        names = [_name(value, cell.where) for value in values if not _is_blank(value)]
        return tuple(dict.fromkeys(rules.mapping.get(name, name) for name in names))
    if isinstance(cell.value, list):
        raise DataError(
            f"{cell.where}: the label is a list, {short(cell.value)}, but every text has one label:"
            " labels.kind=multiple allows several."
        )
    name = _name(cell.value, cell.where)
    return (rules.mapping.get(name, name),)


def _is_blank(value: object) -> bool:
    return isinstance(value, str) and not value.strip()


def _name(value: Any, where: str) -> str:
    """A value as the name of a label: trimmed text, whole numbers without a needless `.0`, true and
    false.
    """
    if value is None or _is_blank(value) or (isinstance(value, float) and math.isnan(value)):
        raise DataError(
            f"{where}: the label is missing ({short(value)}). Fill it in, or remove the row."
        )
    if isinstance(value, str):
        if len(value) > _LONGEST:
            raise DataError(
                f"{where}: the label {short(value)} has {len(value):,} characters, more than"
                f" {_LONGEST}: is data.label_column the right column?"
            )
        return value.strip()
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return str(int(value))
    said = f"is a {type(value).__name__}"
    if isinstance(value, float):
        said = "lies between classes"
    raise DataError(
        f"{where}: the label {short(value)} {said}; expected text, a whole number, true or false."
        " Is data.label_column the right column?"
    )


def choose_names(
    training: Sequence[Names],
    rules: LabelsRecipe,
    columns: tuple[object, object],
    *,
    multiple: bool,
) -> Names:
    """The recipe's labels, else those of training: whole numbers by size, others by alphabet.

    Args:
        training: The labels of each training text.
        rules: Names, if given.
        columns: data.text_column and data.label_column, for errors.
        multiple: Texts may have several; one label, had by some, will do.

    Raises:
        DataError: a single class, or so many labels that the column must hold texts.
    """
    counts = Counter(name for names in training for name in names)
    if len(counts) > max(MANY_LABELS, len(training) / 2) and not rules.names:
        raise DataError(
            f"the label column {columns[1]!r} has {len(counts):,} different values in"
            f" {len(training):,} rows, such as {short(next(iter(counts)))}: texts rather than"
            f" labels. Are the columns the wrong way round? Now data.text_column={columns[0]} and"
            f" data.label_column={columns[1]}."
        )
    names = tuple(rules.names or _sorted(counts))
    if not multiple and len(counts) < 2:
        only = next(iter(counts))
        raise DataError(
            f"all {len(training):,} training texts have the label {short(only)}: there is nothing"
            " to tell apart. Add texts of another class, or look at data.label_column and"
            " labels.mapping."
        )
    if not names:
        raise DataError(
            f"none of the {len(training):,} training texts has a label. Look at data.label_column"
            " and labels.separator."
        )
    return names


def _sorted(names: Iterable[str]) -> list[str]:
    """Labels by alphabet; where all are whole numbers, by size."""
    names = sorted(names)
    if all(name.removeprefix("-").isdecimal() for name in names):
        names.sort(key=int)
    return names


def check_known(
    labelled: Sequence[Names], wheres: Sequence[str], names: Names, split: str, rules: LabelsRecipe
) -> None:
    """Raise DataError if a text has a label that is not among the names. The message shows the
    first such label, how many rows have one, and what to do.
    """
    known = set(names)
    unknown = [
        (next(name for name in of_row if name not in known), where)
        for of_row, where in zip(labelled, wheres, strict=True)
        if not known.issuperset(of_row)
    ]
    if not unknown:
        return
    label, where = unknown[0]
    name = label[:_COMPARED_CHARACTERS]
    shown = [one[:_COMPARED_CHARACTERS] for one in names[:MANY_LABELS]]
    origin, add = "training has", "add training texts that have it"
    if rules.names:
        origin, add = "labels.names lists", "add it to labels.names"
    mapping = json.dumps({name: shown[0]}, ensure_ascii=False)
    raise DataError(
        f"{where}: unknown label {short(label)} in {split}{did_you_mean(name, shown)} The labels"
        f" that {origin}: {listed(shown, _LISTED)}. {len(unknown):,} of {len(labelled):,} rows have"
        f" such a label. Map it to a known one (labels.mapping='{mapping}'), {add}, or remove the"
        " rows."
    )


def positive_of(names: Names, counts: Counts, rules: LabelsRecipe, *, multiple: bool) -> int | None:
    """The number of the positive label: the recipe's, else the rarer in training, the second where
    both are equally frequent; None without two.

    Raises:
        DataError: the recipe names one that is not there, or there are not two.
    """
    is_binary = len(names) == 2 and not multiple
    if rules.positive is None:
        if not is_binary:
            return None
        return int(counts.get(names[0], 0) >= counts.get(names[1], 0))
    if not is_binary:
        raise DataError(
            f"labels.positive={rules.positive}: belongs to two labels, one per text, and there are"
            f" {len(names)}{clause(multiple, ', several per text')}. Leave it out."
        )
    if rules.positive not in names:
        raise DataError(
            "labels.positive: there is no label"
            f" {rules.positive!r}{did_you_mean(rules.positive, names)} Labels: {', '.join(names)}."
        )
    return names.index(rules.positive)


def targets_of(labelled: Sequence[Names], labels: Labels) -> Array:
    """int64 [E], numbers of labels; of several labels per text float32 [E, C], 1 for each that a
    text has.
    """
    number = {name: place for place, name in enumerate(labels.names)}
    if not labels.multiple:
        return np.array([number[names[0]] for names in labelled], dtype=np.int64)
    targets_EC = np.zeros((len(labelled), len(labels.names)), dtype=np.float32)
    for row, names in enumerate(labelled):
        targets_EC[row, [number[name] for name in names]] = 1
    return targets_EC


def label_counts(targets: Array, labels: Labels) -> list[int]:
    """How many texts have each label; targets as `targets_of` makes them."""
    if labels.multiple:
        counts_C = targets.sum(axis=0, dtype=np.int64)
    else:
        counts_C = np.bincount(targets, minlength=len(labels.names))
    counts: list[int] = counts_C.tolist()
    return counts


def naming_notes(
    cells: Sequence[LabelCell], labels: Labels, rules: LabelsRecipe, counts: Counts
) -> list[str]:
    """Return coded sentences about the labels' numbers, the mapping, parts of the recipe without
    effect, and labels that may be mistaken.

    Args:
        cells: The cells of all splits.
        labels: Chosen.
        rules: Mapping and names.
        counts: Counts of labels in training.
    """
    notes, doubts = [], [*_case_notes(labels, counts)]
    told = [f"{old} -> {new}" for old, new in rules.mapping.items()]
    if len(labels.names) <= _LISTED:
        numbers = ", ".join(f"{number} = {name}" for number, name in enumerate(labels.names))
        told = [numbers, *told]
    if told:
        notes.append(f"labels: {'; '.join(told)}")
    if labels.positive is not None and rules.positive is None:
        notes.append(_positive_note(labels, labels.positive, counts))
    if rules.mapping:
        plain, seen = rules.model_copy(update={"mapping": {}}), set[str]()
        for cell in cells:
            seen.update(names_in_cell(cell, plain, multiple=labels.multiple))
        if unused := [repr(name) for name in rules.mapping if name not in seen]:
            doubts.append(f"labels.mapping: no row has the label {', '.join(unused)}")
    if absent := [name for name in labels.names if not counts.get(name)]:
        doubts.append(f"no training text has the label {', '.join(absent)}: it cannot be learned")
    return [*all_coded("B219", doubts), *all_coded("B207", notes)]


def _case_notes(labels: Labels, counts: Counts) -> list[str]:
    """A sentence about the labels that differ only in case, if there are such."""
    by_case: dict[str, list[str]] = {}
    for name in labels.names:
        by_case.setdefault(name.casefold(), []).append(name)
    alike, merged = [], []
    for names in by_case.values():
        one, *others = sorted(names, key=lambda name: -counts.get(name, 0))
        alike += names if others else []
        merged += [f"{other}: {one}" for other in others]
    if not merged:
        return []
    return [
        f"labels that differ only in case are labels of their own: {', '.join(alike)}. To merge"
        f" them: labels.mapping='{{{', '.join(merged)}}}'"
    ]


def _positive_note(labels: Labels, positive: int, counts: Counts) -> str:
    name, other = labels.names[positive], labels.names[1 - positive]
    why = "both are equally frequent in training"
    if counts.get(name, 0) < counts.get(other, 0):
        why = "the rarer one in training"
    share = counts.get(name, 0) / max(sum(counts.values()), 1)
    return f"positive label: {name}, {why} ({share:.1%} of the texts)"
