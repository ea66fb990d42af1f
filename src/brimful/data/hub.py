"""Data sets of the Hugging Face hub, through the `datasets` library."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from brimful.base.env import hub_is_offline
from brimful.base.errors import DataError
from brimful.data.rows import Column, Row, column_name

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}
_LOCAL_REMEDY = "A local file or folder works too: data.path=FILE."


@dataclass(frozen=True)
class HubDataSet:
    """A loaded data set: readers of its splits, and what identifies its content."""

    description: str
    splits: Mapping[str, Callable[[], Iterator[Row]]]
    fingerprint: str
    notes: tuple[str, ...]


def open_data_set(
    path: str, config_name: str | None, revision: str | None, column: Column | None
) -> HubDataSet:
    """Load a data set (from the hub's local cache where it is there) and map its splits to train,
    validation and test.

    Args:
        path: Its id, owner/name.
        config_name: Which of its configurations.
        revision: Commit that pins it.
        column: The only column that is read, by name; a number only has to exist; None: all are
            read.

    Raises:
        DataError: not a hub id, not reachable, no such configuration, no training split, or no such
            column.
    """
    if not _HUB_ID.fullmatch(path):
        raise DataError(
            f"data.path: {path!r} is neither an existing file or folder, nor a hub id (owner/name),"
            " nor builtin:NAME."
        )
    loaded = _load(path, config_name, revision)
    chosen = {
        name: next((word for word in words if word in loaded), None)
        for name, words in _SPLIT_NAMES.items()
    }
    if chosen["train"] is None and len(loaded) == 1:
        chosen = {"train": next(iter(loaded))}
    if chosen["train"] is None:
        raise DataError(
            f"data set {path} has no training split; its splits are {', '.join(loaded)}."
        )
    used = {name: word for name, word in chosen.items() if word is not None}
    unused = [word for word in loaded if word not in used.values()]
    notes = (f"{path}: splits not used: {', '.join(unused)}",) if unused else ()
    rows = {name: loaded[word] for name, word in used.items()}
    for word, split in zip(used.values(), rows.values(), strict=True):
        if column is not None:
            column_name(column, split.column_names, f"data set {path}, split {word}")
    identity = "\0".join(f"{name}={split._fingerprint}" for name, split in rows.items())
    description = f"{path}{f' ({config_name})' if config_name else ''} from the Hugging Face hub"
    readers = {
        name: _reader(split, f"data set {path}, split {used[name]}", column)
        for name, split in rows.items()
    }
    return HubDataSet(description, readers, xxhash.xxh3_128_hexdigest(identity.encode()), notes)


def _load(path: str, config_name: str | None, revision: str | None) -> Any:
    import datasets  # noqa: PLC0415 - takes a second to import and only hub data need it

    try:
        return datasets.load_dataset(path, config_name, revision=revision)
    except (
        Exception
    ) as error:  # the library raises whatever its network, parsing and file layers raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        where = (
            f"data.path: {path!r} is no local file or folder, and loading it from the Hugging Face"
            " hub failed"
        )
        offline = (
            " HF_HUB_OFFLINE is set, so only data sets already downloaded can be used."
            if hub_is_offline()
            else ""
        )
        raise DataError(f"{where}: {reason.rstrip('.')}.{offline} {_LOCAL_REMEDY}") from error


def _reader(split: Any, where: str, column: Column | None) -> Callable[[], Iterator[Row]]:
    def rows() -> Iterator[Row]:
        table = split.select_columns([column]) if isinstance(column, str) else split
        batches = table.iter(batch_size=1000)
        values = (
            (batch.keys(), cells)
            for batch in batches
            for cells in zip(*batch.values(), strict=True)
        )
        for number, (names, cells) in enumerate(values, start=1):
            yield Row(dict(zip(names, cells, strict=True)), f"{where}, row {number}")

    return rows
