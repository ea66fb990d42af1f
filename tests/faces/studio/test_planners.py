"""Questions of several pages at once: nobody waits for another, and what nobody waits for ends."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asked_pages import Page
from fixture_types import Refuses
from small_plans import SMALL_FILE
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.faces.studio.asked import PageRequest
from brimful.faces.studio.fit import Fit
from brimful.faces.studio.fit_request import FitRequest
from brimful.faces.studio.planners import Planners, Superseded
from brimful.report.terminal import told_of

QUICK = FitRequest("quikstart")
"""Refused at once."""
LONG = FitRequest("meta-llama/Llama-3.1-70B", "full")
"""Nothing of it is cached; many seconds of work."""


@pytest.fixture
def make() -> Iterator[Callable[..., Planners]]:
    """`make(most)`; all processes are ended with the test."""
    made: list[Planners] = []

    def one(most: int | None = None) -> Planners:
        made.append(Planners(most))
        return made[-1]

    yield one
    for each in made:
        each.close()


def ask(planners: Planners, question: FitRequest) -> tuple[PageRequest, "queue.SimpleQueue[Any]"]:
    """Ask in a thread; what comes back is put into the queue."""
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()
    asked = Page().asked

    def work() -> None:
        try:
            came.put(planners.answer(asked, question))
        except Exception as error:
            came.put(error)

    threading.Thread(target=work, daemon=True).start()
    return asked, came


def begun(planners: Planners, asked: PageRequest) -> Any:
    """The process that works for a page, once there is one."""
    while not asked._endings:
        time.sleep(0.01)  # the processor is needed to start it
    return planners._all[-1].process


@pytest.mark.long
def test_an_answer_comes_from_another_process_as_if_it_were_made_here(
    make: Callable[..., Planners],
    refuses: Refuses,
) -> None:
    planners, asked = make(), Page().asked

    fit = planners.answer(asked, FitRequest(SMALL_FILE, devices=("Tesla T4",)))
    asked.leave()

    assert isinstance(fit, Fit)
    assert "Tesla T4" in told_of(fit.view).plain
    assert planners._all[-1].process.is_alive(), "it has answered, and is kept for the next"
    with refuses(RequestError):
        planners.answer(Page().asked, QUICK)
    assert len(planners._all) == 1


def test_others_are_answered_meanwhile_and_what_is_left_ends(
    make: Callable[..., Planners],
) -> None:
    planners = make()
    asked, long = ask(planners, LONG)
    process = begun(planners, asked)

    assert isinstance(ask(planners, QUICK)[1].get(timeout=300), RequestError)
    assert long.empty()
    asked.leave()
    assert isinstance(long.get(timeout=300), Superseded)
    assert not process.is_alive()


def test_what_is_left_gives_its_place_to_those_who_wait(make: Callable[..., Planners]) -> None:
    planners = make(1)
    asked, long = ask(planners, LONG)
    begun(planners, asked)
    (_, waiting), (leaving, left) = ask(planners, QUICK), ask(planners, QUICK)
    leaving.leave()

    assert isinstance(left.get(timeout=300), Superseded)
    assert waiting.empty()
    asked.leave()
    assert isinstance(long.get(timeout=300), Superseded)
    assert isinstance(waiting.get(timeout=300), RequestError)


def test_a_process_that_ends_by_itself_is_told(
    make: Callable[..., Planners], snapshot: SnapshotAssertion
) -> None:
    planners = make()
    asked, long = ask(planners, LONG)
    begun(planners, asked).kill()

    problem = long.get(timeout=300)
    assert isinstance(problem, RequestError)
    assert str(problem) == snapshot


def test_what_nobody_expected_is_told_as_such(
    make: Callable[..., Planners], refuses: Refuses
) -> None:
    with refuses(RuntimeError, names=["TypeError: assess"]):
        make().answer(Page().asked, QUICK, unknown=True)
