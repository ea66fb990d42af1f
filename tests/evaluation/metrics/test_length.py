"""How long answers are, and whether they end."""

from brimful.evaluation.metric import TaskAnswer
from brimful.evaluation.metrics.length import METRIC


def test_length_is_the_mean_of_tokens_and_unended_the_share_cut_by_the_limit() -> None:
    answers = [
        [TaskAnswer("", "", "", finish, tokens)]
        for finish, tokens in [("end_of_text", 10), ("length", 30), ("stop", 5)]
    ]  # type: ignore[arg-type]
    summaries = METRIC.score(answers).summaries
    assert (summaries["length"].value, summaries["length"].unit) == (15.0, "tokens")
    assert (summaries["unended"].value, summaries["unended"].unit) == (1 / 3, "share")
