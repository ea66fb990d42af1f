"""Batches of token ids. What a sample holds depends on the seed and the sample's number only, never
on who asks or when.

Suffixes: B sequences of a batch, T positions of a sequence, N tokens of a split, W sequences of an
epoch, D documents.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Literal

import numpy as np
import torch

from brimful.base.arrays import Array, Ints
from brimful.base.errors import DataError
from brimful.data.batches import IGNORED, Batch
from brimful.data.bins import spread_evenly
from brimful.data.row_layout import document_sequences, windows_of
from brimful.data.tokens import TokenSplit

PAD_MULTIPLE = 8


def padded_width(longest: int, limit: int) -> int:
    """Return the positions of a row that holds so many tokens, padding included; at most
    `limit`.
    """
    return min(-(-longest // PAD_MULTIPLE) * PAD_MULTIPLE, limit)


class Shuffle:
    """Endless numbered samples of `length` things: sample i belongs to epoch `i // length` and is
    shuffled within it.

    Philox's raw stream is fixed for ever, `Generator.permutation` is not (NEP 19).
    """

    def __init__(self, length: int, seed: int) -> None:
        self._length = length
        self._seed = seed
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def draw(self, first_sample: int, count: int) -> list[tuple[Ints, int]]:
        """Samples `first_sample` to `first_sample + count - 1`, epoch by epoch: their things, and a
        number drawn for the epoch (64 bits).
        """
        if first_sample < 0 or count < 1:
            raise ValueError(f"first_sample {first_sample} must be >= 0 and count {count} >= 1")
        pieces: list[tuple[Ints, int]] = []
        sample, end = first_sample, first_sample + count
        while sample < end:
            epoch, place = divmod(sample, self._length)
            order_W, drawn = self._epoch(epoch)
            taken = min(end - sample, self._length - place)
            pieces.append((order_W[place : place + taken], drawn))
            sample += taken
        return pieces

    def numbers(self, first_sample: int, count: int) -> Ints:
        """Return the number of each sample's example or window; samples may span epochs."""
        return np.concatenate([order_W for order_W, _ in self.draw(first_sample, count)])

    def _draw_epoch(self, epoch: int) -> tuple[Ints, int]:
        raw = np.random.Philox(key=np.array([self._seed, epoch], dtype=np.uint64)).random_raw(
            self._length + 1
        )
        return np.argsort(raw[1:], kind="stable"), int(raw[0])


