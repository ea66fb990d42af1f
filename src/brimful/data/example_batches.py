"""Batches of examples: packed end to end in one row, or one per row beside others of similar
length. A sample is one example, or several that belong together, as the two answers of a pair.

What a batch holds depends on the seed and the samples' numbers only. Suffixes: B rows, T positions
of a row, E examples, N tokens.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from brimful.base.arrays import Bools, Floats32, Ints
from brimful.data.batches import IGNORED, MicroBatch
from brimful.data.bins import even_bins, longest_first, spread_evenly
from brimful.data.examples import ExampleSplit
from brimful.data.sequences import Shuffle, padded_width
from brimful.recipe.kinds import shares_beginnings

Layout = Literal["packed", "padded", "shared"]
MOST_LAID_OUT = 400
"""Samples of which it is seen how much their examples share."""


def layout_of(packing: str, device_kind: str) -> Layout:
    """Return how examples that begin alike are laid out."""
    if packing == "padded":
        return "padded"
    return "shared" if shares_beginnings(packing, device_kind) else "packed"


class _Pair(NamedTuple):
    """An example of n tokens as n - 1 inputs and what follows each of them, `IGNORED` where that is
    not learned.
    """

    inputs_T: Ints
    targets_T: Ints

    @property
    def beginning(self) -> tuple[int, ...]:
        """The inputs before the one that the first learned token follows; none where they are so
        short a part that copies of their keys and values could take more than is saved.
        """
        length = int(np.argmax(self.targets_T != IGNORED))
        return tuple(self.inputs_T[:length].tolist()) if 6 * length >= len(self.inputs_T) else ()


class ExampleSequences:
    """Endless numbered training samples of a split: sample i belongs to epoch `i // len(self)` and
    is shuffled within it.

    Args:
        split: Examples to draw from, none with more than `sequence_length + 1` tokens.
        sequence_length: Positions of a sequence (T): a micro-batch has at most the recipe's
            sequences times T positions.
        layout: packed: the examples of a micro-batch end to end in one row; padded: one per row,
            rows of similar length together; shared: packed, and what examples begin with alike,
            before their first learned token, is there once.
        seed: The seed of the shuffle.
        per_sample: Examples of a sample, one after another in the split.

    Raises:
        ValueError: an example is too long.
    """

    def __init__(
        self,
        split: ExampleSplit,
        sequence_length: int,
        layout: Layout = "packed",
        seed: int = 0,
        per_sample: int = 1,
    ) -> None:
        longest = int(split.lengths_E.max()) - 1
        if longest > sequence_length:
            raise ValueError(f"need longest example {longest} <= sequence_length {sequence_length}")
        self._split = split
        self._sequence_length = sequence_length
        self._layout = layout
        self._per_sample = per_sample
        self._shuffle = Shuffle(len(self), seed)

    def __len__(self) -> int:
        """Samples of one epoch."""
        return self._split.num_examples // self._per_sample

    def examples(self, first_sample: int, count: int) -> Ints:
        """Return the numbers of the examples of samples, sample by sample."""
        numbers = self._per_sample * self._shuffle.numbers(first_sample, count)
        return (numbers[:, None] + np.arange(self._per_sample)).ravel()

    def batch(self, first_sample: int, count: int) -> "ExampleBatch":
        """Samples `first_sample` to `first_sample + count - 1`, a pure function of the seed and
        these numbers.
        """
        pairs = pairs_of(self._split, self.examples(first_sample, count))
        return ExampleBatch(pairs, self._sequence_length, self._layout, self._per_sample)

    def positions_of_passes(self, first_sample: int, count: int, budget: int) -> list[int]:
        """Return for each pass of a batch how many positions it computes, padding included. They
        are counted for one example of each sample (a pair has two), at most `budget` in a pass.
        """
        each, limit = self._per_sample, self._sequence_length
        examples = self.examples(first_sample, count)
        lengths = (self._split.lengths_E[examples] - 1).tolist()
        passes = _passes(lengths, each, each * budget, limit, self._layout)
        if self._layout == "shared":
            rows = (pairs_of(self._split, examples[filled]) for filled in passes)
            return [-(-_positions_of_sharing(pairs) // each) for pairs in rows]
        if self._layout != "padded":
            return [-(-sum(lengths[number] for number in filled) // each) for filled in passes]
        return [
            len(rows) // each * padded_width(max(lengths[number] for number in rows), limit)
            for rows in passes
        ]


@dataclass(frozen=True)
class ExampleBatch:
    """The examples of one optimizer step; a `batches.StepBatch`."""

    pairs: tuple[_Pair, ...]
    sequence_length: int
    layout: Layout
    per_sample: int = 1
    kept: Mapping[str, Floats32] = field(default_factory=dict)
    """Values of each example, as `MicroBatch.kept`."""

    @property
    def num_target_tokens(self) -> int:
        """Positions that count in the loss."""
        return sum(int((pair.targets_T != IGNORED).sum()) for pair in self.pairs)

    @property
    def loss_divisor(self) -> float:
        """The target tokens."""
        return self.num_target_tokens

    def micro_batches(self, sizes: tuple[int, ...]) -> Iterator[MicroBatch]:
        """The samples in as few micro-batches as fit under `max(sizes)` x `sequence_length`
        positions for each example of a sample, padding included. The first examples of all samples
        come first, then the second ones.
        """
        each, limit = self.per_sample, self.sequence_length
        lengths = [len(pair.inputs_T) for pair in self.pairs]
        budget = max(sizes) * limit * each
        passes = _passes(lengths, each, budget, limit, self.layout)
        lay_out = partial(_padded, limit=limit) if self.layout == "padded" else _packed
        if self.layout == "shared":
            lay_out = _sharing
            passes = _alike_together(self.pairs, budget) if each == 1 else passes
        for numbers in passes:
            micro = lay_out([self.pairs[number] for number in numbers])
            kept = {name: torch.from_numpy(values[numbers]) for name, values in self.kept.items()}
            yield replace(micro, kept=kept)


def _alike_together(pairs: Sequence[_Pair], budget: int) -> Iterator[list[int]]:
    """Numbers of the examples of each pass: those that begin alike follow each other, and a pass
    has no more positions than if nothing were shared, which keys and values take.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, pair in enumerate(pairs):
        groups.setdefault(pair.beginning, []).append(number)
    rows: list[int] = []
    room = budget
    for number in chain.from_iterable(groups.values()):
        length = len(pairs[number].inputs_T)
        if rows and length > room:
            yield rows
            rows, room = [], budget
        rows.append(number)
        room -= length
    yield rows


