"""Shards of tokens: made when needed, within the limit, and always the same."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from brimful.base.errors import DataError
from brimful.data.shards import Shards, ShardSource


def encode(texts: list[str]) -> list[list[int]]:
    return [[len(word) for word in text.split()] for text in texts]


class Files:
    """Five files of texts in memory; says how often each was read."""

    def __init__(self) -> None:
        self.texts = [[f"{'word ' * (10 + number)}of file"] * 20 for number in range(5)]
        self.reads = [0] * 5

    def sources(self) -> list[ShardSource]:
        return [ShardSource(f"file-{number}", self._reader(number)) for number in range(5)]

    def _reader(self, number: int) -> "Reader":
        return Reader(self, number)


class Reader:
    def __init__(self, files: Files, number: int) -> None:
        self._files, self._number = files, number

    def __call__(self) -> Iterator[str]:
        self._files.reads[self._number] += 1
        return iter(self._files.texts[self._number])


def opened(folder: Path, files: Files, limit_bytes: int = 2000) -> Shards:
    shards = Shards(
        folder,
        files.sources(),
        encode,
        vocabulary=100,
        end_of_text=0,
        limit_bytes=limit_bytes,
    )
    shards.count()
    return shards


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.tokens.bin"))


def test_lengths_and_totals_are_those_of_the_texts(tmp_path: Path) -> None:
    shards = opened(tmp_path / "files", Files())
    assert shards.lengths().tolist() == [20 * (13 + number) for number in range(5)]
    assert shards.totals()["documents"] == 100
    assert shards.totals()["tokens"] == shards.lengths().sum()


def test_the_disk_holds_no_more_than_the_limit(tmp_path: Path) -> None:
    """Each of the five shards takes 520 to 680 bytes."""
    shards = opened(tmp_path / "files", Files())
    assert on_disk(tmp_path) <= 2000
    for number in [0, 3, 1, 4, 2, 0]:
        shards.tokens(number)
        assert on_disk(tmp_path) <= 2000


def test_a_removed_shard_is_made_again_with_the_same_tokens(tmp_path: Path) -> None:
    files = Files()
    shards = opened(tmp_path / "files", files)
    first = np.array(shards.tokens(0))
    for number in (1, 2, 3, 4):
        shards.tokens(number)
    reads = files.reads[0]
    np.testing.assert_array_equal(shards.tokens(0), first)
    assert files.reads[0] == reads + 1


def test_the_shard_that_was_used_last_stays(tmp_path: Path) -> None:
    files = Files()
    shards = opened(tmp_path / "files", files)
    reads = files.reads[4]
    for number in (4, 0, 4, 1, 4, 2, 4):
        shards.tokens(number)
    assert files.reads[4] == reads


def test_a_second_process_counts_nothing_again(tmp_path: Path) -> None:
    opened(tmp_path / "files", Files())
    files = Files()
    again = opened(tmp_path / "files", files)
    assert files.reads == [0] * 5
    assert again.lengths().tolist() == [20 * (13 + number) for number in range(5)]


def test_counting_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    opened(tmp_path / "files", Files())
    (tmp_path / "files" / "000003.json").unlink()
    files = Files()
    opened(tmp_path / "files", files)
    assert files.reads == [0, 0, 0, 1, 0]


def test_a_file_without_training_documents_has_no_tokens(tmp_path: Path) -> None:
    files = Files()
    files.texts[2] = []
    assert opened(tmp_path / "files", files).lengths()[2] == 0


def test_a_file_that_changed_is_refused(refuses, tmp_path: Path) -> None:
    files = Files()
    shards = opened(tmp_path / "files", files)
    shutil.rmtree(tmp_path / "files" / "000000", ignore_errors=True)
    files.texts[0][5] = "other words"
    with refuses(DataError, names=["file-0"]):
        shards.tokens(0)


def test_a_damaged_shard_is_made_again(tmp_path: Path) -> None:
    shards = opened(tmp_path / "files", Files())
    expected = np.array(shards.tokens(4))
    path = tmp_path / "files" / "000004" / "train.tokens.bin"
    path.write_bytes(path.read_bytes()[:-2] + b"\xff\xff")
    np.testing.assert_array_equal(opened(tmp_path / "files", Files()).tokens(4), expected)


def test_too_small_a_limit_names_one_that_is_enough(refuses, tmp_path: Path) -> None:
    shards = opened(tmp_path / "files", Files(), limit_bytes=1000)
    shards.require_room(1)
    with refuses(DataError, names=["data.cache_gib"]):
        shards.require_room(2)


@pytest.mark.parametrize("limit_bytes", [700, 100_000])
def test_threads_that_ask_at_once_get_the_same_tokens(tmp_path: Path, limit_bytes: int) -> None:
    shards = opened(tmp_path / "files", Files(), limit_bytes)
    expected = [np.array(shards.tokens(number)) for number in range(5)]
    wrong: list[int] = []

    def ask(seed: int) -> None:
        drawn = map(int, np.random.default_rng(seed).integers(0, 5, 20))
        wrong.extend(
            each for each in drawn if not np.array_equal(shards.tokens(each), expected[each])
        )

    threads = [Thread(target=ask, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
