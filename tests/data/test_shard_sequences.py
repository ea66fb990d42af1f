"""Samples from shards: a pure function of seed and number, every window once an epoch."""

from typing import Any

import numpy as np
import pytest
from fixture_types import Refuses

from brimful.base.arrays import Array, Ints
from brimful.base.errors import DataError
from brimful.data.shard_sequences import ShardSequences

LENGTH = 8


class Numbered:
    """Shards whose token n of shard s is 1000 s + n."""

    def __init__(self, *lengths: int) -> None:
        self._lengths = lengths
        self.asked: list[int] = []

    def lengths(self) -> Ints:
        return np.array(self._lengths, dtype=np.int64)

    def tokens(self, number: int) -> Array:
        self.asked.append(number)
        return 1000 * number + np.arange(self._lengths[number])


def sequences(shards: Any, together: int = 2, seed: int = 0) -> ShardSequences:
    return ShardSequences(shards, LENGTH, together, seed)


def rows(drawn: ShardSequences, first: int, count: int) -> Array:
    return drawn.batch(first, count).inputs_BT.numpy()


def test_targets_follow_inputs_within_one_shard() -> None:
    drawn = sequences(Numbered(50, 30, 90, 41))
    batch = drawn.batch(0, 3 * len(drawn))
    np.testing.assert_array_equal(batch.targets_BT, batch.inputs_BT + 1)
    assert (batch.inputs_BT // 1000 == batch.targets_BT // 1000).all()


def test_every_window_of_every_shard_comes_once_in_an_epoch() -> None:
    lengths = (50, 30, 90, 41, 8, 9)
    drawn = sequences(Numbered(*lengths))
    counts = [max(length // LENGTH - 1, 1) * (length > LENGTH) for length in lengths]
    assert len(drawn) == sum(counts)
    for epoch in range(3):
        first_B = rows(drawn, epoch * len(drawn), len(drawn))[:, 0]
        assert len(set(first_B.tolist())) == len(drawn)
        assert np.bincount(first_B // 1000, minlength=6).tolist() == counts
        for shard, length in enumerate(lengths):
            starts = np.sort(first_B[first_B // 1000 == shard]) % 1000
            assert (np.diff(starts) == LENGTH).all()
            assert all(starts + LENGTH < length)


def test_a_sample_does_not_depend_on_who_asked_before() -> None:
    drawn = sequences(Numbered(50, 30, 90, 41), seed=3)
    whole = rows(drawn, 0, 60)
    for first, count in ((40, 20), (0, 1), (17, 9), (59, 1)):
        fresh = sequences(Numbered(50, 30, 90, 41), seed=3)
        np.testing.assert_array_equal(rows(fresh, first, count), whole[first : first + count])


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    drawn = sequences(Numbered(200, 200, 200, 200))
    other = sequences(Numbered(200, 200, 200, 200), seed=1)
    size = len(drawn)
    assert (rows(drawn, 0, size) != rows(other, 0, size)).any()
    assert (rows(drawn, 0, size) != rows(drawn, size, size)).any()


def test_few_shards_are_asked_for_at_a_time() -> None:
    """Four of eight shards in the first half of an epoch, however its windows are shuffled."""
    shards = Numbered(*[100] * 8)
    drawn = sequences(shards, together=4)
    rows(drawn, 0, len(drawn) // 2)
    assert len(set(shards.asked)) == 4
    firsts = rows(drawn, 0, len(drawn) // 2)[:, 0] // 1000
    assert len(set(firsts[:16].tolist())) == 4, "windows of the four are mixed"


def test_the_first_samples_stay_what_they_are() -> None:
    """A change of the order would change every run that goes on."""
    first_B = rows(sequences(Numbered(50, 30, 90, 41), seed=7), 0, 8)[:, 0]
    assert first_B.tolist() == [3001, 3025, 1012, 3009, 3017, 1004, 2058, 22]


def test_files_shorter_than_a_sequence_are_refused(refuses) -> None:
    with refuses(DataError, names=["sequence_length"]):
        sequences(Numbered(8, 3))


@pytest.mark.parametrize(("first", "count"), [(-1, 1), (0, 0)])
def test_numbers_that_make_no_sense_are_refused(first: int, count: int, refuses: Refuses) -> None:
    with refuses(ValueError, names=["first_sample"]):
        sequences(Numbered(50)).batch(first, count)
