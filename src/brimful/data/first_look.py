"""What is wrong with data at first sight, found within a second of starting: paths, columns, roles,
labels. No model, no torch, and nothing is downloaded.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from brimful.data import hub
from brimful.data.account import Account
from brimful.data.rows import LABEL_KEY, Row, cell_of, text_or_empty
from brimful.data.sources import AnySource, Items, is_local, open_rows, open_source
from brimful.recipe import DataRecipe, Recipe
from brimful.recipe.data import unpacked_name

_ITEMS, _SECONDS = 100, 0.5
"""So much of each split is looked at, whichever comes first."""
_WHOLE_BYTES = 1 << 25
_BY_ROWS = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow")
"""Files that are read row by row; others of more than 32 MiB are not looked into."""


def first_look(recipe: Recipe) -> None:
    """Read the first rows of a recipe's local data as its kind of run will, and ask whether its hub
    data sets exist.

    Raises:
        DataError: a path, a column, a value or a data set is missing or wrong.
    """
    data = recipe.data
    for path in data.paths:
        if not is_local(path):
            hub.check_there(path, data.revision)
    paths = [path for path in data.paths if is_local(path)]
    data = data.model_copy(update={"path": paths})
    rows = recipe.kind.first_rows
    if paths and rows == "documents":
        _look_at_documents(data)
    elif paths and rows == "labels":
        _look_at_labels(recipe, data)
    elif paths and rows:
        from brimful.data.preferences import reader_of  # noqa: PLC0415 - documents do not need it

        read, _ = reader_of(recipe)
        _read_beginnings(open_rows(data), lambda each: read(each, data, Account()))


def _look_at_documents(data: DataRecipe) -> None:
    source = open_source(data)
    for part in source.parts:
        if part.is_builtin:
            _ = part.fingerprint  # raises where it cannot be made; making it takes seconds
    local = tuple(part for part in source.parts if not part.is_builtin)
    _read_beginnings(replace(source, parts=local), lambda documents: documents)


def _look_at_labels(recipe: Recipe, data: DataRecipe) -> None:
    # Brings numpy.
    from brimful.data.labels import LabelCell, are_lists, names_in_cell  # noqa: PLC0415

    def cells(rows: Iterable[Row]) -> Iterator[LabelCell]:
        for row in rows:
            text = text_or_empty(row.columns, data.text_column, row.where)
            value = cell_of(row.columns, data.label_column, row.where, LABEL_KEY)
            cell = LabelCell(value, row.where)
            if text.strip():
                rules = recipe.label_rules
                names_in_cell(cell, rules, multiple=are_lists([cell], rules))
            yield cell

    _read_beginnings(open_rows(data), cells)


def _read_beginnings(
    source: AnySource[Items], understood: Callable[[Items], Iterable[object]]
) -> None:
    """Read the first items of every split, and drop them."""
    for part in source.parts:
        if any(map(_is_long, part.files[:_ITEMS])):
            continue
        for items in part.splits.values():
            until_s = time.monotonic() + _SECONDS
            for _ in islice(understood(items), _ITEMS):
                if time.monotonic() > until_s:
                    break


def _is_long(path: Path) -> bool:
    name = unpacked_name(path.name)
    return not name.endswith(_BY_ROWS) and path.stat().st_size > _WHOLE_BYTES
