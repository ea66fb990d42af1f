"""chrF as sacrebleu computes it."""

import sacrebleu

from brimful.evaluation.metric import TaskAnswer
from brimful.evaluation.metrics.chrf import METRIC

PAIRS = [("Il pleut encore.", "Il pleut encore."), ("Il pleuvait", "Il pleut."), ("", "Oui")]


def test_scores_are_sacrebleus_of_the_sentence() -> None:
    answers = [[TaskAnswer(answer, answer, right, "end_of_text", 1)] for answer, right in PAIRS]
    scores = METRIC.score(answers)
    found = [sample for [sample] in scores.of_answers["chrf"]]
    assert found == [sacrebleu.sentence_chrf(answer, [right]).score for answer, right in PAIRS]
    assert found[0] == 100 > found[1] > 0 == found[2]
    assert scores.summaries["chrf"].unit == "chrF"
