"""Where text comes from: built-in corpora, local files and folders, the Hugging Face hub. All
become re-iterable documents or rows.
"""

import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

import xxhash

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.text import listed
from brimful.data import builtin, hub
from brimful.data.encodings import AUTO, check_encoding, detect, display_name
from brimful.data.readers import SUFFIXES, Reading, format_of, read_file, read_rows, texts_of_rows
from brimful.data.rows import Column, Row
from brimful.recipe import DataRecipe

_SPLIT_WORDS = re.compile(
    r"(?P<word>training|train|validation|valid|val|dev|test)(?:set|data)?(?![a-z])", re.IGNORECASE
)
_SPLIT_OF_WORD = {
    "training": "train",
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
_READ_BYTES = 1 << 22


@dataclass(frozen=True)
class Documents:
    """Documents that can be gone through again and again; blank ones are passed over.

    Attributes:
        what: Named in errors and reports.
        read: Starts a fresh reading.
        max_documents: Stop after this many.
    """

    what: str
    read: Callable[[], Iterator[str]] = field(repr=False)
    max_documents: int | None = None

    def __iter__(self) -> Iterator[str]:
        """Raises DataError when there is nothing but white space."""
        number = 0
        for text in self.read():
            if not text.isspace() and text:
                number += 1
                yield text
                if number == self.max_documents:
                    return
        if not number:
            raise DataError(
                f"{self.what} holds no text: it is empty or only white space. Check data.path and"
                " data.text_column."
            )


@dataclass(frozen=True)
class Rows:
    """Rows that can be gone through again and again.

    Attributes:
        what: Named in errors and reports.
        read: Starts a fresh reading.
        max_documents: Stop after this many.
    """

    what: str
    read: Callable[[], Iterator[Row]] = field(repr=False)
    max_documents: int | None = None

    def __iter__(self) -> Iterator[Row]:
        """Raises DataError when there is none."""
        number = 0
        # Read below.
        for number, row in enumerate(islice(self.read(), self.max_documents), start=1):  # noqa: B007
            yield row
        if not number:
            raise DataError(
                f"{self.what} holds no rows: it is empty, or has nothing but a header. Check"
                " data.path."
            )


Items = TypeVar("Items", Documents, Rows)


@dataclass(frozen=True)
class AnyPart(Generic[Items]):
    """What one `data.path` gives: always `train`, and `validation` and `test` where the source
    brings them.
    """

    description: str
    splits: Mapping[str, Items]
    fingerprint: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AnySource(Generic[Items]):
    """Everything `data.path` names.

    Attributes:
        parts: One per path, in order.
        fingerprint: Changes with any byte of the raw content and with any option of the reading.
    """

    parts: tuple[AnyPart[Items], ...]
    fingerprint: str

    @property
    def description(self) -> str:
        return " + ".join(part.description for part in self.parts)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(note for part in self.parts for note in part.notes)


Part = AnyPart[Documents]
Source = AnySource[Documents]
RowSource = AnySource[Rows]


@dataclass(frozen=True)
class _Access(Generic[Items]):
    """How documents, or rows, are got out of each kind of place.

    Attributes:
        items: Makes a re-iterable of what it is called in errors and a reader.
        builtin: Readers of built-in corpora.
        builtin_fingerprint: Fingerprint of one of them.
        file: Reads one file.
        reading: How.
        column: The only column of a hub data set that is needed; None: all.
        hub: What the rows of a hub data set become.
    """

    items: Callable[[str, Callable[[], Iterator[Any]]], Items]
    builtin: Mapping[str, Callable[[], Iterator[Any]]]
    builtin_fingerprint: Callable[[str], str]
    file: Callable[[Path, Reading], Iterator[Any]]
    reading: Reading
    column: Column | None
    hub: Callable[[Iterator[Row]], Iterator[Any]]


def open_source(data: DataRecipe) -> Source:
    """Find what `data.path` names; texts are read later, on iteration.

    Kinds: `builtin:NAME`; an existing file or folder; else a data set of the Hugging Face hub.

    Raises:
        DataError: no such file, corpus or data set, with what is there and the nearest name.
    """
    reading = Reading.of(data)
    access = _Access(
        items=partial(Documents, max_documents=data.max_documents),
        builtin=builtin.CORPORA,
        builtin_fingerprint=builtin.fingerprint,
        file=read_file,
        reading=reading,
        column=data.text_column,
        hub=partial(texts_of_rows, reading=reading),
    )
    return _open(data, access, reading.to_json())


def open_rows(data: DataRecipe) -> RowSource:
    """The same places as `open_source`, read as rows with all their columns; `text_column` and
    `document_start` play no part.

    Raises:
        DataError: no such file, corpus or data set.
    """
    reading = Reading.of(data)
    access = _Access(
        items=partial(Rows, max_documents=data.max_documents),
        builtin=builtin.ROWS,
        builtin_fingerprint=builtin.rows_fingerprint,
        file=read_rows,
        reading=reading,
        column=None,
        hub=iter,
    )
    options = {
        name: value
        for name, value in reading.to_json().items()
        if name not in {"text_column", "document_start"}
    }
    return _open(data, access, {"rows": True, **options})


def _open(
    data: DataRecipe, access: _Access[Items], options: Mapping[str, object]
) -> AnySource[Items]:
    check_encoding(data.encoding)
    parts = tuple(_open_part(path, data, access) for path in data.paths)
    identity = json.dumps([[part.fingerprint for part in parts], options], sort_keys=True)
    return AnySource(parts, xxhash.xxh3_128_hexdigest(identity.encode()))


def _open_part(path: str, data: DataRecipe, access: _Access[Items]) -> AnyPart[Items]:
    if path.startswith("builtin:"):
        return _open_builtin(path.removeprefix("builtin:"), access)
    local = Path(path).expanduser()
    if local.is_dir():
        return _open_folder(local, access)
    if local.is_file():
        return _open_files(str(local), local.parent, {"train": [local]}, access)
    if path.startswith((".", "/", "~")) or path.lower().endswith(
        tuple(f"{suffix}{more}" for suffix in SUFFIXES for more in ("", ".gz"))
    ):
        raise _no_such_file(local)
    data_set = hub.open_data_set(path, data.config_name, data.revision, access.column)
    readers = {name: _then(read, access.hub) for name, read in data_set.splits.items()}
    splits = _items(readers, data_set.description, access)
    return AnyPart(data_set.description, splits, data_set.fingerprint, data_set.notes)


def _then(
    read: Callable[[], Iterator[Row]], become: Callable[[Iterator[Row]], Iterator[Any]]
) -> Callable[[], Iterator[Any]]:
    return lambda: become(read())


def _open_builtin(name: str, access: _Access[Items]) -> AnyPart[Items]:
    known = builtin.names()
    if name not in known:
        raise DataError(
            f"unknown built-in corpus {name!r}{did_you_mean(name, known)} Known:"
            f" {', '.join(f'builtin:{one}' for one in known)}."
        )
    description = f"builtin:{name} (made on the spot)"
    return AnyPart(
        description,
        _items({"train": access.builtin[name]}, description, access),
        access.builtin_fingerprint(name),
    )


def _items(
    readers: Mapping[str, Callable[[], Iterator[Any]]], what: str, access: _Access[Items]
) -> dict[str, Items]:
    return {name: access.items(f"{what}, split {name}", read) for name, read in readers.items()}


def _no_such_file(path: Path) -> DataError:
    if not path.parent.is_dir():
        return DataError(
            f"data.path: no such file {path}: its folder {path.parent} does not exist either"
            f" (looked from {Path.cwd()})."
        )
    there = sorted(
        entry.name for entry in path.parent.iterdir() if entry.is_dir() or format_of(entry)
    )
    listing = f" {path.parent} holds nothing readable."
    if there:
        listing = f" In {path.parent} there are: {listed(there, 8)}."
    return DataError(f"data.path: no such file {path}{did_you_mean(path.name, there)}{listing}")


def _open_folder(folder: Path, access: _Access[Items]) -> AnyPart[Items]:
    """Files named train*, valid* (validation*, val*, dev*) and test*, or in folders so named, are
    splits; else all files are one text.

    Files whose names do not say that they can be read are left alone, unless `data.file_type` says
    what all files are.
    """
    everything = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    readable = [path for path in everything if access.reading.format_of(path)]
    if not readable:
        raise DataError(
            f"data.path: {folder} holds no readable file. Readable: {', '.join(SUFFIXES)}, all but"
            " .parquet also with .gz."
        )
    by_split: dict[str, list[Path]] = {}
    for path in readable:
        split, match = "", _SPLIT_WORDS.match(path.relative_to(folder).parts[0])
        if match:
            split = _SPLIT_OF_WORD[match["word"].lower()]
        by_split.setdefault(split, []).append(path)
    if "train" not in by_split:
        return _open_files(str(folder), folder, {"train": readable}, access)
    notes = []
    if unused := [path.relative_to(folder).as_posix() for path in by_split.pop("", [])]:
        notes.append(
            f"{folder}: not used, because other files are named after splits: {', '.join(unused)}"
        )
    return _open_files(str(folder), folder, by_split, access, notes)


def _open_files(
    what: str,
    root: Path,
    by_split: Mapping[str, list[Path]],
    access: _Access[Items],
    notes: Sequence[str] = (),
) -> AnyPart[Items]:
    checksum, splits = xxhash.xxh3_128(), {}
    encodings, all_notes, files = set(), [*notes], 0
    for name in ("train", "validation", "test"):
        readings = {}
        for path in by_split.get(name, ()):
            readings[path], note = _reading(path, access.reading)
            encodings.add(display_name(readings[path].encoding))
            if note:
                all_notes.append(note)
            checksum.update(f"\0{name}\0{path.relative_to(root).as_posix()}\0".encode())
            _add_content(checksum, path)
        if readings:
            splits[name] = access.items(_named(what, list(readings)), _reader(readings, access))
            files += len(readings)
    description = (
        f"{what} ({files} file{'s' * (files != 1)}; {', '.join(sorted(encodings))}, line ends"
        " normalised to LF)"
    )
    return AnyPart(description, splits, checksum.hexdigest(), tuple(all_notes))


def _reading(path: Path, reading: Reading) -> tuple[Reading, str | None]:
    """Return how to read one file, with its detected encoding where the recipe names none, and a
    note about that encoding.
    """
    suffix = reading.format_of(path)
    if suffix is None:
        raise DataError(
            f"data.path: {path} is not of a readable kind. Readable: {', '.join(SUFFIXES)}, all but"
            " .parquet also with .gz; data.file_type=tsv (or txt, jsonl, json, csv) says what a"
            " file is whose name does not."
        )
    if reading.encoding != AUTO or suffix == ".parquet":
        return reading, None
    try:
        found = detect(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read: {error}. Is the file whole and readable?"
        ) from error
    return replace(reading, encoding=found.encoding), found.note


def _named(what: str, paths: list[Path]) -> str:
    if len(paths) == 1:
        return str(paths[0])
    return f"{what} ({listed([path.name for path in paths], 3)})"


def _reader(
    readings: Mapping[Path, Reading], access: _Access[Items]
) -> Callable[[], Iterator[Any]]:
    return lambda: (
        item for path, reading in readings.items() for item in access.file(path, reading)
    )


def _add_content(checksum: xxhash.xxh3_128, path: Path) -> None:
    try:
        with open(path, "rb") as file:
            checksum.update(path.stat().st_size.to_bytes(8, "little"))
            while block := file.read(_READ_BYTES):
                checksum.update(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}. Check the permissions.") from error
