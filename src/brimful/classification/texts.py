"""Texts to classify, one after the other, out of a file or standard input, each with the columns
that stand beside it.
"""

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from brimful.base.errors import DataError, RequestError
from brimful.base.text import listed
from brimful.base.types import JsonDict
from brimful.data.encodings import AUTO, UTF_8, decoded_lines, lines_of_bytes
from brimful.data.readers import SUFFIXES, Reading, read_rows, rows_of_lines
from brimful.data.rows import Column, Row, text_or_empty
from brimful.recipe import DataRecipe, Recipe
from brimful.recipe.loading import with_changes

STANDARD_INPUT = "-"
READING_KEYS = ("data.text_column", "data.header", "data.encoding", "data.file_type")
"""What of a recipe says how a file is read; these can be changed for one prediction."""
_TEXT = "text"
_USUAL_NAMES = frozenset(
    {
        "text",
        "texts",
        "label",
        "labels",
        "id",
        "message",
        "comment",
        "sentence",
        "content",
        "review",
        "tweet",
        "category",
        "class",
        "body",
        "subject",
        "post",
        "title",
        "description",
    }
)
_TEXT_NAMES = {"text", "texts", "message", "comment", "sentence", "content", "review", "tweet"}
_TEXT_NAMES |= {"body", "post", "document", "utterance"}
"""What columns of texts are usually called."""
_NAME = re.compile(r"[^\W\d][\w.-]*")
_COMPARED_ROWS, _LISTED = 50, 20
WINDOW_TEXTS, WINDOW_CHARACTERS = 8192, 2**24
"""A window ends with so many texts, or so many characters."""


@dataclass(frozen=True)
class TextRow:
    """One text.

    Attributes:
        text: What is classified; empty where the cell holds null.
        columns: Everything in its row, as read. A line of plain text is the column `text`.
        where: Its place, for errors.
    """

    text: str
    columns: JsonDict
    where: str


@dataclass(frozen=True)
class Source:
    """Where texts come from and how they are read.

    Attributes:
        name: A path, or `-` for standard input.
        kind: Suffix of the format, such as .csv.
        reading: Header, encoding and file type.
        column: Column of the text, by name or by number.
        is_header_guessed: Nobody said of this file that it has no header; columns are counted
            because the recipe's are.
        notes: What was decided about this file, in sentences.
    """

    name: str
    kind: str
    reading: Reading
    column: Column
    is_header_guessed: bool = False
    notes: tuple[str, ...] = ()

    @property
    def is_standard_input(self) -> bool:
        """Whether it is `-`."""
        return self.name == STANDARD_INPUT

    def rows(self, standard_input: BinaryIO | None = None) -> Iterator[TextRow]:
        """The texts in their order, read as they are asked for.

        Args:
            standard_input: Read in place of the process's own.

        Raises:
            DataError: no such file or column, a broken row, bytes of another encoding; what stands
                before comes first.
        """
        what = self.name
        if self.is_standard_input:
            what = "standard input"
        if self.kind == ".txt":
            for number, line in enumerate(self._lines(standard_input), start=1):
                text = line.removesuffix("\n")
                yield TextRow(text, {_TEXT: text}, f"{what}:{number}")
            return
        if self.is_standard_input:
            found = rows_of_lines(self._lines(standard_input), what, self.kind, self.reading)
        else:
            found = read_rows(Path(self.name), self.reading)
        for number, row in enumerate(found):
            if number == 0 and self.is_header_guessed and _reads_like_names(row, []):
                raise DataError(
                    f"{row.where}: the first row reads like names of columns"
                    f" ({', '.join(row.columns.values())}), but the run's own files have none and"
                    f" its text is column {self.column}. Say which it is: data.header=true"
                    " data.text_column=NAME, or data.header=false."
                )
            text = text_or_empty(row.columns, self.column, row.where)
            yield TextRow(text, row.columns, row.where)

    def _lines(self, standard_input: BinaryIO | None) -> Iterator[str]:
        if not self.is_standard_input:
            return decoded_lines(Path(self.name), self.reading.encoding)
        return lines_of_bytes(
            standard_input or sys.stdin.buffer, self.reading.encoding, "standard input"
        )


def _refuse_unreadable(name: str, changed_keys: Sequence[str]) -> None:
    if name != STANDARD_INPUT and (not Path(name).exists() or Path(name).is_dir()):
        raise DataError(f"{name} is no file. Give a file of texts, or - for standard input.")
    if other := [key for key in changed_keys if key not in READING_KEYS]:
        raise RequestError(
            f"{other[0]}: only how the file is read can be changed here: {', '.join(READING_KEYS)}."
        )


