"""Tables of comma- or tab-separated fields, with a header or without: lines become rows, and a
broken row is named by its line.
"""

import csv
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from brimful.base.errors import DataError
from brimful.base.text import clause
from brimful.data.rows import Column, Row, column_name, short

AUTO = "auto"
LOOKED_AT_LINES = 100
_LOOKED_AT_ROWS = 20
_DELIMITERS = (",", ";", "\t", "|")
_MOST_QUOTED_LINES = 100
_LISTED = 20


def delimiter_of(lines: Sequence[str]) -> str:
    """What parts the fields of the first lines of a csv: a comma; or, where the first row holds
    none, the mark that parts all of these rows into as many fields, at least two.
    """
    for mark in _DELIMITERS:
        try:
            rows = [*islice(csv.reader(lines, delimiter=mark), _LOOKED_AT_ROWS)]
        except csv.Error:
            continue
        widths = {len(row) for row in rows if row}
        if (mark == "," and rows and len(rows[0]) > 1) or (len(widths) == 1 and widths != {1}):
            return mark
    return ","


def csv_rows(
    lines: Iterator[str],
    what: str,
    column: Column | None = None,
    *,
    has_header: bool = True,
    delimiter: str = AUTO,
) -> Iterator[Row]:
    """Rows of fields parted by a delimiter; a field in quotation marks may run over lines, and its
    row stands where it begins. A first line `sep=;`, as Excel writes it, is not a row.

    Args:
        lines: Each with its line break.
        what: What errors call them.
        column: Must be there; None: not looked for.
        has_header: The first row names the columns; else they are "0", "1", ...
        delimiter: One character, or auto: see `delimiter_of`.

    Raises:
        DataError: a broken row, with its line; a quotation mark that is not closed, with the line
            that opens it; NUL; a missing column.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    beginning = [*islice(lines, LOOKED_AT_LINES)]
    if delimiter == AUTO:
        delimiter = delimiter_of(beginning)
    rows = _CsvFields(chain(beginning, lines), what, delimiter)
    yield from _table_rows(rows, what, column, has_header)


def tsv_rows(
    lines: Iterator[str], what: str, column: Column | None = None, *, has_header: bool = True
) -> Iterator[Row]:
    """The same of tab-separated fields, a row a line. Quotation marks are text, unless a field
    stands wholly within properly doubled ones; such a field may run over lines.
    """
    yield from _table_rows(_tsv_fields(_without_nul(lines, what)), what, column, has_header)


def _tsv_fields(numbered: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Number of the first line and fields of each row. A line belongs to the row before if that row
    ends within quotation marks, and only with this line has as many fields as the first row.
    """
    width, waiting = 0, deque[tuple[int, str]]()
    while waiting or (waiting := deque(islice(numbered, 1))):
        number, text = waiting.popleft()
        fields = _parted(text)
        if width > 1 and len(fields) <= width and _is_open(fields[-1]):
            is_whole = len(fields) == width
            waiting.extend(islice(numbered, max(0, _MOST_QUOTED_LINES - len(waiting))))
            for count, (_, line) in enumerate(waiting, start=1):
                text += line
                if is_whole and len(_parted(line)) >= width:
                    break
                if len(joined := _parted(text)) == width and not _is_open(joined[-1]):
                    fields, waiting = joined, deque(islice(waiting, count, None))
                    break
        width = width or len(fields)
        yield number, [_unquoted(value) for value in fields] if fields != [""] else []


def _parted(text: str) -> list[str]:
    return text.removesuffix("\n").split("\t")


def _is_open(value: str) -> bool:
    """Whether a field begins with a quotation mark that nothing closes."""
    return value.startswith('"') and value.count('"') % 2 == 1


