"""Near duplicates among many texts: Jaccard similarity of their sets of character 5-grams, exactly,
without comparing all pairs.

Two sets of x and y grams with a similarity of at least t share ceil(t / (1 + t) * (x + y)) of them,
so with grams in one order for all texts, the first x - ceil(t x) + 1 and the first y - ceil(t y) +
1 have one in common (prefix filter: Chaudhuri et al. 2006, A Primitive Operator for Similarity
Joins in Data Cleaning; Bayardo et al. 2007, Scaling Up All Pairs Similarity Search), and enough of
both must be left behind those (positional filter: Xiao et al. 2008, Efficient Similarity Joins for
Near Duplicate Detection). What passes is counted out, so nothing is missed and nothing estimated.
Rare grams come first, which keeps the candidates few; a text that has found its match looks no
further, so thousands of texts from one template cost little.

Suffixes: D texts, G grams of all texts end to end, P pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy import sparse

from brimful.base.arrays import Bools, Ints
from brimful.base.types import Progress
from brimful.data.bins import offsets_of

GRAM = 5
"""Characters; a shorter text is one gram."""
_SLACK = 1e-9
"""Bounds are widened by this against rounding; the similarity itself is one division of whole
numbers.
"""
_FIRST_FEW = 8
_PAIRS_AT_ONCE, _GRAMS_AT_ONCE = 1 << 22, 1 << 23
_CODE_POINTS = 0x110000


def near_duplicates(
    texts: Sequence[str], before_D: Ints, threshold: float, progress: Progress | None = None
) -> Ints:
    """For each text d the first one, among the first `before_D[d]` of all, that is at least so
    similar; -1 where there is none.

    Args:
        texts: Compared as they are, so normalised before; equal ones are similar, too.
        before_D: int64, from 0 to d.
        threshold: Jaccard similarity, above 0, at most 1.
        progress: Called now and then.

    Returns:
        int64 [D].
    """
    found_D = np.full(len(texts), -1, dtype=np.int64)
    start, end = 0, min(_FIRST_FEW, len(texts))
    index = _Index.of(texts, threshold) if len(texts) > 1 else None
    while index is not None and start < end:
        asking = np.flatnonzero((found_D < 0) & (before_D > start))
        for ones_P, others_P in index.candidates(asking, start, end):
            is_before_P = others_P < before_D[ones_P]
            _note_first(index, ones_P[is_before_P], others_P[is_before_P], found_D)
        if progress:
            progress("looking for near duplicates", end, len(texts))
        start, end = end, min(2 * end, len(texts))
    return found_D


def _note_first(index: "_Index", ones_P: Ints, others_P: Ints, found_D: Ints) -> None:
    """Note for each text the first of its candidates that is similar. The first few of every text
    are looked at, then twice as many of those that have found none, and so on.
    """
    places_P = np.arange(len(ones_P)) - np.searchsorted(ones_P, ones_P)
    start, end = 0, _FIRST_FEW
    while (places_P >= start).any():
        now = (places_P >= start) & (places_P < end) & (found_D[ones_P] < 0)
        ones, others = ones_P[now], others_P[now]
        similar = index.are_similar(ones, others)
        matched, first = np.unique(ones[similar], return_index=True)
        found_D[matched] = others[similar][first]
        start, end = end, 2 * end


def grams_of(text: str) -> set[str]:
    """The character 5-grams of a text; of a shorter text itself."""
    return {text[start : start + GRAM] for start in range(max(len(text) - GRAM, 0) + 1)}


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of the grams of two texts."""
    first, second = grams_of(one), grams_of(other)
    return len(first & second) / len(first | second)


def _windows(texts: Sequence[str]) -> tuple[Ints, Ints]:
    """A number for each window of five characters, equal for equal windows alone, and the text it
    is in.

    Short texts are filled up with a code point that does not exist.
    """
    lengths_D = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    filled_D = np.maximum(lengths_D, GRAM)
    starts_D = np.cumsum(filled_D) - filled_D
    code_points = np.full(filled_D.sum(), _CODE_POINTS, dtype=np.uint32)
    code_points[_ranges(starts_D, lengths_D)] = np.frombuffer(
        "".join(texts).encode("utf-32-le", "surrogatepass"), dtype=np.uint32
    )
    is_used = np.zeros(_CODE_POINTS + 1, dtype=bool)
    is_used[code_points] = True
    characters = np.cumsum(is_used)[code_points]
    windows_D = filled_D - GRAM + 1
    starts = _ranges(starts_D, windows_D)
    base = int(is_used.sum()) + 1
    if base**GRAM < 2**63:
        codes = _packed(characters, GRAM, base)
    else:  # three characters always fit; two such windows, two places apart, make one of five
        _, threes = np.unique(_packed(characters, 3, base), return_inverse=True)
        codes = threes[:-2] * (int(threes.max()) + 1) + threes[2:]
    return codes[starts], np.repeat(np.arange(len(texts)), windows_D)


