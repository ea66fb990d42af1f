"""Where text comes from: built-in corpora, local files and folders, the Hugging Face hub. All
become re-iterable documents or rows.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import xxhash

from brimful.base.discover import did_you_mean, what_stands_at
from brimful.base.errors import DataError
from brimful.base.text import clause, listed, plural
from brimful.base.types import Texts
from brimful.data import hub
from brimful.data.detection import detected, with_encoding
from brimful.data.encodings import check_encoding, display_name
from brimful.data.folders import (
    UNKNOWN,
    FolderFiles,
    files_of,
    reason_against,
    remedy_for,
    suffix_of,
)
from brimful.data.hub import DataSetParts
from brimful.data.readers import (
    SUFFIXES,
    Reading,
    format_of,
    read_file,
    read_rows,
    texts_of_rows,
)
from brimful.data.rows import Column, Row
from brimful.data.saved import is_saved, open_saved
from brimful.data.split_names import files_by_split, lists_of_splits
from brimful.recipe import DataRecipe
from brimful.recipe.data import SplitNames, unpacked_name

_SPLITS = ("train", "validation", "test")
_READ_BYTES = 1 << 22


Item = TypeVar("Item", str, Row)


@dataclass(frozen=True)
class _Again(Generic[Item]):
    """Items of a split that can be iterated any number of times.

    Attributes:
        what: Named in errors and reports.
        read: Starts a fresh reading.
        max_documents: Stop after this many.
        nothing: What the error says where there are no items.
    """

    what: str
    read: Callable[[], Iterator[Item]] = field(repr=False)
    max_documents: int | None = None
    nothing: ClassVar[str] = ""

    def __iter__(self) -> Iterator[Item]:
        """Raises DataError when there is nothing."""
        number = 0
        items = islice(filter(self._counts, self.read()), self.max_documents)
        for number, item in enumerate(items, start=1):  # noqa: B007 - read below
            yield item
        if not number:
            raise DataError(f"{self.what} {self.nothing}")

    def _counts(self, item: Item) -> bool:
        return True


class Documents(_Again[str]):
    """Documents; blank ones are passed over."""

    nothing = (
        "holds no text: it is empty or only white space. Check data.path and data.text_column."
    )

    def _counts(self, item: str) -> bool:
        return bool(item) and not item.isspace()


class Rows(_Again[Row]):
    """Rows with their columns."""

    nothing = "holds no rows: it is empty, or has nothing but a header. Check data.path."


Items = TypeVar("Items", Documents, Rows)


@dataclass(frozen=True)
class Piece(Generic[Items]):
    """One file of a part's training split.

    Attributes:
        path: Where it lies; None: on the hub.
    """

    name: str
    items: Items
    path: Path | None = None


@dataclass(frozen=True)
class AnyPart(Generic[Items]):
    """What one `data.path` gives: always `train`, and `validation` and `test` where the source
    brings them. `identify` reads the raw content and returns its fingerprint. `files_by_split` are
    the local files it lies in, `pieces` those of `train` one by one; `is_builtin`: it is a corpus
    that is made on the spot.
    """

    description: str
    splits: Mapping[str, Items]
    identify: Callable[[], str] = field(repr=False)
    notes: tuple[str, ...] = ()
    files_by_split: Mapping[str, Sequence[Path]] = field(default_factory=dict)
    pieces: tuple[Piece[Items], ...] = ()
    is_builtin: bool = False

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(path for name in _SPLITS for path in self.files_by_split.get(name, ()))

    @property
    def fingerprint(self) -> str:
        """Of the raw content, which is read for it."""
        return self.identify()


@dataclass(frozen=True)
class AnySource(Generic[Items]):
    """Everything `data.path` names.

    Attributes:
        parts: One per path, in order.
        options: The options of the reading, as JSON.
        unread: Columns beside the text of documents that were met as they were read, each with the
            first place.
    """

    parts: tuple[AnyPart[Items], ...]
    options: Mapping[str, object]
    unread: Texts = field(default_factory=dict, compare=False)

    @cached_property
    def fingerprint(self) -> str:
        """Changes with any byte of the raw content and with any option of the reading. All files
        are read for it, when first asked.
        """
        parts = [part.fingerprint for part in self.parts]
        identity = json.dumps([parts, self.options], sort_keys=True)
        return xxhash.xxh3_128_hexdigest(identity.encode())

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
class _SourceReaders(Generic[Items]):
    """How documents, or rows, are got out of each kind of place.

    Attributes:
        items: Makes a re-iterable of what it is called in errors and a reader.
        file: Reads one file.
        reading: How.
        column: The only column of a hub data set that is needed; None: all.
        hub: What the rows of a hub data set become.
    """

    items: Callable[[str, Callable[[], Iterator[Any]]], Items]
    file: Callable[[Path, Reading], Iterator[Any]]
    reading: Reading
    column: Column | None
    hub: Callable[[Iterator[Row]], Iterator[Any]]

    @property
    def gives_rows(self) -> bool:
        """Whether rows are asked for, with all their columns, and not documents."""
        return self.column is None


def open_source(data: DataRecipe) -> Source:
    """Find what `data.path` names; texts are read later, on iteration.

    That is one of: `builtin:NAME`; an existing file or folder; else a data set of the Hugging Face
    hub.

    Raises:
        DataError: no such file, corpus or data set. The message lists what exists and may suggest
            a name.
    """
    reading, unread = Reading.of(data), dict[str, str]()
    access = _SourceReaders(
        items=partial(Documents, max_documents=data.max_documents),
        file=partial(read_file, unread=unread),
        reading=reading,
        column=data.text_column,
        hub=partial(texts_of_rows, reading=reading, unread=unread),
    )
    return replace(_open(data, access, reading.to_json()), unread=unread)


def open_rows(data: DataRecipe) -> RowSource:
    """The same places as `open_source`, read as rows with all their columns; `text_column` and
    `document_start` play no part.

    Raises:
        DataError: no such file, corpus or data set.
    """
    reading = Reading.of(data)
    access = _SourceReaders(
        items=partial(Rows, max_documents=data.max_documents),
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
    data: DataRecipe, access: _SourceReaders[Items], options: Mapping[str, object]
) -> AnySource[Items]:
    check_encoding(data.encoding)
    parts = tuple(_open_part(path, data, access) for path in data.paths)
    if data.splits:
        options = {**options, "splits": data.splits}
    return AnySource(parts, options)


def is_local(path: str) -> bool:
    """Whether one `data.path` names something built in, or a file or folder, there or not; else it
    is a data set of the hub.
    """
    return (
        path.startswith(("builtin:", ".", "/", "~"))
        or unpacked_name(path).endswith(SUFFIXES)
        or Path(path).expanduser().exists()
    )


def _open_part(path: str, data: DataRecipe, access: _SourceReaders[Items]) -> AnyPart[Items]:
    if path.startswith("builtin:"):
        return _open_builtin(path.removeprefix("builtin:"), access)
    local = Path(path).expanduser()
    if local.is_dir() and is_saved(local):
        return _open_saved(local, access, data.splits)
    if local.is_dir():
        return _open_folder(local, access, data.splits)
    if local.is_file():
        return _open_file(local, access, data.splits)
    if is_local(path):
        raise _no_such_file(local)
    open_from_hub = hub.open_data_set if data.cache_gib is None else hub.open_streamed
    data_set = open_from_hub(data, path, access.column)
    return AnyPart(
        data_set.description,
        _items_of(data_set, access),
        lambda: data_set.fingerprint,
        data_set.notes,
        pieces=_pieces_of(data_set, access, lambda name: None),
    )


def _open_saved(folder: Path, access: _SourceReaders[Items], asked: SplitNames) -> AnyPart[Items]:
    data_set, files = open_saved(folder, access.column, asked)
    identify = partial(_checksum, folder, files)
    pieces = _pieces_of(data_set, access, Path)
    return AnyPart(
        data_set.description, _items_of(data_set, access), identify, data_set.notes, pieces=pieces
    )


def _pieces_of(
    data_set: DataSetParts,
    access: _SourceReaders[Items],
    path_of: Callable[[str], Path | None],
) -> tuple[Piece[Items], ...]:
    """Return the files of the training split; `path_of` gives where one of a name lies."""
    return tuple(
        Piece(name, access.items(name, _then(read, access.hub)), path_of(name))
        for name, read in data_set.pieces.items()
    )


def _items_of(data_set: DataSetParts, access: _SourceReaders[Items]) -> dict[str, Items]:
    readers = {name: _then(read, access.hub) for name, read in data_set.splits.items()}
    return _items(readers, data_set.description, access)


def _then(
    read: Callable[[], Iterator[Row]], become: Callable[[Iterator[Row]], Iterator[Any]]
) -> Callable[[], Iterator[Any]]:
    return lambda: become(read())


def _open_builtin(name: str, access: _SourceReaders[Items]) -> AnyPart[Items]:
    from brimful.data import builtin  # noqa: PLC0415 - most recipes have data of their own

    known = builtin.names()
    if name not in known:
        raise DataError(
            f"unknown built-in corpus {name!r}{did_you_mean(name, known)} Known:"
            f" {', '.join(f'builtin:{one}' for one in known)}."
        )
    description = f"builtin:{name} (made on the spot)"
    read: Callable[[], Iterator[Any]] = builtin.CORPORA[name]
    identify = builtin.fingerprint
    if access.gives_rows:
        read, identify = builtin.ROWS[name], builtin.rows_fingerprint
    return AnyPart(
        description,
        _items({"train": read}, description, access),
        partial(identify, name),
        is_builtin=True,
    )


def _items(
    readers: Mapping[str, Callable[[], Iterator[Any]]], what: str, access: _SourceReaders[Items]
) -> dict[str, Items]:
    return {name: access.items(f"{what}, split {name}", read) for name, read in readers.items()}


def _no_such_file(path: Path) -> DataError:
    if what := what_stands_at(path):
        return DataError(
            f"data.path: {path} is {what}. Give a file or a folder, which can be read more than"
            " once: data are read again when a run goes on."
        )
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


def _open_folder(folder: Path, access: _SourceReaders[Items], asked: SplitNames) -> AnyPart[Items]:
    """Files named train*, valid* (validation*, val*, dev*) and test*, or in folders so named, are
    splits, or those of the names asked for; else all files are one text. Which files are read:
    `files_of`.
    """
    files: FolderFiles = files_of(folder, access.reading, as_rows=access.gives_rows)
    if not files.readings:
        raise files.nothing_in(folder, SUFFIXES)
    notes = [note for note in [files.note(folder)] if note]
    by_split, notes_of_splits = files_by_split(folder, list(files.readings), access.reading, asked)
    notes += notes_of_splits
    return _open_files(str(folder), folder, by_split, files.readings, access, notes)


def _open_files(
    what: str,
    root: Path,
    by_split: Mapping[str, list[Path]],
    readings_of: Mapping[Path, Reading],
    access: _SourceReaders[Items],
    notes: Sequence[str] = (),
) -> AnyPart[Items]:
    splits, encodings, all_notes, files = {}, set(), [*notes], 0
    pieces: list[Piece[Items]] = []
    for name in _SPLITS:
        readings = {}
        for path in by_split.get(name, ()):
            readings[path], found = detected(path, readings_of[path])
            encodings.add(display_name(readings[path].encoding))
            all_notes += found
        if readings:
            splits[name] = access.items(_named(what, list(readings)), _reader(readings, access))
            files += len(readings)
        if name == "train":
            pieces = [
                Piece(str(path), access.items(str(path), _reader({path: reading}, access)), path)
                for path, reading in readings.items()
            ]
    description = (
        f"{what} ({plural(files, 'file')}; {', '.join(sorted(encodings))}, line ends"
        " normalised to LF)"
    )
    identify = partial(_checksum, root, by_split)
    return AnyPart(description, splits, identify, tuple(all_notes), by_split, tuple(pieces))


def _open_file(path: Path, access: _SourceReaders[Items], asked: SplitNames) -> AnyPart[Items]:
    reading, notes = access.reading, []
    if reading.format_of(path) == ".json" and (lists := lists_of_splits(path, reading, asked)):
        return _open_lists(path, access, lists)
    if asked:
        raise DataError(
            f"data.splits: {path} is one file, and no json with a list for each split. Leave"
            " data.splits out, or give a folder with a file for each."
        )
    if reading.format_of(path) is None:
        reason = reason_against(path, reading.encoding)
        if access.gives_rows or reason not in {None, UNKNOWN}:
            raise DataError(
                f"data.path: {path} is not of a readable kind{_because(reason)}."
                f" Readable: {', '.join(SUFFIXES)}, all but .parquet also compressed (.gz, .bz2,"
                " .xz, .zst), and, for a run on documents, other text; data.file_type=tsv (or txt,"
                " jsonl, json, csv) says what a file is whose name does not."
            )
        if reason == UNKNOWN or not suffix_of(path):
            notes = [
                f"{path} is read as plain text; data.file_type=tsv (or another) says otherwise"
            ]
        reading = replace(reading, file_type="txt")
    return _open_files(str(path), path.parent, {"train": [path]}, {path: reading}, access, notes)


def _open_lists(path: Path, access: _SourceReaders[Items], lists: Texts) -> AnyPart[Items]:
    reading, notes = with_encoding(path, access.reading)
    readers = {
        split: partial(access.file, path, replace(reading, rows_of=name))
        for split, name in lists.items()
    }
    whole = _open_files(str(path), path.parent, {"train": [path]}, {path: reading}, access, notes)
    return replace(whole, splits=_items(readers, str(path), access), pieces=())


def _because(reason: str | None) -> str:
    if reason is None:
        return ""
    remedy = remedy_for(reason)
    return f" ({reason}{clause(remedy, f': {remedy}')})"


def _named(what: str, paths: list[Path]) -> str:
    if len(paths) == 1:
        return str(paths[0])
    return f"{what} ({listed([path.name for path in paths], 3)})"


def _reader(
    readings: Mapping[Path, Reading], access: _SourceReaders[Items]
) -> Callable[[], Iterator[Any]]:
    return lambda: (
        item for path, reading in readings.items() for item in access.file(path, reading)
    )


def _checksum(root: Path, by_split: Mapping[str, list[Path]]) -> str:
    checksum = xxhash.xxh3_128()
    for name in _SPLITS:
        for path in by_split.get(name, ()):
            checksum.update(f"\0{name}\0{path.relative_to(root).as_posix()}\0".encode())
            _add_content(checksum, path)
    return checksum.hexdigest()


def _add_content(checksum: xxhash.xxh3_128, path: Path) -> None:
    try:
        with open(path, "rb") as file:
            checksum.update(path.stat().st_size.to_bytes(8, "little"))
            while block := file.read(_READ_BYTES):
                checksum.update(block)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}. Check the permissions.") from error
