"""One reader per file format: a file becomes rows or texts, and whatever is wrong with it is named with file, place and field."""

import csv
import gzip
import io
import json
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pyarrow
import pyarrow.parquet

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError

SUFFIXES = (".txt", ".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""What can be read; all but parquet also with .gz behind."""
BOM = b"\xef\xbb\xbf"

Value = TypeVar("Value")


class Row(NamedTuple):
    """One row of a file or data set: its columns and their values, and where it stands, for errors."""

    columns: Any
    where: str


@dataclass(frozen=True)
class Reading:
    """How files are read: part of the data's fingerprint."""

    text_column: str = "text"
    document_start: str | None = None
    max_documents: int | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


def format_of(path: Path) -> str | None:
    """The known suffix of a file, .gz left out; None when it is not a file brimful reads."""
    name = path.name.lower()
    inner = name.removesuffix(".gz")
    found = next((suffix for suffix in SUFFIXES if inner.endswith(suffix)), None)
    return None if found == ".parquet" and name.endswith(".gz") else found


def read_file(path: Path, reading: Reading) -> Iterator[str]:
    """The documents of one file, in order; lines end with \\n.

    Plain text is one document, or one per line that matches `document_start`. In the other formats a row is a document;
    with `document_start` the rows are lines of text that are joined and cut in the same way.

    Raises:
        DataError: not UTF-8, a torn or malformed line, a missing column, a value that is not text, an unreadable file.
    """
    if format_of(path) == ".txt":
        return _readable(path, documents_of_lines(_lines(path), reading.document_start))
    return _readable(path, texts_of_rows(_rows(path, reading.text_column), reading))


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of one file, in order, with all their columns.

    Raises:
        DataError: a plain text file, which has no rows; not UTF-8, a torn or malformed line, an unreadable file.
    """
    if format_of(path) == ".txt":
        raise DataError(
            f"{path} is plain text without columns, so it holds no examples of prompts and answers. Use jsonl, json, csv, tsv or parquet, "
            'for example lines like {"prompt": "...", "completion": "..."}.'
        )
    return _readable(path, _rows(path, None))


def texts_of_rows(rows: Iterable[Row], reading: Reading) -> Iterator[str]:
    """The documents in the rows' text column."""
    return documents_of_rows((text_of(columns, reading.text_column, where) for columns, where in rows), reading.document_start)


def _rows(path: Path, column: str | None) -> Iterator[Row]:
    """Rows with the one column that is asked for, or with all (None)."""
    return _ROWS[format_of(path) or ""](path, column)


def _readable(path: Path, values: Iterator[Value]) -> Iterator[Value]:
    try:
        yield from values
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}. Is the file whole and readable?") from error


def documents_of_lines(lines: Iterable[str], document_start: str | None) -> Iterator[str]:
    """Join lines into documents; a line that matches `document_start` at its beginning opens the next one."""
    if document_start is None:
        yield "".join(lines)
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


def documents_of_rows(rows: Iterable[str], document_start: str | None) -> Iterator[str]:
    """Rows are documents, or, with `document_start`, pieces of text that each end a line."""
    if document_start is None:
        yield from rows
        return
    lines = (line for row in rows for line in io.StringIO(row if row.endswith("\n") else f"{row}\n", newline="\n"))
    yield from documents_of_lines(lines, document_start)


def _lines(path: Path) -> Iterator[str]:
    """Decoded lines without a byte order mark, CRLF made LF."""
    with gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(BOM) if number == 1 else raw
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                place = error.start + len(raw) - len(line)
                raise DataError(
                    f"{path}:{number}: byte {place + 1} of the line is 0x{raw[place]:02x}, which is not UTF-8. "
                    "Convert the file first, for example: iconv -f latin1 -t utf-8 FILE > FILE.utf8"
                ) from error
            yield f"{text[:-2]}\n" if text.endswith("\r\n") else text


def text_of(row: Any, column: str, where: str) -> str:
    """The text of one row, line ends normalised.

    Raises:
        DataError: the row is not an object, has no such column, or holds something else than text there.
    """
    if not isinstance(row, dict):
        raise DataError(f"{where}: expected an object with the field {column!r}, found {type(row).__name__}.")
    if column not in row:
        raise missing_column(column, row, where)
    value = row[column]
    if not isinstance(value, str):
        raise DataError(f"{where}: field {column!r} holds {_short(value)} ({type(value).__name__}), expected text. Correct or remove the row.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{where}: field {column!r} holds half of a surrogate pair at character {error.start + 1}. Correct or remove the row."
        ) from error
    return value.replace("\r\n", "\n")


