"""SIGTERM and Ctrl-C become a request, and only while training asks for it."""

import signal
import threading

import pytest

from brimful.training.decisions import StopRequest


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_stops_nothing(number: int) -> None:
    with StopRequest() as stop:
        assert stop.has_arrived() is None
        signal.raise_signal(number)
        signal.raise_signal(number)

        assert stop.has_arrived() == stop.signal_number == number


def test_afterwards_signals_do_what_they_did_before() -> None:
    at_start = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell starts background jobs with SIGINT ignored
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    stop = StopRequest()
    with pytest.raises(ZeroDivisionError), stop:
        raise ZeroDivisionError

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, at_start)


def test_outside_the_main_thread_nothing_is_listened_to_and_nothing_breaks() -> None:
    seen: list[int | None] = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append(stop.has_arrived())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [None]