def _without_nul(lines: Iterator[str], what: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise DataError(
                f"{what}:{number}: character {line.index(chr(0)) + 1} of the line is NUL, which no"
                " text holds: the file is damaged, or UTF-16 (data.encoding=utf-16-le, or auto)."
            )
        yield number, line


def _unquoted(value: str) -> str:
    inner = value[1:-1]
    if len(value) >= 2 and value[0] == value[-1] == '"' and '"' not in inner.replace('""', ""):
        return inner.replace('""', '"')
    return value


class _CsvFields:
    """Number of the first line and fields of each row; keeps the lines of the row that is being
    read, to say what is wrong with it.
    """

    def __init__(self, lines: Iterator[str], what: str, delimiter: str) -> None:
        self._what, self._delimiter = what, delimiter
        self._lines = _without_nul(lines, what)
        self._of_row: list[str] = []
        self._first = 1

    def _next_lines(self) -> Iterator[str]:
        for _, line in self._lines:
            self._of_row.append(line)
            yield line

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(self._next_lines(), delimiter=self._delimiter, strict=True)
        while True:
            try:
                fields = next(reader, None)
            except csv.Error as error:
                raise self._broken(error) from error
            if fields is None:
                return
            if self._first == 1 and re.fullmatch("sep=.\n", "".join(self._of_row)):
                fields = []
            yield self._first, fields
            self._first += len(self._of_row)
            self._of_row.clear()

    def _broken(self, error: csv.Error) -> DataError:
        last = self._first + len(self._of_row) - 1
        if "new-line" in str(error):
            return DataError(
                f"{self._what}:{last}: a carriage return stands alone outside quotation marks. Does"
                " the file have the line ends of an old Macintosh? Convert them, for example: tr"
                " '\\r' '\\n' < FILE > FILE.csv"
            )
        place = self._first + _line_of_open_quote(self._of_row, self._delimiter)
        until = clause(last > place, f" and is not closed properly before line {last}")
        return DataError(
            f"{self._what}:{place}: not valid CSV: {error}. Look for a quotation mark that is not"
            " closed or not doubled: the last one opens in "
            f'line {place}{until}. Within quoted fields write "" for "; tab-separated files without'
            " quoting are read with data.file_type=tsv."
        )


def _line_of_open_quote(lines: list[str], delimiter: str) -> int:
    """Number, from 0, of the line in which the last quoted field begins, by the rules of RFC
    4180.
    """
    opened, in_quotes, at_start = 0, False, True
    for number, line in enumerate(lines):
        for character in line:
            if character == '"' and (in_quotes or at_start):
                if not in_quotes:
                    opened = number
                in_quotes, at_start = not in_quotes, False
            else:
                at_start = not in_quotes and character in f"{delimiter}\n"
    return opened


def _table_rows(
    rows: Iterator[tuple[int, list[str]]] | _CsvFields,
    what: str,
    column: Column | None,
    has_header: bool,
) -> Iterator[Row]:
    """Of columns that share a name the first has it; the others go by their numbers."""
    names: list[str] | None = None
    for number, fields in rows:
        if not fields:
            continue
        if names is None:
            names = _names(fields, f"{what}:{number}", column, has_header)
            if has_header:
                continue
        if len(fields) == len(names):
            yield Row(dict(zip(names, fields, strict=True)), f"{what}:{number}")
        else:
            raise _ragged(fields, names, f"{what}:{number}", has_header)


def _names(fields: list[str], where: str, column: Column | None, has_header: bool) -> list[str]:
    names = list(map(str, range(len(fields))))
    if has_header:
        for name in dict.fromkeys(fields):
            names[fields.index(name)] = name
    if column is not None:
        column_name(column, names, where)
    return names


def _ragged(fields: list[str], names: list[str], where: str, has_header: bool) -> DataError:
    expected = f"the first row has {len(names)}"
    if has_header:
        expected = f"the header names {len(names)}: {', '.join(names[:_LISTED])}"
    breaks = sum(field.count("\n") for field in fields)
    hint = f" The row runs over {breaks + 1} lines: is a quotation mark not closed?"
    return DataError(
        f"{where}: {len(fields)} fields, but {expected}. The first field is"
        f" {short(fields[0])}.{clause(breaks, hint)}"
    )
