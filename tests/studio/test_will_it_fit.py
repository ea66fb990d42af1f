"""The tab that answers: controls as a question, what is typed while it answers, problems beside the
last answer.
"""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from brimful.base.errors import RequestError
from brimful.studio.will_it_fit import (
    SETTLED_S,
    FitTab,
    FitTabState,
    LatestControls,
    number_of,
    request_of,
)

SMALL = """
name: small
sequence_length: 16
batch: {sequences: 2}
training: {steps: 8}
model: {architecture: llama, layers: 1, heads: 1, width: 16}
tokenizer: {kind: bpe, vocabulary: 300}
data: {path: "builtin:python-docs"}
optimizer: {learning_rate: 1.0e-3}
plan: {compile: false}
"""


def request(session: str = "a") -> Any:
    return SimpleNamespace(session_hash=session)


def controls(model: str, pasted: str = "", rank: str = "") -> tuple[Any, ...]:
    return model, pasted, "as the recipe", rank, "", "", "", "as the recipe", ["Tesla T4"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        (None, None),
        (" 16 ", 16),
        ("2,048", 2048),
        ("10M", 10**7),
        ("1.5b", 1_500_000_000),
        ("1e9", 10**9),
    ],
)
def test_numbers_as_people_type_them(text: str | None, value: int | None) -> None:
    assert number_of("rank", text) == value


@pytest.mark.parametrize(
    "text", ["many", "1.5", "-1", "10 000 000 x", "1e999", "0x10", "__import__('os')", "9" * 400]
)
def test_what_is_no_whole_number_is_told(text: str) -> None:
    with pytest.raises(RequestError, match="must be a whole number, such as"):
        number_of("rank", text)


def test_controls_make_a_question_and_a_pasted_text_comes_first() -> None:
    question = request_of(
        " quickstart ", "", "lora", "8", "", "4", "10M", "Tight", ["This machine", "NVIDIA L4"]
    )

    assert (question.model, question.method, question.rank, question.sequence_length) == (
        "quickstart",
        "lora",
        8,
        None,
    )
    assert (question.effective_batch, question.tokens, question.margin, question.devices) == (
        4,
        10**7,
        "tight",
        ("here", "NVIDIA L4"),
    )
    assert (
        request_of("quickstart", "name: x", "lora", "", "", "", "", "as the recipe", []).model
        == "name: x"
    )


def test_the_last_of_quick_changes_is_answered_by_session() -> None:
    typing = LatestControls()
    typing.note(request("a"), "1")
    typing.note(request("a"), "12")
    typing.note(request("b"), "other")
    started_s = time.monotonic()

    assert typing.settled("a", ("1",)) == ("12",)
    assert time.monotonic() - started_s > SETTLED_S / 2
    assert typing.settled("nobody", ("own",)) == ("own",)
    typing.forget(request("a"))
    assert typing.settled("a", ("own",)) == ("own",)


def test_a_problem_stands_beside_the_last_answer_and_the_same_question_is_not_answered_twice(
    tmp_path: Path,
) -> None:
    answers = FitTab(local_folders=False)
    shown, told, recipe, answered = answers.first(request(), FitTabState(), *controls("", SMALL))

    assert told == ""
    assert "Tesla T4" in shown
    assert "name: small" in recipe
    assert answers.first(request(), answered, *controls("", SMALL)) == (gr.skip(),) * 4
    assert answers.closer(answered) == (gr.skip(), gr.skip()), "it fits"

    shown, told, recipe, after = answers.first(request(), answered, *controls("quikstart"))
    assert "did you mean" in told
    assert "stale" in shown
    assert recipe == ""
    assert after.fit == answered.fit

    shown, told, _, _ = answers.first(request(), FitTabState(), *controls(str(tmp_path)))
    assert shown == ""
    assert "nothing is called" in told