class TokenSequences:
    """Endless numbered training samples of a split: sample i belongs to epoch `i // len(self)` and
    is shuffled within it.

    Layout stream: the split is cut into windows of `sequence_length + 1` tokens that share one
    token with the next, from a start that is drawn anew for every epoch. Layout document: one
    document per sequence, `[end-of-text] + document` to `document + [end-of-text]`, padded on the
    right to the longest of the batch, rounded up to a multiple of 8.

    Args:
        split: Tokens to draw from.
        sequence_length: Positions of a sequence (T).
        layout: stream or document.
        long_documents: What becomes of a document with more than T positions (its tokens plus one),
            in layout document.
        seed: The seed of the shuffle and the start.

    Raises:
        DataError: the split is too short for one sequence, or a document is too long and
            `long_documents` is error.
    """

    def __init__(
        self,
        split: TokenSplit,
        sequence_length: int,
        layout: Literal["stream", "document"] = "stream",
        long_documents: Literal["error", "truncate", "split", "drop"] = "error",
        seed: int = 0,
    ) -> None:
        self._tokens_N = np.asarray(split.tokens_N)
        self._sequence_length = sequence_length
        self._layout = layout
        if layout == "stream":
            self._windows_NT = windows_of(self._tokens_N, sequence_length)
            self._num_sequences = max((split.num_tokens - sequence_length) // sequence_length, 1)
        else:
            self._starts_W, self._lengths_W, _ = document_sequences(
                split, sequence_length, long_documents
            )
            self._num_sequences = len(self._starts_W)
            self._end_of_text = split.end_of_text
        self._shuffle = Shuffle(self._num_sequences, seed)

    def __len__(self) -> int:
        """Sequences of one epoch (W); the same for every epoch."""
        return self._num_sequences

    def batch(self, first_sample: int, count: int) -> Batch:
        """Samples `first_sample` to `first_sample + count - 1`, a pure function of the seed and
        these numbers.
        """
        pieces = self._shuffle.draw(first_sample, count)
        if self._layout == "stream":
            return self._stream_batch(pieces)
        return self._document_batch(np.concatenate([order for order, _ in pieces]))

    def _stream_batch(self, pieces: list[tuple[Ints, int]]) -> Batch:
        num_starts = min(
            self._sequence_length, len(self._tokens_N) - len(self) * self._sequence_length
        )
        starts_B = np.concatenate(
            [order * self._sequence_length + drawn % num_starts for order, drawn in pieces]
        )
        return shifted(self._windows_NT[starts_B])

    def _document_batch(self, order_B: Ints) -> Batch:
        width = padded_width(int(self._lengths_W[order_B].max()), self._sequence_length)
        inputs_BT = np.full((len(order_B), width), self._end_of_text, dtype=np.int64)
        targets_BT = np.full((len(order_B), width), IGNORED, dtype=np.int64)
        for row, sequence in enumerate(order_B):
            start, length = int(self._starts_W[sequence]), int(self._lengths_W[sequence])
            targets_BT[row, :length] = self._tokens_N[start : start + length]
            # The array is filled with end-of-text, which is what precedes the first document.
            first = int(start == 0)
            inputs_BT[row, first:length] = self._tokens_N[start + first - 1 : start + length - 1]
        return Batch(torch.from_numpy(inputs_BT), torch.from_numpy(targets_BT))


def shifted(windows_BT: Array) -> Batch:
    """Return windows of T + 1 tokens as inputs and the targets that follow them."""
    inputs_BT, targets_BT = windows_BT[:, :-1].astype(np.int64), windows_BT[:, 1:].astype(np.int64)
    return Batch(torch.from_numpy(inputs_BT), torch.from_numpy(targets_BT))


def evaluation_batches(
    split: TokenSplit, context: int, stride: int, batch_size: int, max_sequences: int | None = None
) -> Iterator[Batch]:
    """Windows in which every token of the split but the very first is a target exactly once.

    With `stride == context` the windows do not overlap; with a smaller stride every window after
    the first reads its first `context - stride` positions again as context that is not scored. All
    windows are `context` wide; the last one is padded on the right.

    Args:
        split: Tokens to score (N of them give N - 1 targets).
        context: Positions of a window (T).
        stride: New targets per window, 1 to context.
        batch_size: Windows per batch; the last batch may hold fewer.
        max_sequences: Score at most this many windows, spread evenly over the split.

    Raises:
        DataError: fewer than two tokens; ValueError: stride, batch_size or max_sequences out of
            range.
    """
    if (
        not 1 <= stride <= context
        or batch_size < 1
        or (max_sequences is not None and max_sequences < 1)
    ):
        raise ValueError(
            f"need 1 <= stride {stride} <= context {context}, batch_size {batch_size} >= 1 and"
            f" max_sequences {max_sequences} >= 1"
        )
    if split.num_tokens < 2:
        raise DataError(
            f"a split of {split.num_tokens} tokens has nothing to predict; scoring needs at"
            " least 2."
        )
    num_targets = split.num_tokens - 1
    num_windows = 1 + -(-max(num_targets - context, 0) // stride)
    chosen = spread_evenly(num_windows, max_sequences)
    return _evaluation_batches(
        np.asarray(split.tokens_N),
        context,
        stride,
        [chosen[start : start + batch_size] for start in range(0, len(chosen), batch_size)],
    )


def _evaluation_batches(
    tokens_N: Array, context: int, stride: int, batches: list[Ints]
) -> Iterator[Batch]:
    for windows_B in batches:
        positions_BT = (windows_B * stride)[:, None] + np.arange(context)
        is_inside_BT = positions_BT < len(tokens_N) - 1
        is_new_BT = (np.arange(context) >= context - stride) | (windows_B == 0)[:, None]
        within_BT = np.minimum(positions_BT, len(tokens_N) - 2)
        inputs_BT = tokens_N[within_BT].astype(np.int64)
        targets_BT = np.where(
            is_inside_BT & is_new_BT, tokens_N[within_BT + 1].astype(np.int64), IGNORED
        )
        yield Batch(torch.from_numpy(inputs_BT), torch.from_numpy(targets_BT))