def source_of(name: str, recipe: Recipe, changes: Sequence[str] = ()) -> Source:
    """Return how to read a file to classify: like the recipe's own data, as far as that fits, with
    these changes.

    The end of a file's name decides its format before the recipe's `data.file_type` does. A column
    given by number counts where columns have no names; otherwise the column is `text`, else the
    only one, or the only one that is called as texts usually are. Whether a table has a header is
    seen by its first rows. Standard input is UTF-8 and plain text, one text a line.

    Args:
        name: A path, or `-`.
        recipe: Recipe of the run.
        changes: `data.text_column=comment` and the like; they count whatever the file is.

    Raises:
        RequestError: a change of something else, or a format that is not known.
        RecipeError: a value that its key does not take; DataError: no such file, or no column that
            must be the text.
    """
    keys = [change.partition("=")[0] for change in changes]
    _refuse_unreadable(name, keys)
    data = with_changes(recipe, changes, "predict").data
    kind = _kind(name, data, is_said="data.file_type" in keys)
    column, is_table = data.text_column, kind in {".csv", ".tsv"}
    if isinstance(column, int) and "data.text_column" not in keys and not is_table:
        column = _TEXT
    may_have_header = data.header == AUTO or "data.header" not in keys
    has_header = data.header is True or (may_have_header and isinstance(column, str))
    encoding = data.encoding
    if name == STANDARD_INPUT and "data.encoding" not in keys:
        encoding = UTF_8
    file_type = kind.removeprefix(".")
    reading = Reading(column, has_header=has_header, encoding=encoding, file_type=file_type)
    is_said = not {"data.text_column", "data.header"}.isdisjoint(keys)
    source = Source(name, kind, reading, column, is_table and not has_header and not is_said)
    if is_said or kind == ".txt" or source.is_standard_input:
        return source
    return _fitted(source)


def _fitted(source: Source) -> Source:
    """Return the source with header and column as the first rows of the file have them."""
    first_rows: list[Row] = []
    with contextlib.suppress(DataError):
        first_rows.extend(islice(read_rows(Path(source.name), source.reading), _COMPARED_ROWS))
    if not first_rows or not isinstance(first_rows[0].columns, dict):
        return source
    first, *others = first_rows
    names, notes = list(first.columns), []
    if source.is_header_guessed:
        if not _reads_like_names(first, others):
            return source
        names = list(map(str, first.columns.values()))
        reading = replace(source.reading, has_header=True)
        source = replace(source, reading=reading, column=_TEXT, is_header_guessed=False)
        notes.append(
            "the first row is read as names of columns, which the run's own files do not have;"
            " data.header=false says otherwise"
        )
    if isinstance(source.column, str) and source.column not in names:
        found = _column_of_texts(names, source.column)
        if found is None:
            raise DataError(
                f"{source.name}: no column {source.column!r}, and none that must be the text."
                f" Columns: {listed(names, _LISTED)}. Name it with --text-column NAME, or by number"
                " (--text-column 0 and so on) in a table without a header."
            )
        notes.append(f"the text is the column {found!r}; --text-column NAME says otherwise")
        source = replace(source, column=found)
    return replace(source, notes=tuple(notes))


def _column_of_texts(names: Sequence[str], wanted: str) -> str | None:
    """Return the column with the wanted name, in upper or lower case; else the only column; else
    the only one with a usual name for texts. None where several could be meant.
    """
    for accepted in ({wanted.casefold()}, {name.casefold() for name in names}, _TEXT_NAMES):
        found = [name for name in names if name.strip().casefold() in accepted]
        if len(found) == 1:
            return found[0]
    return None


def _reads_like_names(row: Row, others: Sequence[Row]) -> bool:
    """Whether a first row names columns: a cell is what columns are usually called, or every cell
    is a single word that none of the rows below has in its column.
    """
    cells = {name: str(cell).strip() for name, cell in row.columns.items()}
    if any(cell.casefold() in _USUAL_NAMES for cell in cells.values()):
        return True
    below = {(name, str(cell).strip()) for other in others for name, cell in other.columns.items()}
    return bool(others) and all(
        _NAME.fullmatch(cell) and (name, cell) not in below for name, cell in cells.items()
    )


def _kind(name: str, data: DataRecipe, *, is_said: bool) -> str:
    if is_said and data.file_type != AUTO:
        return f".{data.file_type}"
    if name == STANDARD_INPUT:
        return ".txt"
    own = Reading().format_of(Path(name))
    if own == ".ndjson":
        return ".jsonl"
    if own is not None:
        return own
    if data.file_type != AUTO:
        return f".{data.file_type}"
    raise RequestError(
        f"{name}: its name does not say what it holds ({', '.join(SUFFIXES)}; .gz too). Say it:"
        " data.file_type=txt, for example."
    )


def windows(rows: Iterator[TextRow], num_texts: int = WINDOW_TEXTS) -> Iterator[list[TextRow]]:
    """Rows in groups of `num_texts`, fewer where the texts are long; what stands before a broken
    row comes before its error.
    """
    window: list[TextRow] = []
    characters = 0
    try:
        for row in rows:
            window.append(row)
            characters += len(row.text)
            if len(window) >= num_texts or characters >= WINDOW_CHARACTERS:
                yield window
                window, characters = [], 0
    except DataError:
        if window:
            yield window
        raise
    if window:
        yield window
