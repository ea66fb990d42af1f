"""Batches from shards of tokens, of which few are on disk at once. Which tokens a sample holds
depends on the seed, the sample's number and the shards' lengths only, as for `TokenSequences`.

Suffixes: B sequences of a batch, T positions of a sequence, S shards, G groups, W windows of a
group.
"""

from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from brimful.base.arrays import Ints
from brimful.base.errors import DataError
from brimful.data.batches import Batch
from brimful.data.sequences import shifted
from brimful.data.shards import Shards


class ShardSequences:
    """Endless numbered training samples; sample i belongs to epoch `i // len(self)`.

    Each shard is cut into windows of `sequence_length + 1` tokens that share one token with the
    next, from a start that is drawn anew for every epoch. In every epoch the shards come in a new
    order, `together` of them at a time, and the windows of these are shuffled.

    Args:
        shards: Counted.
        sequence_length: Positions of a sequence (T).
        together: Shards whose windows are shuffled with each other.
        seed: The seed of the orders and the starts.

    Raises:
        DataError: no shard holds a whole sequence.
    """

    def __init__(self, shards: Shards, sequence_length: int, together: int, seed: int) -> None:
        self._shards, self._length = shards, sequence_length
        self._together, self._seed = together, seed
        self._tokens_S = shards.lengths()
        holds_one_S = self._tokens_S > sequence_length
        self._windows_S = np.where(
            holds_one_S, np.maximum(self._tokens_S // sequence_length - 1, 1), 0
        )
        self._num_windows = int(self._windows_S.sum())
        if not self._num_windows:
            raise DataError(
                f"no file has {sequence_length + 1} training tokens, which one sequence needs"
                f" (sequence_length {sequence_length} + 1), and with data.cache_gib sequences do"
                " not go from file to file: use larger files or a shorter sequence_length."
            )
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)
        self._group = lru_cache(maxsize=2)(self._draw_group)

    def __len__(self) -> int:
        """Sequences of one epoch; the same for every epoch."""
        return self._num_windows

    def batch(self, first_sample: int, count: int) -> Batch:
        """Samples `first_sample` to `first_sample + count - 1`, a pure function of the seed and
        these numbers.
        """
        if first_sample < 0 or count < 1:
            raise ValueError(f"first_sample {first_sample} must be >= 0 and count {count} >= 1")
        pairs = [self._place_of(sample) for sample in range(first_sample, first_sample + count)]
        shard_B, start_B = (np.array(each, dtype=np.int64) for each in zip(*pairs, strict=True))
        rows_BT = np.empty((count, self._length + 1), dtype=np.int64)
        for shard in np.unique(shard_B):
            windows_NT = sliding_window_view(self._shards.tokens(int(shard)), self._length + 1)
            rows_BT[shard_B == shard] = windows_NT[start_B[shard_B == shard]]
        return shifted(rows_BT)

    def _place_of(self, sample: int) -> tuple[int, int]:
        """Return the shard of a sample, and where in it the sample begins."""
        epoch, place = divmod(sample, self._num_windows)
        _, ends_G, starts_S = self._epoch(epoch)
        group = int(np.searchsorted(ends_G, place, side="right"))
        before = int(ends_G[group - 1]) if group else 0
        shard_W, window_W = self._group(epoch, group)
        shard = int(shard_W[place - before])
        return shard, int(window_W[place - before] * self._length + starts_S[shard])

    def _draw_epoch(self, epoch: int) -> tuple[Ints, Ints, Ints]:
        """Return the order of the shards, how many windows there are up to the end of each group,
        and where the first window of each shard starts.
        """
        num_shards = len(self._tokens_S)
        raw = self._philox(epoch, 0).random_raw(2 * num_shards)
        order_S = np.argsort(raw[:num_shards], kind="stable")
        firsts = np.arange(0, num_shards, self._together)
        ends_G = np.cumsum(np.add.reduceat(self._windows_S[order_S], firsts))
        left_S = self._tokens_S - self._windows_S * self._length  # 1 to T + ... places to start
        possible_S = np.clip(left_S, 1, self._length).astype(np.uint64)
        return order_S, ends_G, (raw[num_shards:] % possible_S).astype(np.int64)

    def _draw_group(self, epoch: int, group: int) -> tuple[Ints, Ints]:
        """Return shard and number of each window of a group, in the order of the samples."""
        order_S, _, _ = self._epoch(epoch)
        members = order_S[group * self._together : (group + 1) * self._together]
        counts = self._windows_S[members]
        shard_W = np.repeat(members, counts)
        window_W = np.concatenate([np.arange(each) for each in counts])
        order_W = np.argsort(self._philox(epoch, group + 1).random_raw(len(shard_W)), kind="stable")
        return shard_W[order_W], window_W[order_W]

    def _philox(self, epoch: int, stream: int) -> np.random.Philox:
        """Return a stream of random numbers; Philox's raw ones are fixed for ever."""
        key: NDArray[np.uint64] = np.array([self._seed, epoch], dtype=np.uint64)
        return np.random.Philox(key=key, counter=np.array([0, 0, 0, stream], dtype=np.uint64))
