"""Bytes of a text file to lines of text: the encoding that is asked for, or, where none is known,
the one that fits the whole file.
"""

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.text import clause
from brimful.base.units import format_bytes
from brimful.recipe.data import PACKED_ENDS

AUTO, UTF_8, FALLBACK = "auto", "utf-8", "cp1252"
BOM = codecs.BOM_UTF8
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, UTF_8),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""Byte order marks; those of UTF-32 begin like UTF-16's."""
_LOOKED_AT_BYTES = 4096
MOST_LINE_BYTES = 1 << 28
UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""What reading a damaged or missing file raises."""
_UNPACKERS = {".gz": "gunzip", ".bz2": "bunzip2", ".xz": "unxz", ".zst": "unzstd"}
_MOST_UNPACKED, _MOST_UNPACKED_BYTES = 100, 1 << 24
"""What was read of a compressed file may unpack to so many times its size, or to so many bytes,
whichever is more. Text shrinks to a third or a tenth.
"""
_NUL_SHARE = 0.4
"""So many of the bytes in even, or in odd places are NUL: UTF-16 of mostly Latin text, without a
mark.
"""
_COMMON = (
    "utf-8",
    "utf-16",
    "latin-1",
    "cp1252",
    "cp1250",
    "cp1251",
    "cp1258",
    "gb18030",
    "shift_jis",
    "euc_kr",
    "big5",
    "koi8_r",
)
_CONVERT = "iconv -f latin1 -t utf-8 FILE > FILE.utf8"


@dataclass(frozen=True)
class Detected:
    """The encoding of a whole file, and a note on how it was detected; None: plain UTF-8."""

    encoding: str
    note: str | None = None


def display_name(encoding: str) -> str:
    """Return an encoding's name as messages have it."""
    if encoding == UTF_8:
        return "UTF-8"
    return encoding


def check_encoding(name: str) -> None:
    """Raise DataError if Python has no such encoding of text."""
    try:
        if name != AUTO:
            "".encode(name)
    except LookupError as error:
        raise DataError(
            f"data.encoding: unknown encoding {name!r}{did_you_mean(name, _COMMON)} Common:"
            f" {', '.join(_COMMON)}, or auto."
        ) from error


def detect(path: Path) -> Detected:
    """Read the whole file: its byte order mark decides, else UTF-8 where all of it is, else UTF-16
    by its NUL bytes, else cp1252.
    """
    if (marked := detect_mark(path)) is not None:
        return marked
    with open_raw(path) as file:
        if (found := _utf_16_by_nul(file.read(_LOOKED_AT_BYTES))) is not None:
            return Detected(
                found, f"{path} is read as {found}: every other byte of its beginning is NUL"
            )
    with open_raw(path) as file:
        return _by_lines(path, file)


def detect_mark(path: Path) -> Detected | None:
    """What a file's byte order mark says, which no UTF-8 begins with but its own; None: none."""
    with open_raw(path) as file:
        start = file.read(4)
    marked = next((name for mark, name in _MARKS if start.startswith(mark)), None)
    if marked is None:
        return None
    return Detected(
        marked, f"{path} is read as {marked}, by its byte order mark" if marked != UTF_8 else None
    )


def _utf_16_by_nul(start: bytes) -> str | None:
    for name, place in (("utf-16-le", 1), ("utf-16-be", 0)):
        half = start[place::2]
        if half and half.count(0) > _NUL_SHARE * len(half) > 4 * start[1 - place :: 2].count(0):
            return name
    return None


def _by_lines(path: Path, file: BinaryIO) -> Detected:
    """Return UTF-8 if every line is UTF-8, else cp1252, with a note on the first line that is not
    UTF-8.
    """
    num_utf_8, num_other, first = 0, 0, ""
    for number, raw in enumerate(_whole_lines(file, str(path)), start=1):
        if raw.isascii():
            continue
        try:
            raw.decode(UTF_8)
            num_utf_8 += 1
        except UnicodeDecodeError as error:
            first = first or f"byte {error.start + 1} of line {number} is 0x{raw[error.start]:02x}"
            num_other += 1
    if not num_other:
        return Detected(UTF_8)
    mixed = (
        f"; but it mixes encodings: {num_utf_8} of the {num_utf_8 + num_other} lines that are not"
        " ASCII are UTF-8 and come out garbled. Convert the other lines to UTF-8"
    )
    return Detected(
        FALLBACK,
        f"{path} is read as {FALLBACK}, because it is not UTF-8 ({first})"
        f"{clause(num_utf_8, mixed)}. data.encoding=NAME sets another encoding",
    )


def open_raw(path: Path) -> BinaryIO:
    """The bytes of a file, unpacked where its name says how it is compressed."""
    if (end := path.suffix.lower()) in PACKED_ENDS:
        return io.BufferedReader(_Unpacked(path, _OPENERS[end]))
    return open(path, "rb")