def missing_column(column: str, columns: Iterable[str], where: str) -> DataError:
    """The error for rows without the column asked for: what there is, and the nearest."""
    known = [str(name) for name in columns]
    return DataError(
        f"{where}: no column {column!r}{did_you_mean(column, known)} Columns: {', '.join(known)}. Choose one with data.text_column=NAME."
    )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _jsonl_rows(path: Path, column: str | None) -> Iterator[Row]:
    for number, line in enumerate(_lines(path), start=1):
        if line.strip():
            yield Row(_json_value(line, path, number), f"{path}:{number}")


def _json_value(line: str, path: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        torn = "" if line.endswith("\n") else " The line does not end with a line break: the file may be cut off."
        raise DataError(f"{path}:{number}: not valid JSON: {error}.{torn} Every line must hold one JSON object.") from error


def _json_rows(path: Path, column: str | None) -> Iterator[Row]:
    """A list of objects, or an object with exactly one such list; JSON lines under the name .json work too."""
    text = "".join(_lines(path))
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            yield from _jsonl_rows(path, column)
            return
        raise DataError(f"{path}:{error.lineno}: not valid JSON: {error.msg} at column {error.colno}. Is the file whole?") from error
    lists = [rows for rows in value.values() if isinstance(rows, list)] if isinstance(value, dict) else [value]
    if len(lists) != 1 or not isinstance(lists[0], list):
        raise DataError(f"{path}: expected a list of objects, or an object that holds exactly one such list, found {type(value).__name__}.")
    for number, row in enumerate(lists[0], start=1):
        yield Row(row, f"{path}, row {number}")


def _csv_rows(path: Path, column: str | None) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    reader = csv.reader(_lines(path), strict=True)
    try:
        yield from _table_rows(reader, column, path, lambda: reader.line_num)
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not valid CSV: {error}. Look for a quotation mark that is not closed.") from error


def _tsv_rows(path: Path, column: str | None) -> Iterator[Row]:
    """Tab-separated lines. Quotation marks are text, unless a field stands wholly within properly doubled ones."""
    number = 0

    def fields() -> Iterator[list[str]]:
        nonlocal number
        for number, line in enumerate(_lines(path), start=1):  # noqa: B007 - read by the caller
            yield [_unquoted(value) for value in line.removesuffix("\n").split("\t")] if line.strip("\n") else []

    yield from _table_rows(fields(), column, path, lambda: number)


def _unquoted(value: str) -> str:
    inner = value[1:-1]
    quoted = len(value) >= 2 and value[0] == value[-1] == '"' and '"' not in inner.replace('""', "")
    return inner.replace('""', '"') if quoted else value


def _table_rows(rows: Iterator[list[str]], column: str | None, path: Path, line_number: Callable[[], int]) -> Iterator[Row]:
    """Of columns that share a name, the first counts."""
    header = next(rows, None)
    if header is None:
        return
    if column is not None and column not in header:
        raise missing_column(column, header, f"{path}:1")
    for row in rows:
        if row and len(row) != len(header):
            raise DataError(f"{path}:{line_number()}: {len(row)} fields, but the header names {len(header)}: {', '.join(header)}.")
        if row:
            yield Row(dict(zip(reversed(header), reversed(row), strict=True)), f"{path}:{line_number()}")


def _parquet_rows(path: Path, column: str | None) -> Iterator[Row]:
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if column is not None and column not in names:
                raise missing_column(column, names, str(path))
            batches = file.iter_batches(batch_size=1024, columns=None if column is None else [column])
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield Row(row, f"{path}, row {number}")
    except pyarrow.ArrowException as error:
        raise DataError(f"{path} is not a readable parquet file: {error}") from error


_ROWS: dict[str, Callable[[Path, str | None], Iterator[Row]]] = {
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": _json_rows,
    ".csv": _csv_rows,
    ".tsv": _tsv_rows,
    ".parquet": _parquet_rows,
}