def _packed(characters: Ints, size: int, base: int) -> Ints:
    """Windows of so many characters as numbers to this base."""
    num_windows = len(characters) - size + 1
    codes = np.zeros(num_windows, dtype=np.int64)
    for place in range(size):
        codes *= base
        codes += characters[place : place + num_windows]
    return codes


def _ranges(starts: Ints, lengths: Ints) -> Ints:
    """All numbers of several ranges, one range after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


@dataclass(frozen=True)
class _Index:
    """Which grams texts have, the rarest of all texts first.

    Attributes:
        rows: [D, grams] of ones.
        prefixes: The same of the first grams of each text alone.
        last_D: The last gram of each prefix.
        sizes_D: Grams of each text.
        prefixes_D: Grams of each prefix.
        threshold: The threshold of similarity.
    """

    rows: Any
    prefixes: Any
    last_D: Ints
    sizes_D: Ints
    prefixes_D: Ints
    threshold: float

    @classmethod
    def of(cls, texts: Sequence[str], threshold: float) -> "_Index":
        codes, owners = _windows(texts)
        _, numbers, counts = np.unique(codes, return_inverse=True, return_counts=True)
        by_count = np.empty(len(counts), dtype=np.int64)
        by_count[np.argsort(counts, kind="stable")] = np.arange(len(counts))
        grams = np.sort(owners * len(counts) + by_count[numbers])
        is_new = np.append(True, grams[1:] != grams[:-1])  # np.unique takes ten times as long
        owners_G, numbers_G = np.divmod(grams[is_new], len(counts))
        offsets_D = np.searchsorted(owners_G, np.arange(len(texts) + 1))
        sizes_D = np.diff(offsets_D)
        prefixes_D = sizes_D - np.ceil(threshold * sizes_D - _SLACK).astype(np.int64) + 1
        in_prefix = _ranges(offsets_D[:-1], prefixes_D)
        ends_D = offsets_of(prefixes_D)
        shape = (len(texts), len(counts))
        rows, prefixes = (
            sparse.csr_array((np.ones(len(grams), dtype=np.int32), grams, ends), shape=shape)
            for grams, ends in ((numbers_G, offsets_D), (numbers_G[in_prefix], ends_D))
        )
        last_D = numbers_G[offsets_D[:-1] + prefixes_D - 1]
        return cls(rows, prefixes, last_D, sizes_D, prefixes_D, threshold)

    def candidates(self, asking: Ints, start: int, end: int) -> Iterator[tuple[Ints, Ints]]:
        """Pairs of a text that asks and one of the texts `start` to `end - 1` that have so much of
        their prefixes in common that they may be similar, in order.
        """
        prefixes, others = self.prefixes[asking], self.prefixes[start:end]
        for first, last in _chunks(prefixes @ others.sum(axis=0), _PAIRS_AT_ONCE):
            pairs = (prefixes[first:last] @ others.T).tocoo()
            ones_P, others_P = asking[first + pairs.row], start + pairs.col.astype(np.int64)
            may_be_P = self._may_be_similar(ones_P, others_P, pairs.data)
            pairs_P = np.sort(ones_P[may_be_P] * len(self.sizes_D) + others_P[may_be_P])
            yield np.divmod(pairs_P, len(self.sizes_D))

    def _may_be_similar(self, ones_P: Ints, others_P: Ints, common_P: Ints) -> Bools:
        """Whether pairs with so many common grams in their prefixes may have enough in all. What
        else they share comes behind the prefix that ends first.
        """
        sizes_P, other_sizes_P = self.sizes_D[ones_P], self.sizes_D[others_P]
        ends_first_P = self.last_D[ones_P] <= self.last_D[others_P]
        left_D = self.sizes_D - self.prefixes_D
        most_P = common_P + np.where(ends_first_P, left_D[ones_P], left_D[others_P])
        needed_P = self.threshold / (1 + self.threshold) * (sizes_P + other_sizes_P) - _SLACK
        may_be: Bools = np.minimum(most_P, np.minimum(sizes_P, other_sizes_P)) >= needed_P
        return may_be

    def are_similar(self, ones_P: Ints, others_P: Ints) -> Bools:
        """Counts the common grams of pairs of texts."""
        similar = [np.zeros(0, dtype=bool)]
        for start, end in _chunks(self.sizes_D[ones_P] + self.sizes_D[others_P], _GRAMS_AT_ONCE):
            one, other = ones_P[start:end], others_P[start:end]
            common = self.rows[one].multiply(self.rows[other]).sum(axis=1)
            similar.append(
                common / (self.sizes_D[one] + self.sizes_D[other] - common) >= self.threshold
            )
        return np.concatenate(similar)


def _chunks(sizes: Ints, most: int) -> Iterator[tuple[int, int]]:
    """Ends of stretches whose sizes add up to about `most`, at least one in each."""
    groups = (np.cumsum(sizes) - sizes) // most
    bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(sizes)]
    return ((start, end) for start, end in pairwise(bounds) if start < end)
