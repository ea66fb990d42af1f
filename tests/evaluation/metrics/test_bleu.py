"""BLEU as sacrebleu computes it."""

import pytest
import sacrebleu

from brimful.evaluation.metric import TaskAnswer
from brimful.evaluation.metrics.bleu import METRIC

PAIRS = [
    ("def f(y):\n    return y + 1", "def f(x):\n    return x + 1"),
    ("for i in range(10):\n    print(i)", "for number in range(10):\n    print(number)"),
    ("import math\nprint(math.pi)", "import math\nprint(math.pi)"),
    ("", "x = 1"),
]
ANSWERS = [
    [TaskAnswer(hypothesis, hypothesis, reference, "end_of_text", 1)]
    for hypothesis, reference in PAIRS
]


def test_scores_are_sacrebleus_of_the_sentence_and_of_the_corpus() -> None:
    scores = METRIC.score(ANSWERS)
    assert [sample for [sample] in scores.of_answers["bleu"]] == [
        sacrebleu.sentence_bleu(answer, [right]).score for answer, right in PAIRS
    ]
    hypotheses, references = zip(*PAIRS, strict=True)
    assert scores.summaries["corpus_bleu"].value == pytest.approx(
        sacrebleu.corpus_bleu(hypotheses, [references]).score
    )


def test_the_same_code_scores_100_and_other_code_less() -> None:
    scores = METRIC.score(ANSWERS).of_answers["bleu"]
    assert scores[2][0] == pytest.approx(100)
    assert scores[3][0] == 0
    assert 0 < scores[0][0] < 100
