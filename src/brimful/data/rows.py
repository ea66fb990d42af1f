"""A row of a file or data set, and how one of its columns is got by name or by number."""

from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.text import listed, shortened
from brimful.base.types import Json

Column = str | int
"""A column by its name, or by its number from 0."""
_SEPARATORS = {
    "\t": " Or are the fields separated by tabs (data.file_type=tsv)?",
    ";": " Or are the fields separated by semicolons (data.delimiter=';')?",
    ",": " Or are the fields separated by commas (data.file_type=csv)?",
}
_EXAMPLES = (
    {"messages"},
    {"conversations"},
    {"prompt", "completion"},
    {"instruction", "output"},
    {"question", "answer"},
)
"""Columns of rows that are no documents, but examples to tune a published model on."""
_SHOWN_NAMES, _SHOWN_CHARACTERS = 20, 40


class Row(NamedTuple):
    """One row of a file or data set: its columns and their values, where it stands, for errors, and
    further columns, whose values were not asked for.
    """

    columns: Any
    where: str
    others: Sequence[str] = ()

    def unread(self, read: Container[str]) -> list[str]:
        """The columns, but those that are read and empty ones."""
        return [*self.others, *unread_in(as_named(self.columns), read)]


TEXT_KEY, LABEL_KEY = "data.text_column", "data.label_column"
"""Keys of the recipe that name columns."""


def cell_of(row: Any, column: Column, where: str, key: str = TEXT_KEY) -> Any:
    """Return the value in a column of a row; `key` is the recipe's key for it, for errors.

    Raises:
        DataError: the row is not an object (or, for a number, a list), or has no such column.
    """
    if isinstance(column, int):
        row = as_named(row)
    if not isinstance(row, dict):
        raise DataError(
            f"{where}: expected an object with the field {column!r}, found {type(row).__name__}."
        )
    return row[column_name(column, row, where, key)]


def unread_in(columns: Json, read: Container[str]) -> list[str]:
    """The names of columns that hold something, but those that are read."""
    return [name for name, value in columns.items() if name not in read and (value or value == 0)]


def as_named(row: Any) -> Any:
    """A row; the values of a list under their numbers."""
    return dict(zip(map(str, range(len(row))), row, strict=True)) if isinstance(row, list) else row


def column_name(column: Column, columns: Iterable[str], where: str, key: str = TEXT_KEY) -> str:
    """The name of a column that is given by name or by number.

    Raises:
        DataError: there is none.
    """
    names = list(columns)
    if isinstance(column, str) and column in names:
        return column
    if isinstance(column, int) and 0 <= column < len(names):
        return names[column]
    raise missing_column(column, names, where, key)


def text_of(row: Any, column: Column, where: str) -> str:
    """The text of one row, line ends normalised.

    Raises:
        DataError: the row is not an object, has no such column, or holds something else than text
            there.
    """
    value = cell_of(row, column, where)
    if not isinstance(value, str):
        raise DataError(
            f"{where}: field {column!r} holds {short(value)} ({type(value).__name__}), expected"
            " text. Correct or remove the row."
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: field {column!r} holds half of a surrogate pair at character"
            f" {error.start + 1}. Correct or remove the row."
        ) from error
    return value.replace("\r\n", "\n")


def text_or_empty(row: Any, column: Column, where: str) -> str:
    """The same; empty where the column holds null."""
    return "" if cell_of(row, column, where) is None else text_of(row, column, where)


def missing_column(
    column: Column, columns: Iterable[str], where: str, key: str = TEXT_KEY
) -> DataError:
    """The error for rows without the column asked for: what there is, and the nearest."""
    names = [str(name) for name in columns]
    if isinstance(column, int):
        return DataError(
            f"{where}: no column number {column}: there are {len(names)}, from 0 to"
            f" {len(names) - 1}. Choose one with {key}."
        )
    known = [shortened(name, _SHOWN_CHARACTERS) for name in names]
    hints = [hint for mark, hint in _SEPARATORS.items() if len(names) == 1 and mark in names[0]]
    if key == TEXT_KEY and any(example.issubset(names) for example in _EXAMPLES):
        hints.append(" These look like examples to tune a published model on: method=sft.")
    return DataError(
        f"{where}: no column {column!r}{did_you_mean(column, known[:_SHOWN_NAMES])} Columns:"
        f" {listed(known, _SHOWN_NAMES)}. Choose one with {key}=NAME, or by number ({key}=0 and so"
        f" on) in a table without a header.{''.join(hints[:1])}"
    )


def short(value: object) -> str:
    """Return the beginning of a value as an error shows it."""
    if isinstance(value, str):
        value = value[: 2 * _SHOWN_CHARACTERS]
    return shortened(repr(value), _SHOWN_CHARACTERS)
