"""Folders that `save_to_disk` of the `datasets` library wrote: a Dataset, or a DatasetDict with a
folder for each split. They are read with pyarrow alone.
"""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from brimful.base.errors import DataError, RunFolderError
from brimful.base.rundir import read_json
from brimful.base.types import JsonDict
from brimful.data.hub import DataSetParts, splits_used, unused_note
from brimful.data.rows import Column, Row, column_name
from brimful.recipe.data import SplitNames

_STATE, _DICTIONARY = "state.json", "dataset_dict.json"
_SAVE_AGAIN = "Save the data set again with a current version of the library datasets."


def is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote a folder."""
    return (folder / _DICTIONARY).is_file() or (
        (folder / _STATE).is_file() and any(folder.glob("*.arrow"))
    )


def open_saved(
    folder: Path, column: Column | None, asked: SplitNames
) -> tuple[DataSetParts, dict[str, list[Path]]]:
    """Open such a folder; rows are read later.

    Args:
        folder: See `is_saved`.
        column: The only column that is read, by name; a number only has to exist; None: all.
        asked: The recipe's `data.splits`.

    Returns:
        Readers of its splits, and the files of each split, whose bytes identify it.

    Raises:
        DataError: damaged, of an old layout, no training split, or no such column.
    """
    folders = {"train": folder}
    notes: tuple[str, ...] = ()
    if (folder / _DICTIONARY).is_file():
        names = _json(folder / _DICTIONARY).get("splits", [])
        used = splits_used(str(folder), names, asked)
        folders = {split: folder / name for split, name in used.items()}
        notes = unused_note(str(folder), names, used)
    readers, files = {}, {}
    for split, place in folders.items():
        files[split] = _files(place)
        readers[split] = _reader(files[split], f"{folder}, split {split}", column)
    described = f"{folder} (saved data set; {sum(map(len, files.values()))} arrow files)"
    pieces = {str(path): _reader([path], f"{path}", column) for path in files.get("train", ())}
    return DataSetParts(described, readers, notes, pieces=pieces), files


def _files(folder: Path) -> list[Path]:
    state = _json(folder / _STATE)
    files = [folder / str(each["filename"]) for each in state.get("_data_files", [])]
    if not files or state.get("_indices_data_files"):
        raise DataError(f"{folder}: {_STATE} is not as expected. {_SAVE_AGAIN}")
    if missing := [path for path in files if not path.is_file()]:
        raise DataError(
            f"{folder}: {missing[0].name} is missing, but {_STATE} names it. {_SAVE_AGAIN}"
        )
    return files


def _json(path: Path) -> JsonDict:
    try:
        values = read_json(path)
    except RunFolderError as error:
        raise DataError(f"{error}. {_SAVE_AGAIN}") from error
    return values


def _reader(files: list[Path], where: str, column: Column | None) -> Callable[[], Iterator[Row]]:
    # Half a second to import, which other data do not need.
    import pyarrow  # noqa: PLC0415

    def rows() -> Iterator[Row]:
        number = count(1)
        for path in files:
            try:
                with pyarrow.memory_map(str(path)) as file:
                    stream = pyarrow.ipc.open_stream(file)
                    names, others = stream.schema.names, tuple[str, ...]()
                    if isinstance(column, str):
                        read = column_name(column, names, where)
                        names, others = [read], tuple(name for name in names if name != read)
                    for batch in stream:
                        for values in batch.select(names).to_pylist():
                            yield Row(values, f"{where}, row {next(number)}", others)
            except (pyarrow.ArrowException, OSError) as error:
                raise DataError(f"{path} cannot be read: {error}. {_SAVE_AGAIN}") from error

    return rows
