"""Which split a file, a folder or a list of a json is, by its name."""

import re
from collections.abc import Sequence
from pathlib import Path

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.text import listed
from brimful.base.types import Texts
from brimful.data.detection import with_encoding
from brimful.data.hub import splits_used
from brimful.data.readers import Reading, names_of_lists
from brimful.recipe.data import SplitNames

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
_LISTED = 8


def files_by_split(
    folder: Path, files: Sequence[Path], reading: Reading, asked: SplitNames
) -> tuple[dict[str, list[Path]], list[str]]:
    """The files of each split, and sentences about those that are not used, or are mixed.

    Args:
        folder: Holds them.
        files: Those that can be read.
        reading: How.
        asked: The recipe's `data.splits`; empty: files are parted by the usual names, or all train.

    Raises:
        DataError: there is none of a name asked for.
    """
    notes: list[str] = []
    by_split: dict[str, list[Path]] = {}
    for path in files:
        split = _split_named(path, folder, reading)
        if asked:
            split = _split_asked(path, folder, asked)
        by_split.setdefault(split, []).append(path)
    if missing := [name for split, name in asked.items() if split not in by_split]:
        there = sorted({_first_name(path, folder) for path in files})
        raise DataError(
            f"data.splits: {folder} has no file or folder"
            f" {missing[0]!r}{did_you_mean(missing[0], there)} It has: {listed(there, _LISTED)}."
        )
    if "train" not in by_split:
        by_split = {"train": [*files]}
    for split, paths in by_split.items():
        names = sorted({_first_name(path, folder).rstrip("0123456789-_") for path in paths})
        if split and len(names) > 1 and not asked and len(by_split) > 1:
            notes.append(
                f"{folder}: {split} is read from {listed(names, _LISTED)};"
                f" data.splits='{{{split}: {names[0]}}}' chooses one"
            )
    if unused := [path.relative_to(folder).as_posix() for path in by_split.pop("", [])]:
        notes.append(
            f"{folder}: {len(unused):,} not used, because other files are named after splits:"
            f" {listed(unused, _LISTED)}"
        )
    return by_split, notes


def _first_name(path: Path, folder: Path) -> str:
    """Return the name of a file without its ends and its number (`-00000-of-00002`), or that of the
    outermost folder it is in.
    """
    parts = path.relative_to(folder).parts
    return re.sub(r"-\d+-of-\d+$", "", parts[0].partition(".")[0] if len(parts) == 1 else parts[0])


def _split_asked(path: Path, folder: Path, asked: SplitNames) -> str:
    """The split that has a file's name, or that of the outermost folder it is in; empty: none."""
    name = _first_name(path, folder)
    return next((split for split, of_split in asked.items() if of_split == name), "")


def _split_named(path: Path, folder: Path, reading: Reading) -> str:
    """The split that a file is named after, or the outermost folder it is in; empty: none. The name
    of a program (`test_x.py`) does not count, that of its folder does.
    """
    parts = path.relative_to(folder).parts
    match = _SPLIT_WORDS.match(parts[0])
    if match is None or (len(parts) == 1 and not reading.format_of(path)):
        return ""
    return _SPLIT_OF_WORD[match["word"].lower()]


def lists_of_splits(path: Path, reading: Reading, asked: SplitNames) -> Texts:
    """The name of each split's list in a json file that holds several; none: it does not."""
    names = names_of_lists(path, with_encoding(path, reading)[0])
    if len(names) < 2 or not (asked or any(map(_SPLIT_WORDS.match, names))):
        return {}
    return splits_used(str(path), names, asked)
