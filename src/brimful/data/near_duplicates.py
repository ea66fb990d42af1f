"""Near duplicates among many texts: Jaccard similarity of their sets of character 5-grams, exactly,
without comparing all pairs.

Two sets of x and y grams with a similarity of at least t share ceil(t / (1 + t) * (x + y)) of them,
so with grams in one order for all texts, the first x - ceil(t x) + 1 and the first y - ceil(t y) +
1 have one in common (prefix filter: Chaudhuri et al. 2006, A Primitive Operator for Similarity
Joins in Data Cleaning; Bayardo et al. 2007, Scaling Up All Pairs Similarity Search); the sizes
differ by a factor of t at most (length filter); and behind the common gram enough of both must be
left (positional filter: Xiao et al. 2008, Efficient Similarity Joins for Near Duplicate Detection).
What passes is counted out, so nothing is missed and nothing estimated. Rare grams come first, which
keeps the candidates few; a text that has found its match looks no further, so thousands of texts
from one template cost little.

Suffixes: D texts, G grams of all texts end to end, E grams in the prefixes of texts that look for a
match, P pairs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from brimful.data.tokens import Progress

GRAM = 5
"""Characters; a shorter text is one gram."""
_SLACK = 1e-9
"""Bounds are widened by this against rounding; the similarity itself is one division of whole
numbers.
"""
_FIRST_WINDOW, _LAST_WINDOW = 64, 1 << 20
_QUERIES_AT_ONCE, _PAIRS_AT_ONCE, _GRAMS_AT_ONCE = 1 << 15, 1 << 20, 1 << 23
_CODE_POINTS = 0x110000

Ints = NDArray[np.int64]


def near_duplicates(
    texts: Sequence[str], before_D: Ints, threshold: float, progress: Progress | None = None
) -> Ints:
    """For each text d another one, among the first `before_D[d]` of all, that is at least so
    similar; -1 where there is none.

    Args:
        texts: Compared as they are, so normalised before; equal ones are similar, too.
        before_D: int64, from 0 to d.
        threshold: Jaccard similarity, above 0, at most 1.
        progress: Called now and then.

    Returns:
        int64 [D]. Which one of several is not promised, but it is the same every time.
    """
    found_D = np.full(len(texts), -1, dtype=np.int64)
    if len(texts) > 1:
        index = _Index.of(_Grams.of(texts), threshold)
        asking = np.flatnonzero(before_D > 0)
        for start in range(0, len(asking), _QUERIES_AT_ONCE):
            _search(index, asking[start : start + _QUERIES_AT_ONCE], before_D, found_D)
            if progress:
                progress(
                    "looking for near duplicates",
                    min(start + _QUERIES_AT_ONCE, len(asking)),
                    len(asking),
                )
    return found_D


def grams_of(text: str) -> set[str]:
    """The character 5-grams of a text; of a shorter text itself."""
    return {text[start : start + GRAM] for start in range(max(len(text) - GRAM, 0) + 1)}


def similarity(one: str, other: str) -> float:
    """Jaccard similarity of the grams of two texts."""
    first, second = grams_of(one), grams_of(other)
    return len(first & second) / len(first | second)


@dataclass(frozen=True)
class _Grams:
    """Sets of grams, each in the order from rare to frequent.

    Attributes:
        numbers_G: int64; the rarest gram of all texts is 0.
        offsets_D: int64 [D + 1]; text d has `numbers_G[offsets_D[d]:offsets_D[d + 1]]`.
        num_grams: Distinct ones.
    """

    numbers_G: Ints
    offsets_D: Ints
    num_grams: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> "_Grams":
        codes, owners = _windows(texts)
        distinct, numbers, counts = np.unique(codes, return_inverse=True, return_counts=True)
        by_count = np.empty(len(distinct), dtype=np.int64)
        by_count[np.argsort(counts, kind="stable")] = np.arange(len(distinct))
        owners_G, numbers_G = np.divmod(
            _distinct(owners * len(distinct) + by_count[numbers]), len(distinct)
        )
        return cls(numbers_G, np.searchsorted(owners_G, np.arange(len(texts) + 1)), len(distinct))


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


def _distinct(values: Ints) -> Ints:
    """Sorted, each once."""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values


@dataclass(frozen=True)
class _Index:
    """Which texts have a gram in their prefixes.

    Attributes:
        grams: Of all texts.
        sizes_D: Grams of each text.
        prefixes_D: So many of them are its prefix.
        threshold: Of similarity.
        rows: [D, grams] of ones, to count common grams.
        keys_G: Of each gram in a prefix, sorted: gram * `stride` + size of its text.
        owners_G: The text.
        places_G: The gram's place in its text.
        stride: Above every size.
    """

    grams: _Grams
    sizes_D: Ints
    prefixes_D: Ints
    threshold: float
    rows: Any
    keys_G: Ints
    owners_G: Ints
    places_G: Ints
    stride: int

    @classmethod
    def of(cls, grams: _Grams, threshold: float) -> "_Index":
        sizes_D = np.diff(grams.offsets_D)
        prefixes_D = sizes_D - np.ceil(threshold * sizes_D - _SLACK).astype(np.int64) + 1
        stride = int(sizes_D.max()) + 1
        owners = np.repeat(np.arange(len(sizes_D)), prefixes_D)
        in_prefix = _ranges(grams.offsets_D[:-1], prefixes_D)
        keys = grams.numbers_G[in_prefix] * stride + sizes_D[owners]
        order = np.argsort(keys, kind="stable")
        ones = np.ones(len(grams.numbers_G), dtype=np.int8)
        rows = sparse.csr_array(
            (ones, grams.numbers_G, grams.offsets_D), shape=(len(sizes_D), grams.num_grams)
        )
        places = in_prefix - grams.offsets_D[owners]
        return cls(
            grams,
            sizes_D,
            prefixes_D,
            threshold,
            rows,
            keys[order],
            owners[order],
            places[order],
            stride,
        )

    def are_similar(self, ones_P: Ints, others_P: Ints) -> NDArray[np.bool_]:
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


@dataclass(frozen=True)
class _Entries:
    """Where to look for matches: for each gram in the prefix of a text that looks, a stretch of the
    index.

    Attributes:
        texts_E: The text that looks.
        places_E: The gram's place in it.
        starts_E: Of the stretch.
        lengths_E: Of the stretch.
        before_E: How many candidates the text has in its stretches before.
    """

    texts_E: Ints
    places_E: Ints
    starts_E: Ints
    lengths_E: Ints
    before_E: Ints

    @classmethod
    def of(cls, index: _Index, asking: Ints) -> "_Entries":
        prefixes = index.prefixes_D[asking]
        texts = np.repeat(asking, prefixes)
        in_grams = _ranges(index.grams.offsets_D[asking], prefixes)
        keys = index.grams.numbers_G[in_grams] * index.stride
        least = np.ceil(index.threshold * index.sizes_D[texts] - _SLACK).astype(np.int64)
        most = np.minimum(
            np.floor(index.sizes_D[texts] / index.threshold + _SLACK).astype(np.int64),
            index.stride - 1,
        )
        starts = np.searchsorted(index.keys_G, keys + least)
        lengths = np.searchsorted(index.keys_G, keys + most, side="right") - starts
        has_others = lengths > 1
        texts, starts, lengths, places = (
            values[has_others]
            for values in (texts, starts, lengths, in_grams - index.grams.offsets_D[texts])
        )
        before = np.cumsum(lengths) - lengths
        first = np.searchsorted(texts, texts)
        return cls(texts, places, starts, lengths, before - before[first] if len(first) else before)

    def where(self, chosen: NDArray[np.bool_]) -> "_Entries":
        """Some of them."""
        return _Entries(
            self.texts_E[chosen],
            self.places_E[chosen],
            self.starts_E[chosen],
            self.lengths_E[chosen],
            self.before_E[chosen],
        )


def _search(index: _Index, asking: Ints, before_D: Ints, found_D: Ints) -> None:
    """Look at the first few candidates of all texts, then at twice as many of those that have found
    none, and so on.
    """
    entries = _Entries.of(index, asking)
    start, window = 0, _FIRST_WINDOW
    while len(entries.texts_E):
        end = start + window
        shift = np.maximum(start - entries.before_E, 0)
        lengths = np.minimum(entries.lengths_E, end - entries.before_E) - shift
        now = np.flatnonzero(lengths > 0)
        for first, last in _chunks(lengths[now], _PAIRS_AT_ONCE):
            some = now[first:last]
            some = some[found_D[entries.texts_E[some]] < 0]
            _match(index, entries, some, shift[some], lengths[some], before_D, found_D)
        entries = entries.where(
            (found_D[entries.texts_E] < 0) & (entries.before_E + entries.lengths_E > end)
        )
        start, window = end, min(2 * window, _LAST_WINDOW)


def _match(
    index: _Index,
    entries: _Entries,
    some: Ints,
    shift: Ints,
    lengths: Ints,
    before_D: Ints,
    found_D: Ints,
) -> None:
    """Compare texts with the candidates in a part of their stretches, and note what is found."""
    candidates = _ranges(entries.starts_E[some] + shift, lengths)
    texts_P, places_P = (
        np.repeat(entries.texts_E[some], lengths),
        np.repeat(entries.places_E[some], lengths),
    )
    others_P, other_places_P = index.owners_G[candidates], index.places_G[candidates]
    sizes_P, other_sizes_P = index.sizes_D[texts_P], index.sizes_D[others_P]
    needed_P = index.threshold / (1 + index.threshold) * (sizes_P + other_sizes_P) - _SLACK
    left_P = np.minimum(sizes_P - places_P, other_sizes_P - other_places_P)
    may_be = (others_P < before_D[texts_P]) & (left_P >= needed_P)
    pairs = _distinct(texts_P[may_be] * len(found_D) + others_P[may_be])
    ones, others = np.divmod(pairs, len(found_D))
    similar = index.are_similar(ones, others)
    matched, first = np.unique(ones[similar], return_index=True)
    found_D[matched] = others[similar][first]