def _passes(
    lengths: Sequence[int], per_sample: int, budget: int, limit: int, layout: str
) -> Iterator[list[int]]:
    """Numbers of the examples of each pass of at most `budget` positions: the first examples of
    its samples, then the second ones.
    """
    samples = list(zip(*[iter(lengths)] * per_sample, strict=True))
    if layout == "padded":
        filled = _similar([max(each) for each in samples], budget // per_sample, limit)
    else:
        filled = iter(even_bins([sum(each) for each in samples], budget))
    for numbers in filled:
        yield [per_sample * number + place for place in range(per_sample) for number in numbers]


def shared_positions(split: ExampleSplit, per_sample: int) -> float:
    """Return the share of the positions of a split's samples that layout shared computes, of
    `MOST_LAID_OUT` samples at most, spread evenly.
    """
    count = split.num_examples // per_sample
    firsts = per_sample * spread_evenly(count, MOST_LAID_OUT)
    samples = [pairs_of(split, first + np.arange(per_sample)) for first in firsts]
    positions = sum(len(pair.inputs_T) for pairs in samples for pair in pairs)
    return sum(map(_positions_of_sharing, samples)) / positions


def evaluation_batches(
    split: ExampleSplit, budget_tokens: int, max_examples: int | None = None
) -> Iterator[tuple[MicroBatch, Ints]]:
    """Every example once, one per row, rows of similar length together, longest first.

    Args:
        split: Examples to score.
        budget_tokens: Positions of a batch at most, padding included; a single example may have
            more.
        max_examples: Score at most this many, spread evenly over the split.

    Returns:
        Batches, and for each of their rows the number of the example.
    """
    chosen = spread_evenly(split.num_examples, max_examples)
    lengths = (split.lengths_E[chosen] - 1).tolist()
    for rows in _similar(lengths, budget_tokens, max(lengths)):
        yield _padded(pairs_of(split, chosen[rows]), max(lengths)), chosen[rows]


def pairs_of(split: ExampleSplit, chosen: Ints) -> tuple[_Pair, ...]:
    """Return inputs and targets of some examples, in this order."""
    bounds = zip(
        split.offsets_E[chosen].tolist(), split.offsets_E[chosen + 1].tolist(), strict=True
    )
    return tuple(
        _pair(split.tokens_N[start:end], split.is_target_N[start:end]) for start, end in bounds
    )


def _pair(tokens: NDArray[np.uint32], is_target: Bools) -> _Pair:
    ids = tokens.astype(np.int64)
    return _Pair(ids[:-1], np.where(is_target[1:], ids[1:], IGNORED))


def _similar(lengths: Sequence[int], budget: int, limit: int) -> Iterator[list[int]]:
    """Numbers of the examples of each batch, longest first; a padded batch has at most `budget`
    positions, or one row.
    """
    rows: list[int] = []
    for number in longest_first(lengths):
        if rows and (len(rows) + 1) * padded_width(lengths[rows[0]], limit) > budget:
            yield rows
            rows = []
        rows.append(number)
    yield rows


def _packed(pairs: Sequence[_Pair]) -> MicroBatch:
    """One row."""
    lengths = [len(pair.inputs_T) for pair in pairs]
    inputs_N, targets_N = (np.concatenate(arrays) for arrays in zip(*pairs, strict=True))
    return _micro_batch(inputs_N[None], targets_N[None], torch.tensor(lengths))


def _sharing(pairs: Sequence[_Pair]) -> MicroBatch:
    """One row, in which each beginning of several examples lies once, before the first of them."""
    beginnings = [pair.beginning for pair in pairs]
    counts = Counter(beginnings)
    places: dict[tuple[int, ...], int] = {(): -1}
    parts: list[_Pair] = []
    after: list[int] = []
    for pair, own in zip(pairs, beginnings, strict=True):
        beginning = own if counts[own] > 1 else ()
        length = len(beginning)
        if beginning not in places:
            places[beginning] = len(parts)
            parts.append(_Pair(pair.inputs_T[:length], pair.targets_T[:length]))
            after.append(-1)
        parts.append(_Pair(pair.inputs_T[length:], pair.targets_T[length:]))
        after.append(places[beginning])
    return replace(_packed(parts), after_E=torch.tensor(after))


def _positions_of_sharing(pairs: Sequence[_Pair]) -> int:
    """Return the number of positions in the row that `_sharing` makes of these pairs."""
    counts = Counter(pair.beginning for pair in pairs)
    again = sum((count - 1) * len(beginning) for beginning, count in counts.items())
    return sum(len(pair.inputs_T) for pair in pairs) - again


def _padded(pairs: Sequence[_Pair], limit: int) -> MicroBatch:
    """Rows filled on the right, where causal attention from the example does not look."""
    width = padded_width(max(len(pair.inputs_T) for pair in pairs), limit)
    inputs_BT = np.zeros((len(pairs), width), dtype=np.int64)
    targets_BT = np.full((len(pairs), width), IGNORED, dtype=np.int64)
    for row, pair in enumerate(pairs):
        inputs_BT[row, : len(pair.inputs_T)] = pair.inputs_T
        targets_BT[row, : len(pair.targets_T)] = pair.targets_T
    return _micro_batch(inputs_BT, targets_BT, None)


def _micro_batch(inputs_BT: Ints, targets_BT: Ints, lengths_E: torch.Tensor | None) -> MicroBatch:
    scored_N = torch.from_numpy(np.flatnonzero(targets_BT != IGNORED))
    return MicroBatch(
        torch.from_numpy(inputs_BT), torch.from_numpy(targets_BT), scored_N, lengths_E
    )
