"""Data sets of the Hugging Face hub, through the `datasets` library."""

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import xxhash

from brimful.base.discover import did_you_mean
from brimful.base.env import hub_is_offline, prepared_data_sets
from brimful.base.errors import DataError
from brimful.base.text import clause, reason_of
from brimful.base.time_limit import hub_limits
from brimful.base.types import Texts
from brimful.data.rows import Column, Row, column_name
from brimful.recipe import DataRecipe
from brimful.recipe.data import SplitNames

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SPLIT_NAMES = {
    "train": ("train", "training", "train_sft"),
    "validation": ("validation", "valid", "val", "dev", "validation_sft"),
    "test": ("test", "test_sft"),
}
_TIMEOUT_S = 5.0
_LOCAL_REMEDY = "A local file or folder works too: data.path=FILE."


@dataclass(frozen=True)
class DataSetParts:
    """A data set with columns: readers of its splits.

    Attributes:
        fingerprint: What identifies its content; empty where that is not known without reading.
        pieces: A reader of each file of the training split by its name, where it is in files that
            are read one at a time.
    """

    description: str
    splits: Mapping[str, Callable[[], Iterator[Row]]]
    notes: tuple[str, ...]
    fingerprint: str = ""
    pieces: Mapping[str, Callable[[], Iterator[Row]]] = field(default_factory=dict)


def open_data_set(data: DataRecipe, path: str, column: Column | None) -> DataSetParts:
    """Load a data set (from the hub's local cache where it is there) and map its splits to train,
    validation and test.

    Args:
        data: Its configuration, revision (a commit that pins it) and names of splits count.
        path: Its id, owner/name.
        column: The only column that is read, by name; a number only has to exist; None: all are
            read.

    Raises:
        DataError: not a hub id, not reachable, no such configuration, no training split, or no such
            column.
    """
    check_there(path, data.revision)
    loaded = _load(path, data.config_name, data.revision)
    used, readers = _readers(path, loaded, data, column)
    identities = [f"{name}={loaded[word]._fingerprint}" for name, word in used.items()]
    fingerprint = xxhash.xxh3_128_hexdigest("\0".join(identities).encode())
    return DataSetParts(
        _described(path, data), readers, unused_note(path, loaded, used), fingerprint
    )


def open_streamed(data: DataRecipe, path: str, column: Column | None) -> DataSetParts:
    """As `open_data_set`, with each file of the data set read from the hub when it is needed, and
    none kept.

    Raises:
        DataError: as `open_data_set`, and where the hub cannot be reached, whatever was downloaded
            before.
    """
    commit = _commit_of(path, data.revision)
    loaded = _load(path, data.config_name, commit, streaming=True)
    used, readers = _readers(path, loaded, data, column)
    train, pieces = loaded[used["train"]], {}
    for number in range(train.num_shards):
        where = f"{_where(path, used['train'])}, file {number + 1} of {train.num_shards}"
        pieces[where] = _reader(train.shard(train.num_shards, number), where, column)
    description = f"{_described(path, data)}, commit {commit[:12]}, file by file"
    identity = f"{path}\0{data.config_name}\0{commit}"
    fingerprint = xxhash.xxh3_128_hexdigest(identity.encode())
    notes = unused_note(path, loaded, used)
    return DataSetParts(description, readers, notes, fingerprint, pieces)


def _described(path: str, data: DataRecipe) -> str:
    return f"{path}{clause(data.config_name, f' ({data.config_name})')} from the Hugging Face hub"


def _where(path: str, word: str) -> str:
    return f"data set {path}, split {word}"


def _readers(
    path: str, loaded: Any, data: DataRecipe, column: Column | None
) -> tuple[Texts, dict[str, Callable[[], Iterator[Row]]]]:
    """The data set's name of each split that is used, and a reader of each, whose column is
    there.
    """
    used, readers = splits_used(path, list(loaded), data.splits), {}
    for name, word in used.items():
        columns, where = loaded[word].column_names, _where(path, word)
        if column is not None and columns is not None:
            column_name(column, columns, where)
        readers[name] = _reader(loaded[word], where, column)
    return used, readers


def unused_note(path: str, names: Iterable[str], used: Texts) -> tuple[str, ...]:
    """Return a sentence about splits of a data set that are not used; none: all are."""
    unused = [name for name in names if name not in used.values()]
    return (f"{path}: splits not used: {', '.join(unused)}",) if unused else ()


def _commit_of(path: str, revision: str | None) -> str:
    """Return the commit of a data set on the hub, so that a run that goes on reads the same files.

    Raises:
        DataError: it is not there, or the hub cannot be reached.
    """
    check_there(path, revision)
    import huggingface_hub  # noqa: PLC0415 - only hub data need it

    try:
        api = huggingface_hub.HfApi()
        with hub_limits():
            return str(api.dataset_info(path, revision=revision, timeout=_TIMEOUT_S).sha)
    # The library raises whatever its network layer raises.
    except Exception as error:
        raise DataError(
            f"data.cache_gib reads the files of {path!r} from the Hugging Face hub while the run"
            f" trains, and the hub cannot be reached: {reason_of(error)}. Leave data.cache_gib out"
            " to train on what was downloaded before, or name a local folder."
        ) from error


