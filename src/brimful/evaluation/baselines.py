"""What counting alone achieves on the same tokens: uniform, unigram, bigram. A model below the
bigram has learned nothing longer.

Shapes: N tokens, P distinct pairs seen in training, V vocabulary. A pair (v, w) is kept as the
number v * V + w.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from brimful.base.arrays import Array, Floats, Ints
from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.data.tokens import TokenSplit

CHUNK_TOKENS = 4_000_000
"""Tokens counted at a time: about 100 MB of working memory."""


@dataclass(frozen=True)
class Baseline:
    """Loss of one counting model: nats per token, and all nats in bits over the text's UTF-8
    bytes.
    """

    loss: float
    bits_per_byte: float


@dataclass(frozen=True)
class Baselines:
    """The three, each over every token of the evaluation split but the first, as
    `likelihood.score_split` scores them.

    Attributes:
        uniform: ln V for every token.
        unigram: Add-one smoothed counts of the training split.
        bigram: Interpolated modified Kneser-Ney (Chen and Goodman 1999, section 3): three discounts
            from the counts of counts, backing off to the continuation distribution, and that,
            discounted the same way, to uniform. No value is tuned on the evaluation split.
        tokens: Tokens scored.
    """

    uniform: Baseline
    unigram: Baseline
    bigram: Baseline
    tokens: int

    def to_json(self) -> JsonDict:
        """Return plain values for scores.json and the report."""
        return asdict(self)


def ngram_baselines(train: TokenSplit, evaluation: TokenSplit, vocabulary: int) -> Baselines:
    """Count the training split, score the evaluation split.

    Args:
        train: What is counted, end-of-text tokens and document boundaries as the model sees them.
        evaluation: What is scored.
        vocabulary: V, the model's.

    Raises:
        RequestError: a split is too short, or holds ids that the vocabulary lacks.
    """
    for name, split in (("training", train), ("evaluation", evaluation)):
        if len(split.tokens_N) < 2:
            raise RequestError(
                f"the {name} split has {len(split.tokens_N)} tokens; counting needs at least 2."
            )
    counts_V = np.zeros(vocabulary, np.int64)
    for chunk_N in _chunks(train.tokens_N, vocabulary):
        counts_V += np.bincount(chunk_N[1:], minlength=vocabulary)
    unigram_V = (counts_V + 1) / (counts_V.sum() + vocabulary)
    bigram = _KneserNey(train.tokens_N, vocabulary)

    num_targets = len(evaluation.tokens_N) - 1
    unigram_nats = bigram_nats = 0.0
    for chunk_N in _chunks(evaluation.tokens_N, vocabulary):
        unigram_nats -= float(np.log(unigram_V[chunk_N[1:]]).sum())
        bigram_nats -= float(np.log(bigram.probabilities(chunk_N[:-1], chunk_N[1:])).sum())

    def baseline(nats: float) -> Baseline:
        bits_per_byte = math.nan
        if evaluation.num_bytes:
            bits_per_byte = nats / math.log(2) / evaluation.num_bytes
        return Baseline(nats / num_targets, bits_per_byte)

    return Baselines(
        baseline(num_targets * math.log(vocabulary)),
        baseline(unigram_nats),
        baseline(bigram_nats),
        num_targets,
    )


class _KneserNey:
    """P(w | v) = (c(v,w) - D) / c(v) + backoff(v) * P_continuation(w); D depends on c(v,w) = 1, 2,
    3 or more.
    """

    def __init__(self, tokens_N: Array, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._pairs_P, counts_P = _count_pairs(tokens_N, vocabulary)
        first_P, second_P = np.divmod(self._pairs_P, vocabulary)
        discount_P = _discounts(counts_P)
        totals_V = np.bincount(first_P, weights=counts_P, minlength=vocabulary)
        held_back_V = np.bincount(first_P, weights=discount_P, minlength=vocabulary)
        self._backoff_V = np.divide(
            held_back_V, totals_V, out=np.ones(vocabulary), where=totals_V > 0
        )
        self._seen_P = (counts_P - discount_P) / totals_V[first_P]
        contexts_V = np.bincount(second_P, minlength=vocabulary)
        self._continuation_V = _smoothed(contexts_V)

    def probabilities(self, previous_N: Ints, next_N: Ints) -> Floats:
        keys_N = previous_N * self._vocabulary + next_N
        place_N = np.searchsorted(self._pairs_P, keys_N).clip(max=len(self._pairs_P) - 1)
        seen_N = np.where(self._pairs_P[place_N] == keys_N, self._seen_P[place_N], 0.0)
        probabilities_N: Floats = (
            seen_N + self._backoff_V[previous_N] * self._continuation_V[next_N]
        )
        return probabilities_N


def _smoothed(counts_V: Ints) -> Floats:
    """Counts as a distribution without zeros: discounted, the rest spread evenly over the
    vocabulary.
    """
    seen_V = counts_V > 0
    discounted_V = np.zeros(len(counts_V))
    discounted_V[seen_V] = counts_V[seen_V] - _discounts(counts_V[seen_V])
    rest = counts_V.sum() - discounted_V.sum()
    smoothed_V: Floats = (discounted_V + rest / len(counts_V)) / counts_V.sum()
    return smoothed_V


def _discounts(counts_P: Ints) -> Floats:
    """Discount of each count: Chen and Goodman's estimate; 0.75 where the counts of counts cannot
    give one in (0, count).
    """
    n = [int((counts_P == times).sum()) for times in range(5)]
    discounts = [0.0, 0.75, 0.75, 0.75]
    for times in (1, 2, 3):
        if n[1] and n[times]:
            y = n[1] / (n[1] + 2 * n[2])
            estimate = times - (times + 1) * y * n[times + 1] / n[times]
            if 0 < estimate < times:
                discounts[times] = estimate
    discounts_P: Floats = np.array(discounts)[counts_P.clip(max=3)]
    return discounts_P


def _count_pairs(tokens_N: Array, vocabulary: int) -> tuple[Ints, Ints]:
    """Sorted distinct pairs and how often each occurs."""
    pairs_P, counts_P = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for chunk_N in _chunks(tokens_N, vocabulary):
        new_P, new_counts_P = np.unique(chunk_N[:-1] * vocabulary + chunk_N[1:], return_counts=True)
        if not len(pairs_P):
            pairs_P, counts_P = new_P, new_counts_P
            continue
        merged_P, place_P = np.unique(np.concatenate([pairs_P, new_P]), return_inverse=True)
        counts_P = np.bincount(place_P, weights=np.concatenate([counts_P, new_counts_P])).astype(
            np.int64
        )
        pairs_P = merged_P
    return pairs_P, counts_P


def _chunks(tokens_N: Array, vocabulary: int) -> Iterator[Ints]:
    """The tokens piece by piece; each piece begins with the last token of the one before, so no
    pair is lost or counted twice.
    """
    for start in range(0, len(tokens_N) - 1, CHUNK_TOKENS):
        chunk_N = np.asarray(tokens_N[start : start + CHUNK_TOKENS + 1], dtype=np.int64)
        if (largest := int(chunk_N.max())) >= vocabulary:
            raise RequestError(
                f"the tokens hold id {largest}, the vocabulary has ids 0 to {vocabulary - 1}: they"
                " were made by another tokenizer."
            )
        yield chunk_N
