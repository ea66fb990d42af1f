"""Likeness of an answer to the reference by their longest common subsequence of words: ROUGE-L (Lin
2004), the F-measure with equal weights.

Words are runs of letters and digits in small letters, of any script; the package rouge-score, which
drops letters that are not ASCII, gives the same for English without its stemmer. A text without
white space is one word.
"""

import re
from collections.abc import Sequence

from brimful.evaluation.metric import likeness

_WORD = re.compile(r"[^\W_]+")


def common_length(first: Sequence[str], second: Sequence[str]) -> int:
    """The length of the longest common subsequence, a bit of an integer for each word of `first`
    (Hyyrö 2004).
    """
    places: dict[str, int] = {}
    for place, word in enumerate(first):
        places[word] = places.get(word, 0) | 1 << place
    row = every = (1 << len(first)) - 1
    for word in second:
        matches = row & places.get(word, 0)
        row = (row + matches) | (row - matches)
    return (~row & every).bit_count()


def _rouge_l(answer: str, reference: str) -> float:
    said, right = (_WORD.findall(text.lower()) for text in (answer, reference))
    return 2 * common_length(right, said) / max(len(said) + len(right), 1)


METRIC = likeness(
    "rouge_l", "share", "Mean ROUGE-L (F-measure) of answers against the reference.", _rouge_l
)
