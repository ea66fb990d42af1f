"""What other programs took, from readings by hand, and that this system gives readings."""

import pytest

from brimful.hardware.contention import CoreTimes, CoreWatch, core_times, lost_share

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
