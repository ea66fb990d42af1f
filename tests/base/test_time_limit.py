"""Code that takes too long is ended, in the main thread."""

import signal
import threading

from fixture_types import Refuses

from brimful.base.time_limit import processor_time_limit


def _loop_for_ever() -> None:
    while True:
        pass


def test_what_takes_too_long_is_ended_and_what_follows_is_not(refuses: Refuses) -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    with refuses(TimeoutError, names=["50"]):  # noqa: SIM117
        with processor_time_limit(0.05):
            _loop_for_ever()

    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) is before


def test_another_thread_is_not_limited_and_disturbs_no_limit_of_the_main_one() -> None:
    done = []

    def work() -> None:
        with processor_time_limit(1e-6):
            done.append(sum(range(100_000)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert done == [4_999_950_000]
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
