"""Which files are read: tables and text of every kind, by their names and a look at their bytes;
what is left out is counted, with the reason.
"""

import codecs
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

from brimful.base.errors import DataError
from brimful.base.text import clause, listed
from brimful.data.encodings import AUTO, UNREADABLE, UTF_8, open_raw
from brimful.data.readers import Reading, read_rows
from brimful.recipe.data import unpacked_name

PLAIN = ".txt"
_KINDS: dict[str, dict[str, list[str]]] = tomllib.loads(
    resources.files(__package__).joinpath("file_kinds.toml").read_text(encoding="utf-8")
)
_TEXT_SUFFIXES = {f".{end}" for ends in _KINDS["text"].values() for end in ends}
_REASON_OF_SUFFIX = {
    f".{end}": reason for reason, ends in _KINDS["not_text"].items() for end in ends
}
_ABOUT = re.compile(
    r"(readme|licen[sc]e|copying|notice|citation|authors|contributors|changelog|changes)(?![a-z])",
    re.IGNORECASE,
)
"""Names of files that describe what lies beside them."""
_HIDDEN, _EMPTY, _BINARY, _UNREADABLE = "hidden", "empty", "binary", "unreadable"
UNKNOWN, _TOO_LARGE, _OTHER_ENCODING = "of unknown kind", "larger than 256 MiB", "not"
_WITHOUT_COLUMNS, _DESCRIBING = "plain text, which has no columns", "about the data"
_OTHER_COLUMNS = "tables without the column"
_REMEDIES = {
    "archives": "unpack them",
    "documents of other programs": "convert them to text",
    UNKNOWN: "data.file_type=txt reads every file as text",
    _TOO_LARGE: "a file is read that data.path names",
    _OTHER_ENCODING: "data.encoding=auto reads them",
    _OTHER_COLUMNS: "data.text_column names another",
}
"""By the beginning of the reason."""
_LARGEST_BYTES = 1 << 28
_LOOKED_AT_BYTES = 1 << 20
_LARGEST_PEEKED_BYTES = 1 << 24
_CONTROL_SHARE = 0.02
_CONTROL = bytes({*range(32), 127} - set(b"\t\n\r\f\v\x1b\x08"))
_LISTED = 3


@dataclass(frozen=True)
class FolderFiles:
    """The files of a folder that are read, and those that are not.

    Attributes:
        readings: How each file that is read is read, in the order of their names.
        left_out: The others by the reason; a hidden folder counts once.
    """

    readings: dict[Path, Reading]
    left_out: dict[str, list[Path]] = field(default_factory=dict)

    def note(self, folder: Path) -> str | None:
        """What is read and what is left out, with counts; None where everything is read and of the
        same kind as ever.
        """
        kinds = Counter(suffix_of(path) or "without a suffix" for path in self.readings)
        if not self.left_out and len(kinds) < 2:
            return None
        read = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(12))
        if len(kinds) > 12:
            read = f"{len(self.readings):,} files: {read}, ..."
        return f"{folder}: read {read}{clause(self.left_out, f'. Left out: {self._left_out()}')}"

    def _left_out(self) -> str:
        """The reasons, each with its count and the first few names or names' ends."""
        said = []
        for reason, paths in self.left_out.items():
            ends = Counter(suffix_of(path) for path in paths)
            names = [end for end, _ in ends.most_common() if end]
            if len(names) != 1 or len(paths) <= _LISTED:
                names = [path.name for path in paths]
            remedy = remedy_for(reason)
            named = listed(names, _LISTED) + clause(remedy, f"; {remedy}")
            said.append(f"{reason}: {len(paths):,} ({named})")
        return ", ".join(said)

    def nothing_in(self, folder: Path, readable: Sequence[str]) -> DataError:
        """The error for a folder of which nothing is read."""
        found = clause(self.left_out, f" Found: {self._left_out()}.")
        return DataError(
            f"data.path: {folder} holds no readable file.{found} Readable: {', '.join(readable)}"
            " and, for a run on documents, source code, Markdown, HTML and other text; all but"
            " .parquet also compressed (.gz, .bz2, .xz, .zst)."
        )


def remedy_for(reason: str) -> str:
    """What can be done about files that are left out for a reason; empty: nothing."""
    found = (remedy for beginning, remedy in _REMEDIES.items() if reason.startswith(beginning))
    return next(found, "")


def suffix_of(path: Path) -> str:
    """The end of a file's name in small letters, that of compression left out; empty where there is
    none, or only a number.
    """
    suffix = Path(unpacked_name(path.name)).suffix
    return clause(not suffix[1:].isdecimal(), suffix)


