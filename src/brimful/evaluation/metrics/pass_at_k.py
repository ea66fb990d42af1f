"""Share of problems of which at least one of k answers passes the tests, estimated without bias
from n answers each.
"""

from collections.abc import Sequence
from math import comb

from brimful.evaluation.metric import AnswersByExample, Metric, Scores, TaskAnswer, mean_of_examples

KS = (1, 2, 5, 10, 20, 50, 100)
"""Values of k that are reported, up to n."""


def pass_at_k(n: int, passed: int, k: int) -> float:
    """1 - C(n - passed, k) / C(n, k): the chance that k of the n answers, drawn without
    replacement, hold one that passed.

    Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1; exact integers
    instead of their product of floats.

    Args:
        n: Answers drawn.
        passed: How many of these passed.
        k: 1 to n.
    """
    return 1 - comb(n - passed, k) / comb(n, k)


def pass_scores(passed: Sequence[Sequence[float]], k: int) -> list[list[float]]:
    """Return pass@k of each example from 0 or 1 of each of its answers."""
    return [[pass_at_k(len(samples), int(sum(samples)), k)] for samples in passed]


def _error(answer: TaskAnswer) -> str:
    if not answer.completion.strip():
        return "empty"
    if answer.status == "error" and answer.detail:
        return f"error: {answer.detail.split(':')[0].strip()}"
    if answer.status == "passed":
        return ""
    return str(answer.status)


def _score(examples: AnswersByExample) -> Scores:
    passed = [[float(answer.status == "passed") for answer in samples] for samples in examples]
    n = min(map(len, passed), default=1)
    at_k = {f"pass@{k}": pass_scores(passed, k) for k in KS if k <= n}
    summaries = {name: mean_of_examples(values, "share") for name, values in at_k.items()}
    errors = [[_error(answer) for answer in samples] for samples in examples]
    return Scores(at_k | {"pass@1": passed}, summaries, errors)


METRIC = Metric(
    "pass@k: share of problems solved by at least one of k answers (unbiased estimate).", _score
)
