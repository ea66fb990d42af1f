"""Questions of several sessions at once: nobody waits for another, and what nobody waits for ends."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fixture_types import Refuses
from small_plans import SMALL_FILE
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.studio.fit import Fit
from brimful.studio.fit_request import FitRequest
from brimful.studio.planners import Planners, Superseded

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


def ask(planners: Planners, session: str, question: FitRequest) -> "queue.SimpleQueue[Any]":
    """Ask in a thread; what comes back is put into the queue."""
    came: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        try:
            came.put(planners.answer(session, question))
        except Exception as error:
            came.put(error)

    threading.Thread(target=work, daemon=True).start()
    return came


def begun(planners: Planners, session: str) -> Any:
    """The process that works for a session, once there is one."""
    while True:
        job = planners._jobs.get(session)
        if job is not None and job.planner is not None:
            return job.planner.process
        time.sleep(0.01)  # the processor is needed to start it


def test_an_answer_comes_from_another_process_as_if_it_were_made_here(
    make: Callable[..., Planners],
    refuses: Refuses,
) -> None:
    planners = make()

    fit = planners.answer("a", FitRequest(SMALL_FILE, devices=("Tesla T4",)))

    assert isinstance(fit, Fit)
    assert [device.device for device in fit.devices] == ["Tesla T4"]
    with refuses(RequestError):
        planners.answer("a", QUICK)


def test_the_questions_of_others_are_answered_while_a_long_one_is_worked_on(
    make: Callable[..., Planners],
) -> None:
    planners = make()
    long = ask(planners, "a", LONG)
    begun(planners, "a")

    assert isinstance(ask(planners, "b", QUICK).get(timeout=300), RequestError)
    assert long.empty()


def test_a_newer_question_of_the_same_session_ends_the_work_on_the_old_one(
    make: Callable[..., Planners],
) -> None:
    planners = make()
    long = ask(planners, "a", LONG)
    process = begun(planners, "a")

    assert isinstance(ask(planners, "a", QUICK).get(timeout=300), RequestError)
    assert isinstance(long.get(timeout=300), Superseded)
    assert not process.is_alive()


def test_what_is_given_up_leaves_its_place_to_those_who_wait(make: Callable[..., Planners]) -> None:
    planners = make(1)
    long = ask(planners, "a", LONG)
    begun(planners, "a")
    waiting, leaving = ask(planners, "b", QUICK), ask(planners, "c", QUICK)
    while not {"b", "c"} <= planners._jobs.keys():
        pass
    planners.give_up("c")

    assert isinstance(leaving.get(timeout=300), Superseded)
    assert waiting.empty()
    planners.give_up("a")
    assert isinstance(long.get(timeout=300), Superseded)
    assert isinstance(waiting.get(timeout=300), RequestError)
    planners.give_up("nobody")


def test_a_process_that_ends_by_itself_is_told(
    make: Callable[..., Planners], snapshot: SnapshotAssertion
) -> None:
    planners = make()
    long = ask(planners, "a", LONG)
    begun(planners, "a").kill()

    problem = long.get(timeout=300)
    assert isinstance(problem, RequestError)
    assert str(problem) == snapshot


def test_what_nobody_expected_is_told_as_such(
    make: Callable[..., Planners], refuses: Refuses
) -> None:
    with refuses(RuntimeError, names=["TypeError: assess"]):
        make().answer("a", QUICK, unknown=True)
