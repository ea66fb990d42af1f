"""Likeness of an answer to the reference: BLEU (Papineni et al. 2002) by sacrebleu, per sentence
and over the corpus.

The tokenizer is sacrebleu's default (13a), which does not see indentation or line breaks. Code that
works but looks different scores low; pass@k is the better measure where there are tests.
"""

from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics.bleu import BLEU

from brimful.base.arrays import Ints
from brimful.evaluation.metric import (
    AnswersByExample,
    Metric,
    MetricSummary,
    Scores,
    TaskAnswer,
    mean_of_examples,
)
from brimful.evaluation.stats import bootstrap_interval

MAX_ORDER = 4


@dataclass(frozen=True)
class _Sentence:
    """Score of one answer and what the corpus score adds up: matches and n-grams of each order, and
    both lengths.
    """

    score: float
    counts: list[int]


def _sentence(bleu: BLEU, answer: TaskAnswer) -> _Sentence:
    found = bleu.sentence_score(answer.extracted, [answer.reference])
    return _Sentence(
        float(found.score), [*found.counts, *found.totals, found.sys_len, found.ref_len]
    )


def _corpus_score(counts: Ints) -> float:
    """Score from sums of the counts; the same as `BLEU().corpus_score`."""
    matches, totals, (answered, expected) = (
        counts[:MAX_ORDER].tolist(),
        counts[MAX_ORDER : 2 * MAX_ORDER].tolist(),
        counts[2 * MAX_ORDER :].tolist(),
    )
    return float(BLEU.compute_bleu(matches, totals, answered, expected, smooth_method="exp").score)


def _score(examples: AnswersByExample) -> Scores:
    bleu = BLEU(effective_order=True)
    sentences = [[_sentence(bleu, answer) for answer in samples] for samples in examples]
    scores = [[sentence.score for sentence in samples] for samples in sentences]
    counts_NC = np.array(
        [np.sum([sentence.counts for sentence in samples], axis=0) for samples in sentences],
        dtype=np.int64,
    )
    corpus = None
    if len(counts_NC):
        corpus = _corpus_score(counts_NC.sum(0))
    interval = bootstrap_interval(
        lambda numbers_N: _corpus_score(counts_NC[numbers_N].sum(0)), len(counts_NC)
    )
    summaries = {
        "bleu": mean_of_examples(scores, "BLEU"),
        "corpus_bleu": MetricSummary(corpus, "BLEU", interval, "bootstrap", len(sentences)),
    }
    return Scores({"bleu": scores}, summaries, [])


METRIC = Metric(
    "Mean sentence BLEU and corpus BLEU against the reference (sacrebleu, defaults).",
    _score,
)
