import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.verify.isolation import ProgramLimits
from brimful.verify.sandbox import Program, ProgramResult, Sandbox, result_of

DOUBLE = Program("def double(x): return 2 * x", "assert double(2) == 4", ("double",))


def report(**changed: Any) -> JsonDict:
    usual = {
        "verdict": {},
        "stopped": "",
        "exit_status": 0,
        "seconds": 1.0,
        "cpu_s": 1.0,
        "output": b"",
    }
    return usual | changed


def judged(**changed: Any) -> ProgramResult:
    return result_of(
        report(**changed), "nonce", ProgramLimits(), {"level": "some", "mode": "apart"}
    )


def test_a_result_says_what_isolated_it_what_was_printed_and_how_long_it_took(
    sandbox: Sandbox,
) -> None:
    result = sandbox.run(
        Program(
            "print('loaded')\ndef f():\n    print('called')\n    return 1",
            "assert f() == 1",
            ("f",),
        )
    )

    assert (result.status, result.detail, result.stdout, result.mode, result.level) == (
        "passed",
        "",
        "loaded\ncalled\n",
        "apart",
        sandbox.level,
    )
    assert 0 < result.seconds < 1


def test_many_programs_keep_their_order(sandbox: Sandbox) -> None:
    programs = [
        Program(f"def f(): return {number % 3}", "assert f() == 0", ("f",)) for number in range(12)
    ]
    seen: dict[int, ProgramResult] = {}

    results = sandbox.run_all(programs, workers=3, progress=seen.__setitem__)

    assert [result.status for result in results] == ["passed", "failed", "failed"] * 4
    assert seen == dict(enumerate(results))


def test_a_program_may_have_its_own_time(sandbox: Sandbox) -> None:
    program = Program("import time\ntime.sleep(60)", "f()", ("f",), seconds=0.2)

    result = sandbox.run(program)

    assert (result.status, result.detail, result.overloaded) == (
        "timeout",
        "not done after 0.2 s",
        False,
    )


def test_only_a_verdict_with_the_nonce_counts() -> None:
    assert judged(verdict={"status": "passed", "detail": "", "nonce": "nonce"}).status == "passed"
    for verdict in (
        {"status": "passed", "nonce": "guess"},
        {"status": "passed"},
        {"status": "won", "nonce": "nonce"},
        [],
        None,
    ):
        assert judged(verdict=verdict).status == "error"


@pytest.mark.parametrize(
    ("changed", "status", "detail"),
    [
        ({"stopped": "time"}, "timeout", "not done after 4 s"),
        ({"stopped": "output"}, "error", "printed more than 1048576 bytes"),
        ({"stopped": "folder"}, "error", "wrote more than 33554432 bytes or 1000 files"),
        ({"exit_status": 3 << 8}, "error", "ended itself with status 3 before the tests were over"),
        ({"exit_status": signal.SIGSEGV}, "error", "crashed: Segmentation fault"),
        ({"exit_status": signal.SIGXCPU, "cpu_s": 4.0}, "timeout", "out of CPU time after 4 s"),
        ({"exit_status": signal.SIGKILL, "cpu_s": 5.0}, "timeout", "out of CPU time after 4 s"),
        ({"exit_status": signal.SIGSYS}, "blocked", "a system call of another kind"),
        ({"exit_status": signal.SIGKILL}, "error", "closed its pipe before the tests were over"),
    ],
)
def test_an_end_without_a_verdict_is_named(changed: JsonDict, status: str, detail: str) -> None:
    result = judged(**changed)

    assert (result.status, result.detail) == (status, detail)