def _open_zst(packed: BinaryIO) -> Any:
    # Python's own library has it from 3.14 on; half a second to import, which only such files need.
    import pyarrow  # noqa: PLC0415

    return pyarrow.input_stream(packed, compression="zstd")


_OPENERS: Mapping[str, Callable[[BinaryIO], Any]] = MappingProxyType(
    {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": _open_zst}
)


class _Unpacked(io.RawIOBase):
    """The content of a compressed file, as far as its size is one that text has.

    Raises (when it is read):
        DataError: what was read unpacks to more.
    """

    def __init__(self, path: Path, open_unpacked: Callable[[BinaryIO], Any]) -> None:
        self._path = path
        self._packed = open(path, "rb")  # noqa: SIM115  # closed with this
        self._file = open_unpacked(self._packed)
        self._num_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        num_bytes: int = self._file.readinto(buffer)
        self._num_bytes += num_bytes
        most_bytes = max(_MOST_UNPACKED_BYTES, _MOST_UNPACKED * self._packed.tell())
        if self._num_bytes > most_bytes:
            raise DataError(
                f"{self._path} unpacks to more than {format_bytes(most_bytes)}, {_MOST_UNPACKED}"
                " times what was read of it or more, which no text does. If it is meant to, unpack"
                f" it ({_UNPACKERS[self._path.suffix.lower()]}) and name the unpacked file."
            )
        return num_bytes

    def close(self) -> None:
        self._file.close()
        self._packed.close()
        super().close()


def _whole_lines(file: BinaryIO, what: str) -> Iterator[bytes]:
    """Lines of a file, none of them longer than memory should hold at once."""
    number = 0
    while line := file.readline(MOST_LINE_BYTES + 1):
        number += 1
        if len(line) > MOST_LINE_BYTES:
            raise DataError(
                f"{what}:{number}: the line is longer than {format_bytes(MOST_LINE_BYTES)}, which"
                " no text or row is. Write one row a line; plain text can be broken into lines, for"
                " example: fold -s FILE > FILE.lines"
            )
        yield line


def decoded_lines(path: Path, encoding: str = UTF_8) -> Iterator[str]:
    """Lines without a byte order mark, CRLF made LF.

    Args:
        path: Text, also compressed.
        encoding: A codec of Python, or auto; a file's own mark comes before UTF-8.

    Raises:
        DataError: a byte that the encoding does not have, by line and place; an unknown encoding.
    """
    if encoding == AUTO:
        encoding = detect(path).encoding
    elif encoding == UTF_8 and (marked := detect_mark(path)) is not None:
        encoding = marked.encoding
    with open_raw(path) as file:
        yield from lines_of_bytes(file, encoding, str(path))


def lines_of_bytes(file: BinaryIO, encoding: str, what: str) -> Iterator[str]:
    """The same of an open file; `what` is what errors call it. It is read once, so its encoding
    cannot be `auto`.
    """
    if encoding == AUTO:
        raise DataError(
            f"{what}: an encoding is only found in a file, which can be read twice. Name it:"
            " data.encoding=utf-8, for example."
        )
    check_encoding(encoding)
    if "\n".encode(encoding) != b"\n":
        yield from _lines_of_wide(file.read(), encoding, what)
        return
    for number, raw in enumerate(_whole_lines(file, what), start=1):
        line = raw
        if number == 1 and codecs.lookup(encoding).name == UTF_8:
            line = raw.removeprefix(BOM)
        try:
            text = line.decode(encoding)
        except UnicodeDecodeError as error:
            raise _undecodable(
                what, number, error.start + len(raw) - len(line), raw, encoding
            ) from error
        yield _with_lf(text)


def _with_lf(line: str) -> str:
    if line.endswith("\r\n"):
        return f"{line[:-2]}\n"
    return line


def _lines_of_wide(raw: bytes, encoding: str, what: str) -> Iterator[str]:
    """For encodings in which a line break is more than one byte, or another: the file is decoded in
    one go.
    """
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        number = raw[: error.start].decode(encoding, errors="replace").count("\n") + 1
        raise DataError(
            f"{what}:{number}: byte {error.start + 1} of the file is not {encoding}"
            f" ({error.reason}). Is the file whole, and is data.encoding right?"
        ) from error
    for line in io.StringIO(text.removeprefix("\ufeff"), newline="\n"):
        yield _with_lf(line)


def _undecodable(what: str, number: int, place: int, raw: bytes, encoding: str) -> DataError:
    said = (
        f"{what}:{number}: byte {place + 1} of the line is 0x{raw[place]:02x}, which is not"
        f" {display_name(encoding)}."
    )
    marked = next((codec for mark, codec in _MARKS if raw.startswith(mark)), UTF_8)
    if number == 1 and marked != UTF_8:
        return DataError(
            f"{said} The file begins as {marked.upper()} does: data.encoding={marked}."
        )
    return DataError(
        f"{said} If the whole file has another encoding, name it (data.encoding=latin-1, for"
        " example) or let it be found (data.encoding=auto); if only some lines have, convert them,"
        f" for example: {_CONVERT}"
    )
