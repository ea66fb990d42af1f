"""A process that hangs ends with its own exit code and says where; one that works, sleeps or was
halted does not.
"""

import ctypes
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Captured, MakeRecipe
from rich.console import Console

from brimful.base import watchdog
from brimful.base.watchdog import EXIT_CODE, FILE_NAME, Watchdog, grace, longest_wait
from brimful.chains.pipeline import train
from brimful.training import loop
from brimful.training.checkpoint import differences, load

QUIET = Console(quiet=True)
SOON_S = 5.0
"""Far more than a step of the tiny recipe takes, on a busy machine too."""


def _stuck_in_a_call(*args: object, **kwargs: object) -> None:
    """Lock a mutex of the C library twice: no signal ends that."""
    mutex, library = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


def _child(act: Callable[[], object]) -> int:
    """Run `act` in a forked process; return its id."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:
            os._exit(99)
        os._exit(0)
    return child


def _exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _hang_at(step: int, before: Callable[[], object] = lambda: None) -> None:
    """Let the update of a step hang for ever."""
    real, count = loop.guarded_update, 0

    def act(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        if count == step:
            before()
            _stuck_in_a_call()
        return real(*args, **kwargs)

    loop.guarded_update = act


def test_a_hung_step_ends_the_process_and_the_same_command_ends_like_an_undisturbed_run(
    tiny: MakeRecipe, tmp_path: Path, capfd: Captured
) -> None:
    recipe = tiny("run.name=hung", "checkpoint.every=2", f"run.patience={SOON_S}s")

    def act() -> None:
        _hang_at(step=6)
        train(recipe, QUIET)

    assert _exit_code(_child(act)) == EXIT_CODE
    report = (tmp_path / "runs" / "hung" / FILE_NAME).read_text()
    assert "a step made no progress for" in report
    assert "in _stuck_in_a_call" in report
    told = capfd.readouterr().err
    assert FILE_NAME in told
    assert "run the same command to continue" in told

    folders = [train(recipe, QUIET).folder]
    folders.append(train(tiny("run.name=other", "checkpoint.every=2"), QUIET).folder)
    ends = [load(folder / "checkpoints" / "step-00000012") for folder in folders]
    assert differences(*ends) == []


def test_a_signal_ends_a_hung_step_within_its_grace(
    tiny: MakeRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However patient the run is otherwise."""
    monkeypatch.setattr(watchdog, "GRACE_S", SOON_S)

    def terminate_soon() -> None:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()

    def act() -> None:
        _hang_at(step=3, before=terminate_soon)
        train(tiny("run.patience=null"), QUIET)

    assert _exit_code(_child(act)) == 128 + signal.SIGTERM
    assert "in _stuck_in_a_call" in (tmp_path / "runs" / "tiny" / FILE_NAME).read_text()


def _watched(folder: Path, *, works: Callable[[Watchdog], object]) -> Callable[[], None]:
    def act() -> None:
        with Watchdog(folder, {}, patience_s=1.0, tick_s=0.02) as dog:
            works(dog)

    return act


def test_a_process_that_was_halted_is_not_taken_for_hung(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def works(dog: Watchdog) -> None:
        dog.begin("a step")
        begun.touch()
        time.sleep(0.3)

    child = _child(_watched(tmp_path, works=works))
    while not begun.exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(child, signal.SIGCONT)
    assert _exit_code(child) == 0


def test_work_that_goes_on_is_left_alone_and_work_that_does_not_is_ended(tmp_path: Path) -> None:
    def goes_on(dog: Watchdog) -> None:
        for _ in range(100):
            dog.begin("a step")
            time.sleep(0.02)

    def stays(dog: Watchdog) -> None:
        dog.begin("a step")
        _stuck_in_a_call()

    assert _exit_code(_child(_watched(tmp_path, works=goes_on))) == 0
    assert not (tmp_path / FILE_NAME).exists()
    assert _exit_code(_child(_watched(tmp_path, works=stays))) == EXIT_CODE


def test_a_disk_that_does_not_answer_keeps_no_hung_process_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report goes into a named pipe that nobody reads, which blocks for ever."""
    os.mkfifo(tmp_path / FILE_NAME)
    monkeypatch.setattr(watchdog, "REPORT_S", 0.2)

    def stays(dog: Watchdog) -> None:
        dog.begin("a checkpoint")
        _stuck_in_a_call()

    assert _exit_code(_child(_watched(tmp_path, works=stays))) == EXIT_CODE


@pytest.mark.parametrize(
    ("expected_s", "longest_s", "patience_s", "limit_s"),
    [
        (1.0, 2.0, None, 600.0),
        (60.0, None, None, 1200.0),
        (60.0, 90.0, None, 1800.0),
        (60.0, 90.0, 30.0, 30.0),
        (60.0, 90.0, math.inf, math.inf),
    ],
)
def test_the_limit_comes_from_the_plan_and_from_what_was_measured_unless_the_user_sets_it(
    expected_s: float, longest_s: float | None, patience_s: float | None, limit_s: float
) -> None:
    assert longest_wait(expected_s, longest_s, patience_s) == limit_s


def test_grace_is_enough_for_a_long_step_and_short_for_a_short_one() -> None:
    assert (grace(0.1), grace(45.0)) == (20.0, 90.0)