def reason_against(path: Path, encoding: str) -> str | None:
    """Why a file whose name is not that of a table or `.txt` is not read as text; None: it is read.

    Args:
        path: It is opened, unless its name is enough.
        encoding: Codec that it has to have, or auto.
    """
    suffix = suffix_of(path)
    if suffix in _REASON_OF_SUFFIX:
        return _REASON_OF_SUFFIX[suffix]
    try:
        size = path.stat().st_size
        with open_raw(path) as file:
            beginning = file.read(_LOOKED_AT_BYTES)
    except UNREADABLE:
        return _UNREADABLE
    if not beginning.strip():
        return _EMPTY
    reason = _look_at(beginning, encoding, whole=len(beginning) < _LOOKED_AT_BYTES)
    if reason is None and suffix and suffix not in _TEXT_SUFFIXES:
        reason = UNKNOWN
    if reason is None and size > _LARGEST_BYTES:
        reason = _TOO_LARGE
    return reason


def _look_at(beginning: bytes, encoding: str, *, whole: bool) -> str | None:
    is_wide = beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    controls = len(beginning) - len(beginning.translate(None, _CONTROL))
    if not is_wide and controls > _CONTROL_SHARE * len(beginning):
        return _BINARY
    if encoding == AUTO or (is_wide and encoding == UTF_8):
        return None
    try:
        codecs.getincrementaldecoder(encoding)().decode(beginning, final=whole)
    except UnicodeError:
        name = {UTF_8: "UTF-8"}.get(encoding, encoding)
        return f"{_OTHER_ENCODING} {name}"
    return None


def files_of(folder: Path, reading: Reading, *, as_rows: bool) -> FolderFiles:
    """Decide which files of a folder, and of the folders in it, are read.

    Tables and `.txt` are known by their names. Other files are text where their names' ends are
    those of text, or there is none, and their bytes look like it. With `data.file_type` every file
    is read that is not hidden. Beside text, tables without the text column are settings and the
    like; a README beside nothing but tables and `.txt` is about the data. Rows need tables: beside
    them text is left out.
    """
    readings: dict[Path, Reading] = {}
    left_out: dict[str, list[Path]] = {}
    for path, reason in sorted(_walk(folder)):
        if not reason and not reading.format_of(path):
            reason = reason_against(path, reading.encoding) or ""  # noqa: PLW2901 - the same
        if reason:
            left_out.setdefault(reason, []).append(path)
        elif reading.format_of(path):
            readings[path] = reading
        else:
            readings[path] = replace(reading, file_type="txt")
    for path, reason in _not_wanted(readings, reading, as_rows):
        del readings[path]
        left_out.setdefault(reason, []).append(path)
    return FolderFiles(readings, left_out)


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """Files, and what is left out by its name or place, with the reason; else an empty one."""
    for place, folders, files in os.walk(folder):
        for name in [name for name in folders if name.startswith(".")]:
            folders.remove(name)
            yield Path(place, name), _HIDDEN
        for name in files:
            path = Path(place, name)
            reason = clause(name.startswith("."), _HIDDEN)
            if not reason and not path.is_file():
                reason = _UNREADABLE
            yield path, reason


def _not_wanted(
    readings: dict[Path, Reading], reading: Reading, as_rows: bool
) -> list[tuple[Path, str]]:
    """Files that could be read, but not with the others, with the reason."""
    tables = [path for path, how in readings.items() if how.format_of(path) != PLAIN]
    texts = [path for path in readings if path not in tables]
    if as_rows:
        return [(path, _WITHOUT_COLUMNS) for path in texts if tables or not reading.format_of(path)]
    gone = [(path, _DESCRIBING) for path in _describing(readings, reading)]
    if len(texts) > len(gone):
        reason = f"{_OTHER_COLUMNS} {reading.text_column!r}"
        gone += [(path, reason) for path in tables if not _has_text(path, reading)]
    return gone


def _describing(readings: dict[Path, Reading], reading: Reading) -> list[Path]:
    """The READMEs and the like among files of which all others are tables and `.txt`."""
    others = [path for path in readings if not reading.format_of(path)]
    is_about = all(_ABOUT.match(path.name) for path in others)
    return others if is_about and len(others) < len(readings) else []


def _has_text(path: Path, reading: Reading) -> bool:
    """Whether the first row of a table has the text column; large files are taken for tables."""
    if path.stat().st_size > _LARGEST_PEEKED_BYTES:
        return True
    try:
        row = next(iter(read_rows(path, reading)), None)
    except DataError:
        return False
    columns = row and row.columns
    if isinstance(reading.text_column, int):
        return isinstance(columns, dict | list) and len(columns) > reading.text_column
    return isinstance(columns, dict) and reading.text_column in columns
