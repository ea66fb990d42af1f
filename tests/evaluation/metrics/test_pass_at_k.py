"""The estimator of Chen et al. 2021."""

from itertools import combinations

import pytest

from brimful.evaluation.metric import TaskAnswer
from brimful.evaluation.metrics.pass_at_k import METRIC, pass_at_k


def _answers(*statuses: str) -> list[TaskAnswer]:
    return [
        TaskAnswer(
            "x",
            "x",
            "",
            "end_of_text",
            1,
            status,
            "NameError: name 'y' is not defined" * (status == "error"),
        )
        for status in statuses
    ]


@pytest.mark.parametrize(
    ("n", "passed", "k"), [(5, 0, 2), (5, 2, 1), (5, 2, 3), (6, 4, 3), (5, 5, 5), (7, 1, 7)]
)
def test_it_is_the_share_of_k_answers_out_of_n_that_hold_a_passing_one(
    n: int, passed: int, k: int
) -> None:
    """Counted one by one."""
    drawn = list(combinations(range(n), k))
    assert pass_at_k(n, passed, k) == pytest.approx(
        sum(any(answer < passed for answer in chosen) for chosen in drawn) / len(drawn)
    )


def test_many_samples_lose_no_precision() -> None:
    """The paper's product of floats: 1 - prod(1 - k / i) for i in n - c + 1 .. n."""
    product = 1.0
    for i in range(200 - 3 + 1, 201):
        product *= 1 - 100 / i
    assert pass_at_k(200, 3, 100) == pytest.approx(1 - product)


def test_every_k_that_the_samples_allow_is_told() -> None:
    scores = METRIC.score(
        [_answers("passed", "failed", "failed", "timeout", "failed"), _answers(*["failed"] * 5)]
    )
    assert scores.summaries.keys() == {"pass@1", "pass@2", "pass@5"}
    assert scores.summaries["pass@1"].value == pytest.approx(0.1)
    assert scores.summaries["pass@2"].value == pytest.approx(0.2)
    assert scores.summaries["pass@5"].value == 0.5
    assert scores.of_answers["pass@1"][0] == [1, 0, 0, 0, 0]


def test_failures_are_counted_by_verdict_and_exception() -> None:
    scores = METRIC.score(
        [_answers(status) for status in ("passed", "failed", "error", "timeout", "blocked")]
    )
    assert scores.errors == [[""], ["failed"], ["error: NameError"], ["timeout"], ["blocked"]]