@pytest.fixture
def shared_core() -> Iterator[Sandbox]:
    """A sandbox that is ready to run programs, on one core beside nine processes that compute."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    with Sandbox() as sandbox:
        assert sandbox.run(DOUBLE).status == "passed"
        endless = [sys.executable, "-c", "while True: pass"]
        others = [subprocess.Popen(endless) for _ in range(9)]
        yield sandbox
        for other in others:
            other.kill()
            other.wait()
    os.sched_setaffinity(0, cores)


def test_the_time_that_a_program_waits_for_a_core_is_not_its_own(shared_core: Sandbox) -> None:
    """Right ones pass and endless ones are out of time as on an idle machine. Ten share the core, so
    0.3 s of it take 3 s; time that a host takes from this machine is not counted as waiting.
    """
    busy = "import time\ndef f():\n    while time.process_time() < 0.3: pass\n    return 1"
    done = shared_core.run(Program(busy, "assert f() == 1", ("f",), seconds=2.0))
    endless = shared_core.run(Program("def f():\n    while 1: pass", "f()", ("f",), seconds=0.3))
    assert (done.status, done.detail) == ("passed", "")
    assert (endless.status, endless.overloaded) == ("timeout", False)


def test_a_program_that_hardly_ever_had_a_core_is_not_judged() -> None:
    result = judged(stopped="overload")
    assert (result.status, result.overloaded) == ("timeout", True)
    assert "overloaded" in result.detail


def test_programs_end_with_the_process_that_asked() -> None:
    """Also one that is killed, and long before their time is over."""
    code = "import time; time.sleep(600)"
    asks = (
        "from brimful.verify.sandbox import *\n"
        f"Sandbox().run(Program({code!r}, 'f()', ('f',), seconds=600.0))"
    )
    asking = subprocess.Popen([sys.executable, "-c", asks])
    started: list[psutil.Process] = []
    while len(started) < 3 and asking.poll() is None:
        started = psutil.Process(asking.pid).children(recursive=True)
        time.sleep(0.05)
    asking.kill()
    asking.wait()
    assert len(started) == 3
    _, alive = psutil.wait_procs(started, timeout=120)
    assert alive == []


def test_the_sandbox_survives_the_loss_of_its_own_process() -> None:
    with Sandbox() as sandbox:
        zygote = sandbox._idle.get()
        os.kill(zygote._process.pid, signal.SIGKILL)
        sandbox._idle.put(zygote)

        assert sandbox.run(DOUBLE).status == "passed"


@pytest.mark.skipif(
    sys.platform != "linux", reason="processes that end with their parent are Linux's"
)
def test_a_program_ends_with_the_process_that_watches_it() -> None:
    with Sandbox() as sandbox, ThreadPoolExecutor(1) as pool:
        zygote = sandbox._idle.get()
        sandbox._idle.put(zygote)
        running = pool.submit(
            sandbox.run, Program("import time\ntime.sleep(60)", "f()", ("f",), seconds=2.0)
        )
        watcher = psutil.Process(zygote._process.pid)
        while len(children := watcher.children()) < 2:
            time.sleep(0.01)
        os.kill(watcher.pid, signal.SIGKILL)

        until_s = time.monotonic() + 1.5
        while any(
            child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children
        ):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        assert running.result().status == "timeout"


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with Sandbox() as sandbox:
        assert sandbox.run(DOUBLE).status == "passed"
        assert len(list(tmp_path.iterdir())) == 1
        zygote = sandbox._idle.get()
        sandbox._idle.put(zygote)

    assert list(tmp_path.iterdir()) == []
    assert zygote._process.returncode == -signal.SIGKILL


def test_a_program_too_large_to_send_is_an_error(sandbox: Sandbox) -> None:
    assert sandbox.run(Program("#" * (9 << 20), "f()", ("f",))).status == "error"


def test_large_programs_and_tests_are_sent_whole(sandbox: Sandbox) -> None:
    padding = "#" * (1 << 20) + "\n"

    assert (
        sandbox.run(Program(padding + DOUBLE.code, padding + DOUBLE.tests, DOUBLE.functions)).status
        == "passed"
    )


def test_without_isolation_it_refuses_unless_told_otherwise(refuses: Refuses) -> None:
    with refuses(RequestError, names=["accept_unsandboxed"]):
        Sandbox(level="none")

    with Sandbox(level="none", accept_unsandboxed=True) as sandbox:
        result = sandbox.run(DOUBLE)
    assert (result.status, result.level) == ("passed", "limits only: NOT isolated")


def test_a_level_that_does_not_exist_or_a_system_without_fork_is_refused(
    monkeypatch: pytest.MonkeyPatch,
    refuses: Refuses,
) -> None:
    with refuses(RequestError):
        Sandbox(level="docker")
    monkeypatch.delattr(os, "fork")
    with refuses(RequestError, names=["Linux"]):
        Sandbox()


def test_a_python_that_does_not_start_is_told(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    with refuses(RequestError):
        Sandbox()
