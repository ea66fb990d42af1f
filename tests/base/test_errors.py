"""Every error on purpose is one tree, carries an exit code and says what the user can do."""

import signal

import pytest

from brimful.base import errors
from brimful.base.errors import BrimfulError, Interrupted, RecipeError, SessionOver, TrainingStopped

ALL = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, Exception)
]


@pytest.mark.parametrize("error", ALL)
def test_every_error_is_a_brimful_error_with_a_docstring(error: type[Exception]) -> None:
    assert issubclass(error, BrimfulError)
    assert error.__doc__


def test_what_the_user_can_correct_exits_with_2_and_a_stopped_training_with_1() -> None:
    assert RecipeError("x").exit_code == 2
    assert TrainingStopped("x").exit_code == 1


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_exits_as_shells_expect_of_that_signal(number: int, code: int) -> None:
    error = Interrupted("stopped at step 3", number)

    assert error.exit_code == code
    assert str(error) == "stopped at step 3"


def test_a_session_that_ends_can_be_told_from_a_signal_and_a_failure() -> None:
    assert SessionOver("over").exit_code == 75
