"""The tab that answers: controls as a question, what is typed while it answers, problems beside the
last answer.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from small_plans import SMALL_FILE
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.studio.fit_request import FitRequest
from brimful.studio.planners import Planners
from brimful.studio.will_it_fit import (
    SETTLED_S,
    FitControls,
    FitTab,
    FitTabState,
    LatestControls,
    number_of,
    question_line,
    request_of,
)


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
    devices = ["This machine", "NVIDIA L4"]
    question = request_of(
        FitControls(" quickstart ", "", "lora", "8", "", "4", "10M", "Tight", devices, 2)
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
    assert question.together == 2
    assert request_of(FitControls("quickstart", "name: x")).model == "name: x"


def test_the_last_of_quick_changes_is_answered_by_session() -> None:
    typing = LatestControls()
    typing.note("a", ("1",))
    typing.note("a", ("12",))
    typing.note("b", ("other",))
    started_s = time.monotonic()

    assert typing.settled("a", ("1",)) == ("12",)
    assert time.monotonic() - started_s > SETTLED_S / 2
    assert typing.settled("nobody", ("own",)) == ("own",)
    typing.forget("a")
    assert typing.settled("a", ("own",)) == ("own",)


@pytest.fixture(scope="module")
def planners() -> Iterator[Planners]:
    made = Planners()
    yield made
    made.close()


def test_the_old_answer_is_grey_and_named_while_the_question_is_worked_on(
    planners: Planners, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    tab = FitTab(planners, local_folders=False)
    reading, working, answered = tab.answer(request(), FitTabState(), *controls("", SMALL_FILE))

    assert (reading.shown, reading.recipe.strip()) == ("", "")
    assert working.status == snapshot
    assert answered.problem == ""
    assert "Tesla T4" in answered.shown
    assert "stale" not in answered.shown + answered.recipe
    assert "name: small" in answered.recipe

    *old, refused = tab.answer(request(), answered.state, *controls("quikstart", rank="8"))
    assert old[-1].status == snapshot
    for update in (*old, refused):
        assert "Last answer: small" in update.shown
        assert "stale" in update.shown
        assert "stale" in update.recipe
    assert refused.problem == snapshot
    assert refused.state.fit == answered.state.fit

    *_, refused = tab.answer(request(), FitTabState(), *controls(str(tmp_path)))
    assert refused.shown == ""
    assert refused.problem == snapshot


def test_controls_set_back_bring_their_answer_back_at_once(planners: Planners) -> None:
    tab = FitTab(planners, local_folders=False)
    *_, answered = tab.answer(request(), FitTabState(), *controls("", SMALL_FILE))
    *_, refused = tab.answer(request(), answered.state, *controls("quikstart"))

    *_, again = tab.answer(request(), answered.state, *controls("", SMALL_FILE))
    assert again == answered
    *_, again = tab.answer(request(), refused.state, *controls("", SMALL_FILE))
    assert again.shown == answered.shown
    assert again.problem == ""


@pytest.mark.parametrize("event", ["changed", "left"])
def test_a_change_or_a_closed_page_ends_what_was_worked_on(
    planners: Planners, event: str, snapshot: SnapshotAssertion
) -> None:
    tab = FitTab(planners, local_folders=False)
    long = controls("meta-llama/Llama-3.1-70B")
    updates = tab.answer(request(event), FitTabState(), *long)
    assert [next(updates), next(updates)][-1].status == snapshot
    came: list[Any] = []
    waits = threading.Thread(target=lambda: came.extend(updates))
    waits.start()
    while event not in planners._jobs:
        pass
    tab.changed(request("another"), *controls("quickstart"))
    tab.changed(request(event), *long)
    assert event in planners._jobs, "nothing has changed for this session"

    if event == "changed":
        tab.changed(request(event), *controls("quickstart"))
    else:
        tab.left(request(event))
    waits.join()

    assert came == []
    assert event not in planners._jobs


@pytest.mark.parametrize(
    ("question", "line"),
    [
        (FitRequest("quickstart"), "quickstart"),
        (FitRequest("a/b", "lora", rank=8, tokens=10**7), "a/b, lora, rank 8, tokens 10,000,000"),
        (FitRequest('{"model_type": "llama"}'), "the pasted text"),
        (FitRequest("", effective_batch=4), "no model, sequences a step 4"),
    ],
)
def test_a_question_is_named_in_a_line(question: FitRequest, line: str) -> None:
    assert question_line(question) == line
