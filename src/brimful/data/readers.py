"""One reader per file format: a file becomes rows or texts, and whatever is wrong with it is named
with file, place and field.
"""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from brimful.base.errors import DataError
from brimful.base.strict_json import load_json
from brimful.base.text import clause
from brimful.data.encodings import AUTO, UNREADABLE, UTF_8, decoded_lines
from brimful.data.rows import Column, Row, as_named, column_name, text_of
from brimful.data.tables import csv_rows, tsv_rows
from brimful.recipe import DataRecipe
from brimful.recipe.data import TABLE_ENDS, unpacked_name

SUFFIXES = (".txt", *(f".{end}" for end in TABLE_ENDS))
"""What can be read; all but parquet also compressed."""
Value = TypeVar("Value")


@dataclass(frozen=True)
class Reading:
    """How files are read: part of the data's fingerprint.

    Attributes:
        text_column: The text column of documents; by name or by number.
        document_start: Regular expression that begins a document.
        max_documents: Stop after this many.
        has_header: Whether the first row of a csv or tsv names its columns; without names they are
            "0", "1", ...
        encoding: The encoding of text files: a codec of Python, or auto.
        file_type: Format whatever a file's name ends in; auto: by that end.
        delimiter: What stands between the fields of a csv; auto: see `tables.delimiter_of`.
        rows_of: Name of the list that is read, of a json with several.
    """

    text_column: Column = "text"
    document_start: str | None = None
    max_documents: int | None = None
    has_header: bool = True
    encoding: str = UTF_8
    file_type: str = AUTO
    delimiter: str = AUTO
    rows_of: str | None = None

    @classmethod
    def of(cls, data: DataRecipe) -> "Reading":
        """What a recipe's data section says; header auto: the first row names the columns, unless
        one is given by its number.
        """
        has_header = data.header
        if not isinstance(has_header, bool):
            by_number = isinstance(data.text_column, int) or isinstance(data.label_column, int)
            has_header = not by_number
        return cls(
            data.text_column,
            data.document_start,
            data.max_documents,
            has_header,
            data.encoding,
            data.file_type,
            data.delimiter,
        )

    def to_json(self) -> dict[str, object]:
        """For fingerprints: what was always there, and of the rest what is not as by default."""
        defaults = asdict(Reading())
        always = {"text_column", "document_start", "max_documents"}
        return {
            name: value
            for name, value in asdict(self).items()
            if name in always or value != defaults[name]
        }

    def format_of(self, path: Path) -> str | None:
        """As the function of that name, unless `file_type` says the format."""
        if self.file_type == AUTO:
            return format_of(path)
        return f".{self.file_type}"


_AS_EVER = Reading()


def format_of(path: Path) -> str | None:
    """The known suffix of a file, that of compression left out; None when it is not a file brimful
    reads.
    """
    inner = unpacked_name(path.name)
    for suffix in SUFFIXES:
        if inner.endswith(suffix) and (suffix != ".parquet" or inner == path.name.lower()):
            return suffix
    return None


def read_file(path: Path, reading: Reading, unread: dict[str, str] | None = None) -> Iterator[str]:
    """The documents of one file, in order; lines end with \\n.

    Plain text is one document, or one per line that matches `document_start`. In the other formats
    a row is a document; with `document_start` the rows are lines of text that are joined and cut in
    the same way. `unread`: as in `texts_of_rows`.

    Raises:
        DataError: wrongly encoded, a torn or malformed line, a missing column, a value that is not
            text, an unreadable file.
    """
    if reading.format_of(path) == ".txt":
        return _readable(
            path, documents_of_lines(decoded_lines(path, reading.encoding), reading.document_start)
        )
    rows = _rows(path, reading, reading.text_column)
    return _readable(path, texts_of_rows(rows, reading, unread))


def read_rows(path: Path, reading: Reading = _AS_EVER) -> Iterator[Row]:
    """The rows of one file, in order, with all their columns; of `reading`, header, encoding and
    file type count.

    Raises:
        DataError: a plain text file, which has no rows; wrongly encoded, a torn or malformed line,
            an unreadable file.
    """
    if reading.format_of(path) == ".txt":
        raise DataError(
            f"{path} is plain text without columns, so it holds no examples of prompts and answers,"
            " and no labels. Use jsonl, json, csv, tsv or parquet, for example lines like"
            ' {"prompt": "...", "completion": "..."} or {"text": "...", "label": "..."};'
            " data.file_type=tsv (or another) says what a file is whose name does not."
        )
    return _readable(path, _rows(path, reading, None))


def rows_of_lines(
    lines: Iterable[str], what: str, suffix: str, reading: Reading = _AS_EVER
) -> Iterator[Row]:
    """The same of lines that come from anywhere, such as standard input.

    Args:
        lines: Each with its line break.
        what: What errors call them, as they call a file.
        suffix: .jsonl, .json, .csv or .tsv.
        reading: Its header counts.
    """
    return _LINE_ROWS[suffix](iter(lines), what, reading, None)


def texts_of_rows(
    rows: Iterable[Row], reading: Reading, unread: dict[str, str] | None = None
) -> Iterator[str]:
    """Yield the documents in the text column of rows. Every other column that has a value is added
    to `unread`, with the place of its first value.
    """
    return documents_of_rows(
        (_text(row, reading.text_column, unread) for row in rows), reading.document_start
    )


