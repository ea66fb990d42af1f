"""Texts with labels as token ids, and batches of them: rows of similar length together, so that
little is computed on padding.

What an optimizer step sees depends on the seed and the samples' numbers only; how it is cut into
passes changes nothing but rounding. Suffixes: E texts of a split, B texts of a pass, T positions of
a row, C labels, N tokens.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from brimful.base.arrays import Array, Floats32, Ints
from brimful.base.errors import DataError
from brimful.data.batches import MicroBatch
from brimful.data.bins import longest_first
from brimful.data.labelled_tokens import EncodedLabels
from brimful.data.length_window import dealt_by_length
from brimful.data.packed_passes import PackedPasses
from brimful.data.sequences import Shuffle, padded_width
from brimful.recipe import Recipe

_STEPS_LAID_OUT = 20


def pad_id_of(tokenizer: PreTrainedTokenizerBase, rows: int) -> int:
    """The token that fills rows: the tokenizer's own, else its end of text.

    Args:
        tokenizer: The model's.
        rows: Rows of the model's embedding: a token without one is passed over.

    Raises:
        DataError: there is neither.
    """
    ids = [
        number
        for number in (tokenizer.pad_token_id, tokenizer.eos_token_id)
        if number is not None and number < rows
    ]
    if not ids:
        raise DataError(
            "the model's tokenizer has neither a padding nor an end-of-text token. Set one in its"
            " tokenizer_config.json."
        )
    return int(ids[0])


def positions_per_text(encoded: EncodedLabels, recipe: Recipe) -> float:
    """Positions that a text takes in training on average, padding included, by laying out some
    optimizer steps.
    """
    passes, batch = Passes(0, recipe.sequence_length, PASS_OVERHEAD["cpu"]), recipe.effective_batch
    steps = recipe.label_rules.length_window
    shuffled = np.random.Generator(np.random.Philox(key=recipe.seed)).choice(
        encoded.lengths_E, size=(_STEPS_LAID_OUT * steps, batch)
    )
    if steps > 1:
        windows = np.sort(shuffled.reshape(_STEPS_LAID_OUT, -1), axis=1)
        shuffled = windows.reshape(_STEPS_LAID_OUT * steps, batch)
    budget = batch * recipe.sequence_length
    positions = sum(sum(passes.positions(lengths, budget)) for lengths in shuffled.tolist())
    return positions / shuffled.size


PASS_OVERHEAD = {"cpu": 64, "mps": 512, "cuda": 1024}
"""What a pass costs beside its positions, in positions. CPU: measured, flat between 16 and 256
(docs/log, 2026-11-22); the others are assumptions.
"""


@dataclass(frozen=True)
class Passes:
    """How texts are laid into passes through the model.

    Attributes:
        pad_id: Token that fills rows.
        limit: Positions of a row at most.
        overhead: What a pass costs beside its positions, in positions: more of it makes fewer
            passes with more padding.
    """

    pad_id: int
    limit: int
    overhead: int

    def laid_out(self, lengths: Sequence[int], budget: int) -> list[list[int]]:
        """Numbers of the texts of each pass, at the least cost: positions, padding included, and
        the overhead of every pass.

        Exact, by dynamic programming over the widths that occur (Bellman 1957): a cheapest layout
        never mixes sorted texts.

        Args:
            lengths: Tokens of each text.
            budget: Positions of a pass at most; one longer text makes a pass of its own.
        """
        order = longest_first(lengths)
        counts = Counter(padded_width(lengths[number], self.limit) for number in order)
        widths = sorted(counts, reverse=True)
        until = [0]
        for width in widths:
            until.append(until[-1] + counts[width])
        cost, begin = [0.0], [0]
        for end in range(1, len(until)):
            costs = [
                cost[start] + self._cost(widths[start], until[end] - until[start], budget)
                for start in range(end)
            ]
            begin.append(int(np.argmin(costs)))
            cost.append(costs[begin[end]])
        passes: list[list[int]] = []
        end = len(widths)
        while end:
            start = begin[end]
            passes[:0] = _evenly_cut(
                order[until[start] : until[end]], self._rows(widths[start], budget)
            )
            end = start
        return passes

    def positions(self, lengths: Sequence[int], budget: int) -> list[int]:
        """Positions of every pass of these texts, padding included; arguments as for
        `laid_out`.
        """
        return [
            len(numbers) * padded_width(max(lengths[number] for number in numbers), self.limit)
            for numbers in self.laid_out(lengths, budget)
        ]

    @staticmethod
    def _rows(width: int, budget: int) -> int:
        return max(1, budget // width)

    def _cost(self, width: int, texts: int, budget: int) -> float:
        return float(width * texts + self.overhead * -(-texts // self._rows(width, budget)))

    def filled(self, ids: Sequence[NDArray[np.uint32]]) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Rows filled on the right, and 1 where they hold text, int64 (B, T) both; no mask where
        nothing is filled.
        """
        lengths_B = np.array([*map(len, ids)])
        width = padded_width(int(lengths_B.max()), self.limit)
        inputs_BT = np.full((len(ids), width), self.pad_id, dtype=np.int64)
        mask_BT = np.arange(width) < lengths_B[:, None]
        inputs_BT[mask_BT] = np.concatenate(ids)
        mask = None if mask_BT.all() else torch.from_numpy(mask_BT.astype(np.int64))
        return torch.from_numpy(inputs_BT), mask

    def micro_batch(
        self,
        ids: Sequence[NDArray[np.uint32]],
        targets: Array,
        weights: Floats32,
        budget: int,
    ) -> MicroBatch:
        """Return a pass of these texts, one in each row."""
        inputs_BT, mask_BT = self.filled(ids)
        return MicroBatch(
            inputs_BT,
            torch.from_numpy(targets),
            mask_BT=mask_BT,
            weights=torch.from_numpy(weights),
        )


