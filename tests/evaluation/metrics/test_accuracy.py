"""Right, wrong and unread answers, and what several samples give."""

from itertools import permutations

import pytest

from brimful.evaluation.metric import TaskAnswer, split_kind, summaries_by_kind
from brimful.evaluation.metrics.accuracy import METRIC, majority_at_k


def _answer(said: float | None, reference: float = 5.0) -> TaskAnswer:
    status = "unparsed" if said is None else "correct" if said == reference else "wrong"
    detail = "no final answer" if said is None else ""
    return TaskAnswer(
        "text",
        "" if said is None else f"{said:g}",
        f"{reference:g}",
        "end_of_text",
        3,
        status,
        detail,
        said,
    )


def _answers(*said: float | None) -> list[TaskAnswer]:
    return [_answer(each) for each in said]


def test_an_unread_answer_is_neither_right_nor_answered() -> None:
    scores = METRIC.score([_answers(5), _answers(6), _answers(None), _answers(None)])
    assert {name: summary.value for name, summary in scores.summaries.items()} == {
        "accuracy": 0.25,
        "answer_rate": 0.5,
    }
    assert scores.errors == [
        [""],
        ["wrong"],
        ["unparsed: no final answer"],
        ["unparsed: no final answer"],
    ]
    assert all(
        summary.interval is not None and summary.n == 4 for summary in scores.summaries.values()
    )


def test_an_answer_of_zero_counts_as_one_that_was_given() -> None:
    scores = METRIC.score([[_answer(0, reference=0)]])
    assert (scores.summaries["accuracy"].value, scores.summaries["answer_rate"].value) == (1.0, 1.0)


def test_several_samples_tell_pass_and_majority_up_to_their_number() -> None:
    scores = METRIC.score([_answers(5, 6, 6, None), _answers(6, 6, 6, 6)])
    assert scores.summaries.keys() == {"accuracy", "answer_rate", "pass@2", "pass@4", "majority@4"}
    assert {name: values[0] for name, values in scores.of_answers.items()} == {
        "accuracy": [1, 0, 0, 0],
        "answer_rate": [1, 1, 1, 0],
        "pass@2": [0.5],
        "pass@4": [1],
        "majority@4": [0],
    }


@pytest.mark.parametrize(
    ("said", "share"),
    [
        ((5, 5, 6), 1),
        ((6, 5, 6), 0),
        ((5, 6), 1),  # as many votes: the first drawn
        ((6, 5), 0),
        ((None, 6, 5), 0),
        ((None, None, 5), 1),  # only what could be read votes
        ((None, None), 0),
        ((5, 6, 7, 6, 5), 1),
    ],
)
def test_the_most_frequent_value_wins_and_of_equals_the_first_drawn(
    said: tuple[float | None, ...], share: float
) -> None:
    assert majority_at_k(_answers(*said), len(said)) == share


def test_a_majority_of_one_is_the_share_of_right_samples() -> None:
    assert majority_at_k(_answers(5, 6, None, 5, 5), 1) == 0.6


def test_a_majority_of_fewer_than_were_drawn_is_unbiased() -> None:
    """The mean over all orders in which five samples can come is that over all draws of three."""
    said = (5, 5, 6, 6, None)
    orders = list(permutations(said))
    estimates = [majority_at_k(_answers(*order), 3) for order in orders]
    assert sum(estimates) / len(orders) == pytest.approx(
        sum(majority_at_k(_answers(*order[:3]), 3) for order in orders) / len(orders)
    )


def test_scores_are_told_by_type_of_question() -> None:
    scores = METRIC.score([_answers(5), _answers(6), _answers(5), _answers(None)])
    told = summaries_by_kind(scores, ["length", "time", "length", ""])
    assert {name: (summary.value, summary.n) for name, summary in told.items()} == {
        "accuracy[length]": (1, 2),
        "accuracy[time]": (0, 1),
        "answer_rate[length]": (1, 2),
        "answer_rate[time]": (1, 1),
    }
    assert summaries_by_kind(scores, [""] * 4) == {}
    assert [split_kind(name) for name in ("accuracy[new-pairs]", "pass@2")] == [
        ("accuracy", "new-pairs"),
        ("pass@2", ""),
    ]