def _text(row: Row, column: Column, unread: dict[str, str] | None) -> str:
    text = text_of(row.columns, column, row.where)
    if unread is not None:
        for name in row.unread({column_name(column, as_named(row.columns), row.where)}):
            unread.setdefault(name, row.where)
    return text


def _rows(path: Path, reading: Reading, column: Column | None) -> Iterator[Row]:
    """Rows with the one column that is asked for, or with all (None)."""
    suffix = reading.format_of(path) or ""
    if suffix == ".parquet":
        return _parquet_rows(path, column)
    return _LINE_ROWS[suffix](decoded_lines(path, reading.encoding), str(path), reading, column)


def _readable(path: Path, values: Iterator[Value]) -> Iterator[Value]:
    try:
        yield from values
    except UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read: {error}. Is the file whole and readable?"
        ) from error


def documents_of_lines(lines: Iterable[str], document_start: str | None) -> Iterator[str]:
    """Join lines into documents; a line that matches `document_start` at its beginning opens the
    next one.
    """
    if document_start is None:
        yield _joined(lines)
        return
    starts = re.compile(document_start).match
    document: list[str] = []
    for line in lines:
        if document and starts(line):
            yield "".join(document)
            document = []
        document.append(line)
    if document:
        yield "".join(document)


def _joined(lines: Iterable[str]) -> str:
    """All lines as one text; a list of them would take several times its memory."""
    encoded = bytearray()
    for line in lines:
        encoded += line.encode(UTF_8, "surrogatepass")
    return encoded.decode(UTF_8, "surrogatepass")


def documents_of_rows(rows: Iterable[str], document_start: str | None) -> Iterator[str]:
    """Rows are documents, or, with `document_start`, pieces of text that each end a line."""
    if document_start is None:
        yield from rows
        return
    texts = (f"{row.removesuffix(chr(10))}\n" for row in rows)
    lines = (line for text in texts for line in io.StringIO(text, newline="\n"))
    yield from documents_of_lines(lines, document_start)


def _jsonl_rows(
    lines: Iterator[str], what: str, reading: Reading, column: Column | None
) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield Row(_json_value(line, what, number), f"{what}:{number}")


def _json_value(line: str, what: str, number: int) -> Any:
    try:
        return load_json(line)
    except ValueError as error:
        torn = " The line does not end with a line break: the file may be cut off."
        raise DataError(
            f"{what}:{number}: not valid JSON: {error}.{clause(not line.endswith(chr(10)), torn)}"
            " Every line must hold one JSON object."
        ) from error


def _json_rows(
    lines: Iterator[str], what: str, reading: Reading, column: Column | None
) -> Iterator[Row]:
    """A list of objects, or an object with exactly one such list; JSON lines under the name .json
    work too.
    """
    text = "".join(lines)
    if not text.strip():
        return
    try:
        value = load_json(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from _jsonl_rows(io.StringIO(text, newline="\n"), what, reading, column)
            return
        raise DataError(
            f"{what}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}. Is the"
            " file whole?"
        ) from error
    except ValueError as error:
        raise DataError(f"{what}: not valid JSON: {error}. Correct the file.") from error
    lists = [value]
    if isinstance(value, dict):
        lists = [
            rows
            for name, rows in value.items()
            if isinstance(rows, list) and reading.rows_of in {None, name}
        ]
    if len(lists) != 1 or not isinstance(lists[0], list):
        raise DataError(
            f"{what}: expected a list of objects, or an object that holds exactly one such list,"
            f" found {type(value).__name__}."
        )
    for number, row in enumerate(lists[0], start=1):
        yield Row(row, f"{what}, row {number}")


def names_of_lists(path: Path, reading: Reading) -> list[str]:
    """The fields of a json file that hold lists, where the whole file is one object with several;
    none: it is something else, or cannot be read, which is told when its rows are.
    """
    with suppress(ValueError, DataError, *UNREADABLE):
        lines = decoded_lines(path, reading.encoding)
        beginning = next((line for line in lines if line.strip()), "")
        if beginning.lstrip().startswith("{"):
            value = load_json("".join([beginning, *lines]))
            return [name for name, rows in value.items() if isinstance(rows, list)]
    return []


def _parquet_rows(path: Path, column: Column | None) -> Iterator[Row]:
    # Takes a while to import, and only such files need it.
    import pyarrow.parquet  # noqa: PLC0415

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns, others = None, tuple[str, ...]()
            if isinstance(column, str):
                columns = [column_name(column, names, str(path))]
                others = tuple(name for name in names if name != column)
            batches = file.iter_batches(batch_size=1024, columns=columns)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield Row(row, f"{path}, row {number}", others)
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error


_LINE_ROWS: dict[str, Callable[[Iterator[str], str, Reading, Column | None], Iterator[Row]]] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".csv": lambda lines, what, reading, column: csv_rows(
        lines, what, column, has_header=reading.has_header, delimiter=reading.delimiter
    ),
    ".tsv": lambda lines, what, reading, column: tsv_rows(
        lines, what, column, has_header=reading.has_header
    ),
}
