"""What every metric promises."""

import math

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.evaluation.metric import TaskAnswer, load_metric, mean_of_examples, metric_names

REFERENCE = "def f(x):\n    return x + 1\n"


def _answer(
    text: str, finish: str = "end_of_text", status: str | None = "failed", detail: str = ""
) -> TaskAnswer:
    return TaskAnswer(text, text, REFERENCE, finish, len(text), status, detail)  # type: ignore[arg-type]


ODD = ["", " ", "# comment", REFERENCE, "def f(", "\0", "\ud800", "x" * 5000, "(" * 300, "東京"]
EXAMPLES = [
    [
        _answer(text),
        _answer(text, "length", "passed"),
        _answer(REFERENCE, "stop", "error", "NameError: x"),
    ]
    for text in ODD
]


@pytest.mark.parametrize("name", metric_names())
def test_every_metric_scores_whatever_was_written(name: str) -> None:
    scores = load_metric(name).score(EXAMPLES)
    assert all(len(of_answers) == len(EXAMPLES) for of_answers in scores.of_answers.values())
    assert all(
        math.isfinite(value)
        for of_answers in scores.of_answers.values()
        for samples in of_answers
        for value in samples
    )
    assert scores.errors == [] or [len(samples) for samples in scores.errors] == [3] * len(EXAMPLES)
    assert all(
        summary.n == len(EXAMPLES) and summary.interval is not None
        for summary in scores.summaries.values()
    )


@pytest.mark.parametrize("name", metric_names())
def test_the_value_of_every_metric_with_scores_is_their_mean_and_lies_in_its_interval(
    name: str,
) -> None:
    """So that runs can be compared example by example."""
    scores = load_metric(name).score(EXAMPLES)
    assert scores.of_answers.keys() <= scores.summaries.keys()
    for key, summary in scores.summaries.items():
        assert summary.interval is not None
        assert summary.interval.low <= (summary.value or 0) <= summary.interval.high
        if key in scores.of_answers:
            assert summary == mean_of_examples(scores.of_answers[key], summary.unit)


@pytest.mark.parametrize("name", metric_names())
def test_every_metric_stands_nothing_to_score(name: str) -> None:
    summaries = load_metric(name).score([]).summaries
    assert all(
        summary.n == 0 and summary.value is None and summary.interval is None
        for summary in summaries.values()
    )
    assert all(summary.to_json()["interval"] is None for summary in summaries.values())


@pytest.mark.parametrize("name", metric_names())
def test_every_metric_says_what_it_is(name: str) -> None:
    assert load_metric(name).description.endswith(".")


def test_an_unknown_metric_is_named_with_the_nearest(refuses: Refuses) -> None:
    with refuses(RequestError, names=["'blue'", "'bleu'"]):
        load_metric("blue")


def test_an_example_counts_once_however_many_samples_it_has() -> None:
    assert mean_of_examples([[1.0, 0.0, 0.0, 0.0], [1.0]], "share").value == 0.625
