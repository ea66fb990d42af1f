"""How a file is to be read where the recipe leaves it open: encoding and delimiter, from a look at
its bytes.
"""

from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from brimful.base.errors import DataError
from brimful.data.encodings import AUTO, UNREADABLE, UTF_8, decoded_lines, detect, detect_mark
from brimful.data.readers import Reading
from brimful.data.tables import LOOKED_AT_LINES, delimiter_of


def detected(path: Path, reading: Reading) -> tuple[Reading, list[str]]:
    """Return how to read one file, with what is detected where the recipe names nothing: encoding
    and delimiter, and notes about them.
    """
    encoded, notes = with_encoding(path, reading)
    if reading.format_of(path) != ".csv" or reading.delimiter != AUTO:
        return encoded, notes
    with suppress(DataError):  # told when the file is read
        beginning = islice(decoded_lines(path, encoded.encoding), LOOKED_AT_LINES)
        if (mark := delimiter_of([*beginning])) != ",":
            shown = {"\t": "a tab"}.get(mark, repr(mark))
            notes = [
                *notes,
                f"{path}: {shown} stands between fields; data.delimiter=',' changes it",
            ]
            return replace(encoded, delimiter=mark), notes
    return encoded, notes


def with_encoding(path: Path, reading: Reading) -> tuple[Reading, list[str]]:
    """Return the same with the encoding alone."""
    suffix = reading.format_of(path)
    if reading.encoding not in {AUTO, UTF_8} or suffix == ".parquet":
        return reading, []
    try:
        found = detect(path) if reading.encoding == AUTO else detect_mark(path)
    except UNREADABLE as error:
        raise DataError(
            f"{path} cannot be read: {error}. Is the file whole and readable?"
        ) from error
    notes = []
    if found is not None:
        reading = replace(reading, encoding=found.encoding)
        notes = [note for note in [found.note] if note]
    return reading, notes
