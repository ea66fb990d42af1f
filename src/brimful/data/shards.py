"""Training tokens that do not fit the disk: a shard for each file, made when it is needed, at most
so many bytes of them at once.

A folder holds, for each shard, `NNNNNN.json` with its counts and checksums, written once and kept,
and for the shards in use a folder `NNNNNN` as `tokens.write_tokens` makes it. A shard that is made
again has to equal its checksums, so a run that goes on sees the tokens that it would have seen.

Suffixes: S shards, N tokens of a shard.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np

from brimful.base.arrays import Array, Ints
from brimful.base.errors import DataError, RunFolderError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.types import Counts, JsonDict, Progress
from brimful.base.units import GIB, format_bytes
from brimful.data.cache_places import token_dtype
from brimful.data.tokens import Encode, TokenSplit, read_tokens, write_tokens

_ATTEMPTS = 3
"""Another process with the same cache may remove a shard between making and reading it."""
_TRAIN = "train"
_NOTHING = {"tokens": 0, "documents": 0, "bytes": 0, "characters": 0, "words": 0}


@dataclass(frozen=True)
class ShardSource:
    """The training documents of one file.

    Attributes:
        name: The name of the file, for messages.
        texts: Starts a fresh reading; the same texts every time.
    """

    name: str
    texts: Callable[[], Iterator[str]] = field(repr=False)


class Shards:
    """Shards of token ids with a limit on what lies on disk.

    Args:
        folder: The folder of the cache; belongs to these files and this tokenizer.
        sources: A shard each, in their order.
        encode: Batch encoder of the tokenizer.
        vocabulary: Its number of ids.
        end_of_text: Id after every document.
        limit_bytes: The most bytes of the token files of all shards together.
    """

    def __init__(
        self,
        folder: Path,
        sources: Sequence[ShardSource],
        encode: Encode,
        *,
        vocabulary: int,
        end_of_text: int,
        limit_bytes: int,
    ) -> None:
        self._folder, self._sources, self._encode = folder, sources, encode
        self._vocabulary, self._end_of_text = vocabulary, end_of_text
        self._limit_bytes = limit_bytes
        self._token_bytes = int(token_dtype(vocabulary)[-1])
        self._records: list[JsonDict] = []
        self._open: dict[int, Array] = {}
        self._lock = threading.Lock()

    def count(self, progress: Progress | None = None) -> None:
        """Make every shard once and keep its counts; those that were counted before are not made
        again.

        Raises:
            DataError: a file cannot be read, or the cache cannot be written.
        """
        for number in range(len(self._sources)):
            if progress:
                progress("counting tokens of files", number, len(self._sources))
            self._records.append(self._counted(number) or self._count(number))

    def lengths(self) -> Ints:
        """Return the tokens of each shard, end-of-text ids included; (S,)."""
        return np.array([record["tokens"] for record in self._records], dtype=np.int64)

    def totals(self) -> Counts:
        """Documents, bytes, characters, words and tokens of all shards together."""
        return {name: sum(record[name] for record in self._records) for name in _NOTHING}

    def describe(self) -> str:
        """Return how many of the tokens are kept, as a clause."""
        num_bytes = int(self.lengths().sum()) * self._token_bytes
        kept = min(num_bytes, self._limit_bytes)
        return (
            f"training tokens of {len(self._sources):,} files, {format_bytes(num_bytes)}: at most"
            f" {format_bytes(kept)} of them are kept on disk"
        )

    def require_room(self, together: int) -> None:
        """Raises DataError where so many of the largest shards do not fit the limit at once."""
        largest = sorted(self.lengths().tolist(), reverse=True)[:together]
        needed_bytes = sum(largest) * self._token_bytes
        if needed_bytes > self._limit_bytes:
            raise DataError(
                f"data.cache_gib={self._limit_bytes / GIB:.3g} is"
                f" {format_bytes(self._limit_bytes)}, but the tokens of {len(largest)} files that"
                f" are shuffled together take up to {format_bytes(needed_bytes)}. Set"
                f" data.cache_gib={needed_bytes / GIB * 1.05:.3g} or more, a smaller"
                " data.shuffled_files, or cut the files into smaller ones."
            )

    def tokens(self, number: int) -> Array:
        """Return the token ids of a shard, memory-mapped, from the disk or made again. Any thread
        may ask.

        Raises:
            DataError: its file is not what it was when its tokens were counted.
        """
        with self._lock:
            if number not in self._open:
                self._open[number] = self._read(number).tokens_N
            self._touch(number)
            return self._open[number]

    def _read(self, number: int) -> TokenSplit:
        split, record = self._made(number, self._records[number]["tokens"])
        if split is None or record != self._records[number]:
            shutil.rmtree(self._place(number), ignore_errors=True)
            raise DataError(
                f"{self._sources[number].name} is not what it was when its tokens were counted:"
                f" {record['tokens']:,} tokens, and {self._records[number]['tokens']:,} before. Put"
                " the file back; to train on it as it is now, start a new run with an empty"
                " BRIMFUL_CACHE."
            )
        return split

    def _made(self, number: int, tokens: int) -> tuple[TokenSplit | None, JsonDict]:
        """A shard on disk, which is made, of about so many tokens, where it is not there, and its
        counts; None where its file holds no document.
        """
        for _ in range(_ATTEMPTS):
            splits, record = read_tokens(self._place(number)), self._index(number)
            if splits is not None and record is not None:
                return splits[_TRAIN], record
            if not self._write(number, tokens * self._token_bytes):
                return None, _NOTHING
        raise DataError(
            f"the token cache {self._place(number)} does not read back as written. Check the disk,"
            " or set BRIMFUL_CACHE to another folder."
        )

    def _index(self, number: int) -> JsonDict | None:
        """Counts and checksums of a shard on disk; None where it is not there."""
        try:
            index = read_json(self._place(number) / "index.json", is_cached=True)
            record: JsonDict = index["splits"][_TRAIN]
        except (RunFolderError, KeyError, TypeError):
            return None
        return record

    def _counted(self, number: int) -> JsonDict | None:
        try:
            record = read_json(self._place(number).with_suffix(".json"), is_cached=True)
            return record if _NOTHING.keys() <= record.keys() else None
        except (RunFolderError, AttributeError):
            return None

    def _count(self, number: int) -> JsonDict:
        shutil.rmtree(self._place(number), ignore_errors=True)  # made of the file as it is now
        _, record = self._made(number, int(self.lengths().max(initial=0)))
        self._make_room(0)
        self._place(number).parent.mkdir(parents=True, exist_ok=True)
        write_json_atomically(self._place(number).with_suffix(".json"), record, with_checksum=True)
        return record

    def _write(self, number: int, num_bytes: int) -> bool:
        """Make a shard of about so many bytes; return whether it holds any document."""
        texts = self._sources[number].texts()
        first = next(texts, None)
        if first is None:
            return False
        self._make_room(num_bytes)
        write_tokens(
            self._place(number),
            ((_TRAIN, text) for text in chain([first], texts)),
            self._encode,
            vocabulary=self._vocabulary,
            end_of_text=self._end_of_text,
        )
        return True

    def _make_room(self, num_bytes: int) -> None:
        """Remove the shards that were not asked for longest until so many bytes are free."""
        places = [path for path in self._folder.glob("[0-9]*") if path.is_dir()]
        sizes = {path: _tokens_bytes(path) for path in places}
        for path in sorted(places, key=_last_use):
            if sum(sizes.values()) + num_bytes <= self._limit_bytes:
                return
            self._open.pop(int(path.name), None)
            shutil.rmtree(path, ignore_errors=True)
            del sizes[path]

    def _touch(self, number: int) -> None:
        try:
            os.utime(self._place(number))
        except OSError:
            return  # removed by another process; what is mapped stays readable

    def _place(self, number: int) -> Path:
        return self._folder / f"{number:06d}"


def _tokens_bytes(folder: Path) -> int:
    try:
        return (folder / f"{_TRAIN}.tokens.bin").stat().st_size
    except OSError:
        return 0


def _last_use(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:
        return 0.0
