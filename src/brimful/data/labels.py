"""Cells of a label column as labels: which there are, what each cell says, and targets to train on.

Suffixes: E texts, C labels.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
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
        names: In the order of the model's outputs.
        multiple: A text may have any number of them.
        positive: Of two labels the number of the one that F1, curves and thresholds are about; None
            with more, or with several per text.
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
        values = cell.value.split(rules.separator) if isinstance(cell.value, str) else cell.value
        values = values if isinstance(values, list) else [values]
        is_blank = [isinstance(value, str) and not value.strip() for value in values]
        names = (
            _name(value, cell.where)
            for value, blank in zip(values, is_blank, strict=True)
            if not blank
        )
        return tuple(dict.fromkeys(rules.mapping.get(name, name) for name in names))
    if isinstance(cell.value, list):
        raise DataError(
            f"{cell.where}: the label is a list, {short(cell.value)}, but every text has one label:"
            " labels.kind=multiple allows several."
        )
    name = _name(cell.value, cell.where)
    return (rules.mapping.get(name, name),)


def _name(value: Any, where: str) -> str:
    """A value as the name of a label: trimmed text, whole numbers without a needless `.0`, true and
    false.
    """
    if (
        value is None
        or (isinstance(value, float) and math.isnan(value))
        or (isinstance(value, str) and not value.strip())
    ):
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
    said = "lies between classes" if isinstance(value, float) else f"is a {type(value).__name__}"
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
    names = tuple(rules.names) or tuple(
        sorted(counts, key=_order if all(map(_is_whole, counts)) else str)
    )
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


def _is_whole(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _order(name: str) -> tuple[int, str]:
    return int(name), name


def check_known(
    labelled: Sequence[Names], wheres: Sequence[str], names: Names, split: str, rules: LabelsRecipe
) -> None:
    """Raises DataError where a text has a label that is not among the names: the first, how many,
    and what to do.
    """
    known = set(names)
    unknown = [
        (name, where)
        for found, where in zip(labelled, wheres, strict=True)
        for name in found
        if name not in known
    ]
    if not unknown:
        return
    name, where = unknown[0]
    shown = [one[:_COMPARED_CHARACTERS] for one in names[:MANY_LABELS]]
    listed = ", ".join(shown[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
    origin = "labels.names lists" if rules.names else "training has"
    add = "add it to labels.names" if rules.names else "add training texts that have it"
    raise DataError(
        f"{where}: unknown label {short(name)} in"
        f" {split}{did_you_mean(name[:_COMPARED_CHARACTERS], shown)} The labels that {origin}:"
        f" {listed}. {len(unknown):,} of {len(labelled):,} rows have such a label. Map it to a"
        " known one"
        f" (labels.mapping='{json.dumps({name[:_COMPARED_CHARACTERS]: shown[0]}, ensure_ascii=False)}'),"
        f" {add}, or remove the rows."
    )


def positive_of(
    names: Names, counts: Mapping[str, int], rules: LabelsRecipe, *, multiple: bool
) -> int | None:
    """The number of the positive label: the recipe's, else the rarer in training, the second where
    both are equally frequent; None without two.

    Raises:
        DataError: the recipe names one that is not there, or there are not two.
    """
    is_binary = len(names) == 2 and not multiple
    if rules.positive is None:
        return (
            (0 if counts.get(names[0], 0) < counts.get(names[1], 0) else 1) if is_binary else None
        )
    if not is_binary:
        several = ", several per text" if multiple else ""
        raise DataError(
            f"labels.positive={rules.positive}: belongs to two labels, one per text, and there are"
            f" {len(names)}{several}. Leave it out."
        )
    if rules.positive not in names:
        raise DataError(
            "labels.positive: there is no label"
            f" {rules.positive!r}{did_you_mean(rules.positive, names)} Labels: {', '.join(names)}."
        )
    return names.index(rules.positive)


def targets_of(labelled: Sequence[Names], labels: Labels) -> NDArray[Any]:
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


def label_counts(targets: NDArray[Any], labels: Labels) -> list[int]:
    """How many texts have each label; targets as `targets_of` makes them."""
    counts_C = (
        targets.sum(axis=0, dtype=np.int64)
        if labels.multiple
        else np.bincount(targets, minlength=len(labels.names))
    )
    counts: list[int] = counts_C.tolist()
    return counts


def naming_notes(
    cells: Sequence[LabelCell], labels: Labels, rules: LabelsRecipe, counts: Mapping[str, int]
) -> list[str]:
    """Which number is which label, what was mapped to what, and what of the recipe had no effect.

    Args:
        cells: Of all splits.
        labels: Chosen.
        rules: Mapping and names.
        counts: Of training.
    """
    notes = []
    mapped = "".join(f"; {one} -> {other}" for one, other in rules.mapping.items())
    if len(labels.names) <= _LISTED:
        notes.append(
            "labels:"
            f" {', '.join(f'{number} = {name}' for number, name in enumerate(labels.names))}{mapped}"
        )
    elif mapped:
        notes.append(f"labels: {mapped[2:]}")
    by_case: dict[str, list[str]] = {}
    for name in labels.names:
        by_case.setdefault(name.casefold(), []).append(name)
    for alike in (names for names in by_case.values() if len(names) > 1):
        one, *others = sorted(alike, key=lambda name: -counts.get(name, 0))
        merged = ", ".join(f"{other}: {one}" for other in others)
        notes.append(
            f"labels that differ only in case are labels of their own: {', '.join(alike)}. To merge"
            f" them: labels.mapping='{{{merged}}}'"
        )
    if labels.positive is not None and rules.positive is None:
        name, other = labels.names[labels.positive], labels.names[1 - labels.positive]
        why = (
            "the rarer one in training"
            if counts.get(name, 0) < counts.get(other, 0)
            else "both are equally frequent in training"
        )
        notes.append(
            f"positive label: {name}, {why}"
            f" ({counts.get(name, 0) / max(sum(counts.values()), 1):.1%} of the texts)"
        )
    plain = rules.model_copy(update={"mapping": {}})
    if rules.mapping:
        seen = {
            name for cell in cells for name in names_in_cell(cell, plain, multiple=labels.multiple)
        }
        if unused := [name for name in rules.mapping if name not in seen]:
            notes.append(f"labels.mapping: no row has the label {', '.join(map(repr, unused))}")
    if absent := [name for name in labels.names if not counts.get(name)]:
        notes.append(f"no training text has the label {', '.join(absent)}: it cannot be learned")
    return notes
