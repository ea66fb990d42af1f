"""Answers judged beside generation."""

from collections.abc import Sequence
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.verify import background
from brimful.verify.background import JUDGED_TOGETHER, Judging
from brimful.verify.sandbox import Sandbox
from brimful.verify.verifier import Verdict, load_verifier

PROBLEM = {
    "text": "Add two.",
    "code": "def add(a):\n    return a + 2",
    "test_list": ["assert add(1) == 3"],
}


def test_texts_are_judged_at_once() -> None:
    with Judging(load_verifier("number"), None) as judging:
        judging.put("a", "<answer>3</answer>", "3")
        judging.put("b", "who knows", "3")
        assert [(item, verdict.status) for item, verdict in judging.ready()] == [
            ("a", "correct"),
            ("b", "unparsed"),
        ]
        assert judging.ready() == judging.rest() == []


def test_programs_are_judged_beside_generation_and_none_is_lost() -> None:
    with Sandbox() as sandbox, Judging(load_verifier("mbpp"), sandbox) as judging:
        found = []
        for number in range(JUDGED_TOGETHER // 8):
            judging.put(number, f"def add(a):\n    return a + {2 + number % 2}", PROBLEM)
            found += judging.ready()
        found += judging.rest()
    assert sorted((item, verdict.is_correct) for item, verdict in found) == [
        (number, number % 2 == 0) for number in range(JUDGED_TOGETHER // 8)
    ]


@pytest.mark.parametrize(("busy", "is_known"), [(1, True), (2, False)], ids=["once", "still"])
def test_what_the_machine_was_too_busy_for_is_judged_again(
    monkeypatch: pytest.MonkeyPatch, busy: int, is_known: bool, refuses: Refuses
) -> None:
    calls: list[int] = []

    def judge(
        verifier: Any, answers: Sequence[str], references: Any, sandbox: Any
    ) -> list[Verdict | None]:
        if answers:
            calls.append(len(answers))
        return [None if len(calls) <= busy else Verdict("x", "x", "correct") for _ in answers]

    monkeypatch.setattr(background, "judge", judge)
    with Sandbox() as sandbox, Judging(load_verifier("mbpp"), sandbox) as judging:
        judging.put("a", "def add(a): ...", PROBLEM)
        if is_known:
            assert [(item, verdict.status) for item, verdict in judging.rest()] == [
                ("a", "correct")
            ]
        else:
            with refuses(RequestError):
                judging.rest()
