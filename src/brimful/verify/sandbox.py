"""Judge programs that nobody has read: each in fresh, locked processes, with a verdict whatever it
does.

with Sandbox() as sandbox:
    result = sandbox.run(Program(code="def double(x): return 2 * x", tests="assert double(2) == 4",
    functions=("double",)))
"""

import contextlib
import dataclasses
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal, Self

from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.hardware.host import control_group_limits, usable_cores
from brimful.verify.children import EQUALS
from brimful.verify.isolation import LEVELS, ProgramLimits
from brimful.verify.plain import ClosedError, NotPlainError, decode, encode, receive, send

Status = Literal["passed", "failed", "error", "timeout", "blocked"]
STATUSES: tuple[Status, ...] = ("passed", "failed", "error", "timeout", "blocked")
"""`passed`: every test held. `failed`: a test did not hold. `error`: the program raised, crashed,
or passed a limit other than time. `timeout`: out of time. `blocked`: it ended because the sandbox
refused it something.
"""

_START = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from brimful.verify.zygote import main;"
    " sys.path.pop(0); main()"
)
_GAMES = re.compile(
    rf"ended itself with status 0|SystemExit(: (0|None))?$|answered with|.*; it returned {EQUALS}"
)
"""Details of programs that game their tests."""
_START_S, _MARGIN_S = 60.0, 10.0
_OUTPUT_CHARACTERS = 2000
_LIMIT_NAMES = {
    "output": "printed more than {output_bytes} bytes",
    "folder": "wrote more than {folder_bytes} bytes or 1000 files",
}
_LEVEL_NAMES = {
    "landlock": "Landlock + seccomp + limits",
    "seccomp": "seccomp without files + limits",
    "none": "limits only: NOT isolated",
}


@dataclasses.dataclass(frozen=True)
class Program:
    """Code and what judges it.

    Attributes:
        code: What nobody has read.
        tests: Source that raises unless the code is right. It calls the functions by name.
        functions: Names that the tests use and the code must define.
        helpers: Trusted source that runs before the functions are there: imports and definitions
            for the tests.
        together: Tests run in the code's own process because they need its objects (classes,
            functions as values). Such a verdict withstands bad code, not code that is written to
            cheat.
        seconds: Its own wall time limit instead of the sandbox's.
    """

    code: str
    tests: str
    functions: tuple[str, ...]
    helpers: str = ""
    together: bool = False
    seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class ProgramResult:
    """The verdict on one program.

    Attributes:
        status: One of `STATUSES`.
        detail: Why, in a few words; empty if it passed.
        seconds: Wall time.
        stdout: The beginning of what it printed.
        level: What isolated it.
        mode: `apart` if the tests ran in a process of their own, else `together`.
        overloaded: It waited for a core nearly all the time, and much longer than its own: nothing
            is known about the program.
    """

    status: Status
    detail: str
    seconds: float
    stdout: str
    level: str
    mode: Literal["apart", "together"] = "apart"
    overloaded: bool = False

    @property
    def games(self) -> bool:
        """Whether it did what hardly any honest program does, and what may pass elsewhere: it ended
        before its tests as if all were well, reached for what the sandbox refuses, returned what
        equals everything, or answered past its functions. Other cheats are failures like any other.
        """
        return self.status == "blocked" or _GAMES.match(self.detail) is not None