def _evenly_cut(numbers: list[int], most: int) -> list[list[int]]:
    """As few pieces of at most `most` as there can be, of equal size as far as possible."""
    pieces = -(-len(numbers) // most)
    return [piece.tolist() for piece in np.array_split(np.array(numbers), pieces)]


class LabelledSequences:
    """Endless numbered training texts of a split: sample i belongs to epoch `i // len(self)` and is
    shuffled within it.

    Args:
        encoded: Texts to draw from.
        weights_C: How much a text counts by its label; None: all alike. Of texts with several
            labels: how much having the label counts.
        passes: How texts become rows.
        seed: The seed of the shuffle.
        batch: Texts of an optimizer step.
        window: The texts of so many batches are dealt out by length (`dealt_by_length`); 1: batches
            are as they are shuffled. A window never reaches beyond its epoch, so each text still
            comes once in an epoch.
    """

    def __init__(
        self,
        encoded: EncodedLabels,
        weights_C: Floats32 | None,
        passes: Passes | PackedPasses,
        seed: int,
        batch: int = 1,
        window: int = 1,
    ) -> None:
        self._encoded, self._weights_C, self._passes = encoded, weights_C, passes
        self._shuffle, self._seed = Shuffle(len(encoded), seed), seed
        self._batch, self._texts = batch, batch * window
        self._numbers_of_window = lru_cache(maxsize=4)(self._draw_window)

    def __len__(self) -> int:
        """Texts of one epoch."""
        return len(self._encoded)

    def batch(self, first_sample: int, count: int) -> "LabelledBatch":
        """Samples `first_sample` to `first_sample + count - 1`, a pure function of the seed and
        these numbers.
        """
        chosen = self._numbers(first_sample, count)
        targets = self._encoded.split.targets[chosen]
        return LabelledBatch(
            tuple(self._encoded.ids(number) for number in chosen),
            targets,
            weights_of(targets, self._weights_C),
            self._passes,
        )

    def positions_of_passes(self, first_sample: int, count: int, budget: int) -> list[int]:
        """Positions of every pass of a batch, padding included, in passes of at most `budget`."""
        lengths = self._encoded.lengths_E[self._numbers(first_sample, count)].tolist()
        return self._passes.positions(lengths, budget)

    def _numbers(self, first_sample: int, count: int) -> Ints:
        """Numbers of the texts of samples, which may span windows and epochs."""
        if self._texts == self._batch:
            return self._shuffle.numbers(first_sample, count)
        pieces, sample, end = [], first_sample, first_sample + count
        while sample < end:
            epoch, place = divmod(sample, len(self))
            number, place = divmod(place, self._texts)
            numbers = self._numbers_of_window(epoch, number)
            taken = min(end - sample, len(numbers) - place)
            pieces.append(numbers[place : place + taken])
            sample += taken
        return np.concatenate(pieces)

    def _draw_window(self, epoch: int, number: int) -> Ints:
        """The texts of a window of an epoch, in order; the last one of an epoch may be smaller."""
        start = number * self._texts
        size = min(self._texts, len(self) - start)
        first = epoch * len(self) + start
        numbers = self._shuffle.numbers(first, size)
        words = np.random.SeedSequence((self._seed, epoch, number)).generate_state(2, np.uint64)
        seed = np.asarray(words, np.uint64)
        lengths = self._encoded.lengths_E[numbers]
        return numbers[dealt_by_length(lengths, first, self._batch, seed)]


def weights_of(targets: Array, weights_C: Floats32 | None) -> Floats32:
    """How much each target counts, in the targets' shape."""
    if weights_C is None:
        return np.ones(targets.shape, dtype=np.float32)
    if targets.ndim == 1:
        return weights_C.take(targets)
    return np.where(targets > 0, weights_C, np.float32(1)).astype(np.float32)


@dataclass(frozen=True)
class LabelledBatch:
    """The texts of one optimizer step; a `batches.StepBatch`."""

    ids: tuple[NDArray[np.uint32], ...]
    targets: Array
    weights: Floats32
    passes: Passes | PackedPasses

    @property
    def num_target_tokens(self) -> int:
        """Tokens of the texts, special ones included: what training has read."""
        return sum(map(len, self.ids))

    @property
    def loss_divisor(self) -> float:
        """The sum of the texts' weights, so that the loss is their weighted mean over the whole
        step; of texts with several labels their number.
        """
        if self.targets.ndim == 1:
            return float(self.weights.sum(dtype=np.float64))
        return float(len(self.ids))

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        """Texts of similar length together, in passes of at most `max(sizes)` x the longest row
        allowed positions each, padding included.
        """
        budget = max(sizes) * self.passes.limit
        for numbers in self.passes.laid_out(list(map(len, self.ids)), budget):
            yield self.passes.micro_batch(
                [self.ids[number] for number in numbers],
                self.targets[numbers],
                self.weights[numbers],
                budget,
            )
