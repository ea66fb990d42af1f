"""ROUGE-L against its definition, and against values of the package rouge-score."""

import random

import pytest

from brimful.evaluation.metric import TaskAnswer
from brimful.evaluation.metrics.rouge_l import METRIC, common_length


def table_length(first: str, second: str) -> int:
    """The textbook's dynamic programme."""
    before = [0] * (len(second) + 1)
    for one in first:
        row = [0]
        for place, other in enumerate(second):
            row.append(before[place] + 1 if one == other else max(before[place + 1], row[place]))
        before = row
    return before[-1]


def test_the_longest_common_subsequence_is_the_textbooks() -> None:
    drawn = random.Random(0)
    for _ in range(300):
        first, second = ("".join(drawn.choices("abc", k=drawn.randrange(90))) for _ in range(2))
        assert common_length(first, second) == table_length(first, second)


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [
        ("The cat sat on the mat.", "the cat sat on the mat", 1.0),
        (
            "The quick brown fox jumps over the lazy dog",
            "The quick brown dog jumps on the log.",
            10 / 17,
        ),
        ("police ended the gunman", "police killed the gunman", 0.75),
        ("", "something", 0.0),
        ("Où est-il ?", "ou est il", 4 / 6),
        ("Они идут домой", "они идут", 0.8),
    ],
)
def test_scores_are_f_measures(answer: str, reference: str, score: float) -> None:
    """The first three as rouge-score 0.1.2 gives them; letters with accents are letters."""
    scores = METRIC.score([[TaskAnswer(answer, answer, reference, "end_of_text", 1)]])
    assert scores.of_answers["rouge_l"] == [[pytest.approx(score)]]
