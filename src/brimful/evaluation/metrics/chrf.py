"""Likeness of an answer to the reference by n-grams of characters: chrF2 (Popović 2015) by
sacrebleu. It suits languages of long, inflected words better than BLEU does.
"""

from sacrebleu.metrics.chrf import CHRF

from brimful.evaluation.metric import likeness


def _chrf(answer: str, reference: str) -> float:
    return float(CHRF().sentence_score(answer, [reference]).score)


METRIC = likeness(
    "chrf", "chrF", "Mean chrF of answers against the reference (sacrebleu, defaults).", _chrf
)
