"""Share of questions answered right, of questions answered at all, and what several samples of a
question give.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from brimful.evaluation.metric import AnswersByExample, Metric, Scores, TaskAnswer, mean_of_examples
from brimful.evaluation.metrics.pass_at_k import KS, pass_scores


def majority_at_k(samples: Sequence[TaskAnswer], k: int) -> float:
    """The chance that the most frequent value among k samples is right (self-consistency, Wang et
    al. 2022, arXiv 2203.11171).

    Only samples that could be read vote; of values with as many votes the one drawn first wins; no
    vote is not right. For k below n it is the mean over the n runs of k neighbours, the last sample
    followed by the first: every run is k different draws, and each draw counts as often.

    Args:
        samples: n of one question, in the order drawn.
        k: 1 to n.
    """
    n = len(samples)
    if k == n:
        return float(_majority_is_right(samples))
    around = [*samples, *samples]
    return float(np.mean([_majority_is_right(around[start : start + k]) for start in range(n)]))


def _majority_is_right(samples: Sequence[TaskAnswer]) -> bool:
    votes = Counter(sample.value for sample in samples if sample.status in {"correct", "wrong"})
    if not votes:
        return False
    [(value, _)] = votes.most_common(1)  # of equal counts the first met
    return any(sample.value == value and sample.status == "correct" for sample in samples)


def _error(answer: TaskAnswer) -> str:
    if answer.status == "unparsed":
        return f"unparsed: {answer.detail}".removesuffix(": ")
    if answer.status in {None, "correct"}:
        return ""
    return str(answer.status)


def _score(examples: AnswersByExample) -> Scores:
    right = [[float(answer.status == "correct") for answer in samples] for samples in examples]
    answered = [
        [float(answer.status in {"correct", "wrong"}) for answer in samples] for samples in examples
    ]
    n = min(map(len, examples), default=1)
    ks = sorted({k for k in (*KS, n) if 1 < k <= n})
    passed = {f"pass@{k}": pass_scores(right, k) for k in ks}
    majority = {
        f"majority@{k}": [[majority_at_k(samples, k)] for samples in examples] for k in ks if k > 2
    }
    scores = {"accuracy": right, "answer_rate": answered, **passed, **majority}
    summaries = {name: mean_of_examples(values, "share") for name, values in scores.items()}
    return Scores(
        scores, summaries, [[_error(answer) for answer in samples] for samples in examples]
    )


METRIC = Metric(
    "Share of answers that are right, and that could be read; of several samples pass@k and"
    " majority@k.",
    _score,
    has_kinds=True,
)