def splits_used(path: str, names: list[str], asked: SplitNames) -> Texts:
    """The data set's name of each split; an only split is training.

    Args:
        path: The data set, for errors.
        names: The names of its splits.
        asked: The recipe's `data.splits`; empty: by their usual names.

    Raises:
        DataError: there is no training split, or none of a name asked for.
    """
    if missing := [name for name in asked.values() if name not in names]:
        raise DataError(
            f"data.splits: {path} has no split {missing[0]!r}{did_you_mean(missing[0], names)} It"
            f" has: {', '.join(names)}."
        )
    if "train" in asked:
        return {split: name for split, name in asked.items()}  # noqa: C416 - other keys' type
    used = {}
    for split, accepted in _SPLIT_NAMES.items():
        if there := [name for name in accepted if name in names]:
            used[split] = there[0]
    if "train" in used:
        return used
    if len(names) == 1:
        return {"train": names[0]}
    raise DataError(
        f"data set {path} has no training split; its splits are {', '.join(names)}. Name the one"
        f" that is: data.splits='{{train: {names[0]}}}'."
    )


def check_there(path: str, revision: str | None) -> None:
    """Ask the hub once, for a few seconds at most, whether a data set exists; where the hub is out
    of reach, only what is downloaded already is used from then on.

    Raises:
        DataError: no hub id, no such data set or revision, no access; or neither the hub can be
            reached nor was the data set downloaded before.
    """
    if not HUB_ID.fullmatch(path):
        raise DataError(
            f"data.path: {path!r} is neither an existing file or folder, nor a hub id (owner/name),"
            " nor builtin:NAME."
        )
    reason = "HF_HUB_OFFLINE is set"
    if not hub_is_offline():
        reason = _asked(path, revision)
    if reason and not _was_downloaded(path):
        raise DataError(
            f"data.path: {path!r} is no local file or folder, and the Hugging Face hub cannot be"
            f" asked for it: {reason}. Only data sets already downloaded can be used."
            f" {_LOCAL_REMEDY}"
        )
    if reason:
        _stay_offline()


def _asked(path: str, revision: str | None) -> str:
    """Why the hub cannot be reached; empty: it has the data set. Raises DataError: it has not."""
    import huggingface_hub  # noqa: PLC0415 - only hub data need it
    from huggingface_hub import errors  # noqa: PLC0415

    try:
        with hub_limits():
            huggingface_hub.HfApi().dataset_info(path, revision=revision, timeout=_TIMEOUT_S)
    except errors.GatedRepoError as error:
        raise DataError(
            f"data.path: {path!r} is gated on the Hugging Face hub and this user has no access."
            f" Accept its terms on its page and log in (hf auth login). {_LOCAL_REMEDY}"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        what = f"data set {path!r}"
        if isinstance(error, errors.RevisionNotFoundError):
            what = f"revision {revision!r} of the data set {path!r}"
        raise DataError(
            f"data.path: there is no local file or folder {path!r}, and no {what} on the Hugging"
            f" Face hub, or it is private. {_LOCAL_REMEDY}"
        ) from error
    # The library raises whatever its network layer raises.
    except Exception as error:
        return reason_of(error)
    return ""


def _was_downloaded(path: str) -> bool:
    from huggingface_hub import constants  # noqa: PLC0415 - as above

    return (Path(constants.HF_HUB_CACHE) / f"datasets--{path.replace('/', '--')}").exists() or (
        prepared_data_sets(constants.HF_HOME) / path.replace("/", "___")
    ).exists()


def _stay_offline() -> None:
    """Keep this process from asking the hub, which would try for minutes."""
    from huggingface_hub import constants  # noqa: PLC0415 - as above

    constants.HF_HUB_OFFLINE = True
    if "datasets.config" in sys.modules:
        sys.modules["datasets.config"].HF_HUB_OFFLINE = True  # type: ignore[attr-defined]


class _OneLine(logging.Filter):
    """Lets the first of the library's lines about another try pass, in fewer words."""

    is_told = False

    def filter(self, record: logging.LogRecord) -> bool:
        is_first, self.is_told = not self.is_told, True
        record.msg, record.args = "the Hugging Face hub is slow to answer; trying again", ()
        return is_first


def _load(
    path: str, config_name: str | None, revision: str | None, *, streaming: bool = False
) -> Any:
    import datasets  # noqa: PLC0415 - takes a second to import and only hub data need it

    logger, one_line = logging.getLogger("huggingface_hub.utils._http"), _OneLine()
    logger.addFilter(one_line)
    try:
        if streaming:
            return datasets.load_dataset(path, config_name, revision=revision, streaming=True)
        return datasets.load_dataset(path, config_name, revision=revision)
    # The library raises all kinds of errors of its network, parsing and file layers.
    except Exception as error:
        reason = reason_of(error)
        offline = " HF_HUB_OFFLINE is set, so only data sets already downloaded can be used."
        raise DataError(
            f"data.path: {path!r} is no local file or folder, and loading it from the Hugging Face"
            f" hub failed: {reason}.{clause(hub_is_offline(), offline)} {_LOCAL_REMEDY}"
        ) from error
    finally:
        logger.removeFilter(one_line)


def _reader(split: Any, where: str, column: Column | None) -> Callable[[], Iterator[Row]]:
    def rows() -> Iterator[Row]:
        table, number, others = split, count(1), tuple[str, ...]()
        if isinstance(column, str):
            table = split.select_columns([column])
            others = tuple(name for name in split.column_names or () if name != column)
        for batch in table.iter(batch_size=1000):
            for cells in zip(*batch.values(), strict=True):
                values = dict(zip(batch, cells, strict=True))
                yield Row(values, f"{where}, row {next(number)}", others)

    return rows
