"""What other programs took, from readings by hand, and that this system gives readings."""

import threading
import time

import pytest

from brimful.hardware.contention import (
    CoreTimes,
    CoreWatch,
    ThreadTimes,
    core_times,
    lost_share,
    own_s,
    thread_times,
)

START = CoreTimes(ran=10.0, waited=1.0, others=5.0, stolen=0.0, passed=100.0)


@pytest.mark.parametrize(
    ("after", "share"),
    [
        (CoreTimes(ran=12.0, waited=1.0, others=5.0, stolen=0.0, passed=102.0), 0.0),
        (CoreTimes(ran=11.0, waited=2.0, others=6.0, stolen=0.0, passed=102.0), 0.5),
        (CoreTimes(ran=12.0, waited=1.0, others=5.0, stolen=0.5, passed=102.0), 0.25),
        (CoreTimes(ran=12.0, waited=None, others=6.0, stolen=0.0, passed=104.0), 0.25),
        (START, 0.0),
    ],
    ids=[
        "alone",
        "waited as long as it ran",
        "stolen",
        "a system that counts no waiting",
        "no time",
    ],
)
def test_the_lost_share_is_what_was_waited_for_and_stolen(after: CoreTimes, share: float) -> None:
    assert lost_share(START, after) == pytest.approx(share)


@pytest.mark.parametrize(
    ("passed", "ran", "waited", "seconds"),
    [
        (4.0, 4.0, {}, 4.0),  # alone
        (4.0, 3.0, {}, 4.0),  # slept, nobody waited
        (4.0, 3.0, {1: 1.0}, 3.0),  # waited for a core itself
        (4.0, 2.5, {1: 1.0, 2: 0.25, 3: 0.125}, 2.75),  # and slept while another thread did
        (4.0, 2.5, {1: 1.0, 2: 9.0}, 2.5),  # no more than it slept
        (4.0, 3.0, {5: 0.5}, 3.5),  # a thread that was not there before
    ],
)
def test_what_is_left_without_other_programs(
    passed: float, ran: float, waited: dict[int, float], seconds: float
) -> None:
    before = dict.fromkeys(waited.keys() - {5}, 10.0)
    after = {thread: before.get(thread, 0.0) + s for thread, s in waited.items()}

    begun = ThreadTimes(100.0, 50.0, before, thread=1)
    ended = ThreadTimes(100.0 + passed, 50.0 + ran, after, thread=1)

    assert own_s(begun, ended) == pytest.approx(seconds)


def test_sleeping_alone_is_not_taken_by_others() -> None:
    with CoreWatch() as watch:
        before, began_s = thread_times(), time.thread_time()
        time.sleep(0.05)
        sum(range(200_000))
        after, ran_s = thread_times(), time.thread_time() - began_s

    assert ran_s / 2 < own_s(before, after) <= after.passed - before.passed
    assert after.thread == threading.get_native_id()
    assert watch.own_over_clock >= 1


def test_a_watch_compares_its_end_with_its_beginning() -> None:
    readings = iter([START, CoreTimes(11.0, 2.0, 6.0, 0.0, 102.0)])

    with CoreWatch(lambda: next(readings)) as watch:
        pass

    assert watch.lost_share == pytest.approx(0.5)


def test_this_system_has_times_that_do_not_run_backwards() -> None:
    before = core_times()
    sum(range(100_000))
    after = core_times()

    assert after.passed >= before.passed
    assert after.ran >= before.ran
    assert 0 <= lost_share(before, after) <= 1
