"""Which answers count as code."""

import pytest

from brimful.evaluation.metric import TaskAnswer
from brimful.evaluation.metrics.syntax import METRIC


def _answer(
    completion: str, extracted: str | None = None, finish: str = "end_of_text"
) -> TaskAnswer:
    return TaskAnswer(completion, completion if extracted is None else extracted, "", finish, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_answer("x = 1"), ""),
        (_answer("x = 1", finish="length"), ""),
        (_answer(""), "empty"),
        (_answer("", "def f():\n    '''Prompt.'''\n"), "empty"),
        (_answer("# nothing"), "only comments"),
        (_answer("def f(", finish="length"), "unfinished"),
        (_answer("x ="), "SyntaxError: invalid syntax"),
    ],
)
def test_each_failure_has_its_kind(answer: TaskAnswer, error: str) -> None:
    """Nothing written is empty, also behind a prompt that parses by itself."""
    scores = METRIC.score([[answer]])
    assert scores.errors == [[error]]
    assert scores.of_answers["syntax"] == [[float(not error)]]


def test_the_value_is_the_share_that_parses() -> None:
    summary = METRIC.score(
        [[_answer("x = 1")], [_answer("x =")], [_answer("y = 2")], [_answer("")]]
    ).summaries["syntax"]
    assert (summary.value, summary.unit, summary.n, summary.interval_method) == (
        0.5,
        "share",
        4,
        "Wilson",
    )