class Sandbox:
    """Judges programs; close it (or use `with`) to end its processes.

    Args:
        limits: What each program may use.
        accept_unsandboxed: Run programs although nothing isolates them here: they can do what the
            user can.
        level: One of `LEVELS` instead of the strongest that holds.

    Raises:
        RequestError: Nothing isolates here, or not at the level asked for.
    """

    def __init__(
        self,
        limits: ProgramLimits | None = None,
        *,
        accept_unsandboxed: bool = False,
        level: str | None = None,
    ) -> None:
        self.limits = limits or ProgramLimits()
        if level is not None and level not in LEVELS:
            raise RequestError(f"sandbox level {level!r} is none of {', '.join(LEVELS)}")
        if not hasattr(os, "fork"):
            raise RequestError(
                "generated code is judged in forked processes, which this system does not have; run"
                " this on Linux"
            )
        self._level = level or "best"
        self._idle: queue.SimpleQueue[_Zygote] = queue.SimpleQueue()
        first = _Zygote(self._level)
        self._idle.put(first)
        if not first.level or (first.level == "none" and not accept_unsandboxed):
            self.close()
            reason = f"{level} does not hold" if level else "neither Landlock nor seccomp holds"
            raise RequestError(
                f"generated code would not be isolated here: {reason} on this system. Use Linux"
                " with seccomp, or say accept_unsandboxed to run it with your own rights"
            )
        self.level = _LEVEL_NAMES[first.level]
        self._level = first.level

    def run(self, program: Program) -> ProgramResult:
        """Judge one program. Nothing it does raises."""
        limits = dataclasses.replace(self.limits, seconds=program.seconds or self.limits.seconds)
        return self._judged(program, limits)

    def run_all(
        self,
        programs: Sequence[Program],
        *,
        workers: int | None = None,
        progress: Callable[[int, ProgramResult], None] | None = None,
    ) -> list[ProgramResult]:
        """Judge many programs at a time.

        Args:
            programs: Programs in any order.
            workers: How many at a time; by default one a usable core.
            progress: Called with a program's place and its result, as results come, from several
                threads.

        Returns:
            Results in the order of the programs.
        """

        def judge(place: int) -> ProgramResult:
            result = self.run(programs[place])
            if progress:
                progress(place, result)
            return result

        with ThreadPoolExecutor(workers or usable_cores(control_group_limits())) as pool:
            return list(pool.map(judge, range(len(programs))))

    def close(self) -> None:
        """End all processes."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _judged(self, program: Program, limits: ProgramLimits) -> ProgramResult:
        nonce = secrets.token_hex(16)
        shown: JsonDict = {
            "level": self.level,
            "mode": "together" if program.together else "apart",
        }
        try:
            frames = _frames(program, limits, nonce)
        except NotPlainError as error:
            return ProgramResult("error", f"the program cannot be sent: {error}", 0.0, "", **shown)
        for _ in range(2):
            with contextlib.suppress(ClosedError, NotPlainError, TimeoutError):
                return result_of(self._report(frames, limits), nonce, limits, shown)
        return ProgramResult("error", "the sandbox itself was ended, twice", 0.0, "", **shown)

    def _report(self, frames: tuple[bytes, bytes], limits: ProgramLimits) -> JsonDict:
        try:
            zygote = self._idle.get_nowait()
        except queue.Empty:
            zygote = _Zygote(self._level)
        try:
            report = zygote.report(frames, limits.most_seconds + _MARGIN_S)
        except BaseException:
            zygote.close()
            raise
        self._idle.put(zygote)
        return report


class _Zygote:
    """A process that programs are forked from, and its folder."""

    def __init__(self, level: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="brimful-sandbox-"))
        jobs_out, self._in = os.pipe()
        self._out, reports_in = os.pipe()
        source = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(  # noqa: S603  this Python with our own module
            [sys.executable, "-S", "-s", "-P", "-c", _START, level, str(self._folder), source],
            stdin=jobs_out,
            stdout=reports_in,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
            env={"PYTHONHASHSEED": "0", "LC_CTYPE": "C.UTF-8"},
        )
        os.close(jobs_out)
        os.close(reports_in)
        try:
            self.level = str(decode(receive(self._out, time.monotonic() + _START_S))["level"])
        except (ClosedError, NotPlainError, TimeoutError):
            self.close()
            raise RequestError(
                "the sandbox's own process does not start; try `python -S -c 'import json, ctypes'`"
                " with this Python"
            ) from None

    def report(self, frames: tuple[bytes, bytes], within_s: float) -> JsonDict:
        """Send a job and wait for what became of it."""
        for frame in frames:
            send(self._in, frame)
        report = decode(receive(self._out, time.monotonic() + within_s))
        if not isinstance(report, dict):
            raise ClosedError
        return report

    def close(self) -> None:
        """End the process with its group and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)


def _frames(program: Program, limits: ProgramLimits, nonce: str) -> tuple[bytes, bytes]:
    job = {"code": program.code, "limits": dataclasses.asdict(limits), "together": program.together}
    tests = {
        "tests": program.tests,
        "helpers": program.helpers,
        "functions": list(program.functions),
        "nonce": nonce,
    }
    return encode(job), encode(tests)


def result_of(
    report: JsonDict, nonce: str, limits: ProgramLimits, shown: JsonDict
) -> ProgramResult:
    """Return the verdict on a program from the report of the process that ran it (the zygote). The
    program cannot forge one: only a verdict with the nonce, a secret of the checker, can be
    `passed`.

    Args:
        report: What `zygote.ProgramRun.result()` returned.
        nonce: The secret that the checker was given.
        limits: Limits that the program was given.
        shown: Level and mode of the isolation, which the result shows.
    """
    verdict = report["verdict"] if isinstance(report["verdict"], dict) else {}
    status, detail = _status(report, verdict, nonce, limits)
    overloaded = report["stopped"] == "overload"
    head = report["output"].decode("utf-8", "replace")[:_OUTPUT_CHARACTERS]
    return ProgramResult(status, detail, report["seconds"], head, overloaded=overloaded, **shown)


def _status(
    report: JsonDict, verdict: JsonDict, nonce: str, limits: ProgramLimits
) -> tuple[Status, str]:
    if report["stopped"] == "time":
        return "timeout", f"not done after {limits.seconds:g} s"
    if report["stopped"] == "overload":
        return "timeout", "the machine was overloaded: the program waited for a core"
    if report["stopped"]:
        return "error", _LIMIT_NAMES[report["stopped"]].format(**dataclasses.asdict(limits))
    status, detail = verdict.get("status"), str(verdict.get("detail"))
    if verdict.get("nonce") == nonce and status in STATUSES:
        return status, detail
    signalled = os.WTERMSIG(report["exit_status"])
    if signalled == signal.SIGXCPU or (
        signalled == signal.SIGKILL and report["cpu_s"] > limits.most_cpu_seconds
    ):
        return "timeout", f"out of CPU time after {limits.most_cpu_seconds} s"
    return _ending(report["exit_status"])


def _ending(status: int) -> tuple[Status, str]:
    """What a candidate's exit status says when the tests were not over."""
    if not os.WIFSIGNALED(status):
        code = os.waitstatus_to_exitcode(status)
        return "error", f"ended itself with status {code} before the tests were over"
    number = os.WTERMSIG(status)
    if number == getattr(signal, "SIGSYS", None):
        return "blocked", "a system call of another kind"
    if number == signal.SIGKILL:
        return "error", "closed its pipe before the tests were over"
    return "error", f"crashed: {signal.strsignal(number) or number}"
