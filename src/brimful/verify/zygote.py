"""The small process that programs are forked from: started with none of its parent's environment
before anything secret is in memory, it never reads tests.

It takes jobs on descriptor 0 and reports on descriptor 1. A job is two frames: the program with its
limits, which it reads, and the tests, which only the process that judges reads. It starts the
processes, watches time, output and files, kills them as groups and empties their folder.
"""

import contextlib
import gc
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brimful.base.libc import end_with
from brimful.base.types import JsonDict
from brimful.verify import children
from brimful.verify.isolation import (
    LEVELS,
    Isolation,
    ProgramLimits,
    best_level,
    holds,
    load_modules,
)
from brimful.verify.plain import ClosedError, channel, decode, encode, receive, send

_WATCH_S = 0.05
"""Time between two looks at a program's folder."""
_GRACE_S = 0.2
"""A candidate that closed its pipe gets this long to end by itself, so that its exit status tells
why.
"""
_MAX_FILES = 1000
_READ_BYTES = 1 << 16


def main() -> None:
    """Serve jobs until the other side closes the pipe. Arguments: the level (`best` for the
    strongest that holds) and the folder.
    """
    asked, folder = sys.argv[1], Path(sys.argv[2])
    control, report = channel()
    level = best_level(folder) if asked == "best" else asked
    if level not in LEVELS or (level != "none" and not holds(level, folder)):
        level = ""
    send(report, encode({"level": level}))
    isolation = Isolation(level or "none", folder)
    load_modules(level)
    os.chdir(folder)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(ClosedError):
        while True:
            job = decode(receive(control))
            answer = ProgramRun(control, report, isolation, folder, job).result()
            _empty(folder)
            send(report, encode(answer))
    with contextlib.suppress(OSError):
        os.rmdir(folder)


@dataclass
class _Ended:
    """How a process ended: wait status and CPU seconds."""

    status: int
    cpu_s: float


@dataclass
class ProgramRun:
    """One job, from fork to kill.

    Attributes:
        control: Where the tests are read.
        report: Closed in the children.
        isolation: What the children enter.
        folder: Where the candidate may write.
        job: `code`, `limits`, `together`.
    """

    control: int
    report: int
    isolation: Isolation
    folder: Path
    job: JsonDict
    output: bytearray = field(default_factory=bytearray)
    printed_bytes: int = 0

    def result(self) -> JsonDict:
        """What happened: `verdict` (empty without one), `stopped` (the limit that ended it, or
        empty), exit status, times and output.
        """
        started_s = time.monotonic()
        limits = ProgramLimits(**self.job["limits"])
        verdict_out, verdict_in = os.pipe()
        output_out, output_in = os.pipe()
        processes = self._start(limits, verdict_in, output_in)
        os.close(verdict_in)
        os.close(output_in)
        try:
            deadline = _Deadline(limits, started_s, processes)
            verdict, stopped = self._watch(limits, deadline, verdict_out, output_out)
            seconds = time.monotonic() - started_s
            if not stopped and verdict.get("status") in {None, "gone"}:
                _wait_for_end(processes[0])
            ended = [_end(process) for process in processes]
            os.set_blocking(output_out, False)
            with contextlib.suppress(BlockingIOError):
                while self._read_output(output_out) and self.printed_bytes <= limits.output_bytes:
                    pass
        finally:
            os.close(verdict_out)
            os.close(output_out)
        return {
            "verdict": verdict,
            "stopped": stopped,
            "exit_status": ended[0].status,
            "seconds": seconds,
            "cpu_s": sum(process.cpu_s for process in ended),
            "output": bytes(self.output),
        }

    def _start(self, limits: ProgramLimits, verdict: int, output: int) -> list[int]:
        """The candidate's process first, then the checker's if it is another one."""
        code = self.job["code"]
        if self.job["together"]:
            return [_fork(lambda: self._together(code, limits, verdict, output))]
        calls_out, calls_in = os.pipe()
        answers_out, answers_in = os.pipe()
        processes = [
            _fork(lambda: self._candidate(code, limits, calls_out, answers_in, output)),
            _fork(lambda: self._checker(limits, answers_out, calls_in, verdict)),
        ]
        for descriptor in (calls_out, calls_in, answers_out, answers_in):
            os.close(descriptor)
        return processes

    def _candidate(
        self, code: str, limits: ProgramLimits, incoming: int, outgoing: int, output: int
    ) -> None:
        os.dup2(output, 1)
        self.isolation.enter(limits, writes=True)
        _close_all_but(incoming, outgoing)
        children.serve(code, incoming, outgoing)

    def _checker(self, limits: ProgramLimits, incoming: int, outgoing: int, verdict: int) -> None:
        tests = decode(receive(self.control))
        self.isolation.enter(limits, writes=False)
        _close_all_but(incoming, outgoing, verdict)
        judged = children.judge(tests, children.ProgramCalls(incoming, outgoing))
        send(verdict, encode({**judged, "nonce": tests["nonce"]}))

    def _together(self, code: str, limits: ProgramLimits, verdict: int, output: int) -> None:
        tests = decode(receive(self.control))
        os.dup2(output, 1)
        self.isolation.enter(limits, writes=True)
        _close_all_but(verdict)
        judged = children.judge_together(code, tests)
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        send(verdict, encode({**judged, "nonce": tests["nonce"]}))

    def _watch(
        self, limits: ProgramLimits, deadline: "_Deadline", verdict: int, output: int
    ) -> tuple[dict[str, str], str]:
        """Return the verdict and the limit that was exceeded; one of them is empty, both if the
        judging process ended without a verdict that can be read.

        Args:
            verdict, output: File descriptors to read them from.

        Raises:
            ClosedError: the process that asked for the verdict is gone.
        """
        poll = select.poll()
        poll.register(verdict, select.POLLIN)
        poll.register(output, select.POLLIN)
        poll.register(self.control, 0)  # to be told that its other end is closed
        next_look_s = time.monotonic() + _WATCH_S
        while (left_s := deadline.left_s()) > 0:
            ready = {descriptor for descriptor, _ in poll.poll(min(left_s, _WATCH_S) * 1000)}
            if self.control in ready:
                raise ClosedError
            if output in ready:
                if not self._read_output(output):
                    poll.unregister(output)
                if self.printed_bytes > limits.output_bytes:
                    return {}, "output"
            if verdict in ready:
                try:
                    return decode(receive(verdict, time.monotonic() + left_s)), ""
                except (ClosedError, ValueError):
                    return {}, ""
                except TimeoutError:
                    break
            if time.monotonic() > next_look_s:
                next_look_s = time.monotonic() + _WATCH_S
                if _is_overfull(self.folder, limits.folder_bytes):
                    return {}, "folder"
        return {}, deadline.passed

    def _read_output(self, descriptor: int) -> int:
        data = os.read(descriptor, _READ_BYTES)
        self.printed_bytes += len(data)
        self.output += data[: max(0, _READ_BYTES - len(self.output))]
        return len(data)


class _Deadline:
    """When a program's time is over. The time that it was ready to run while others ran is not its
    own: where the system counts it, it is added, up to a limit.

    Attributes:
        passed: What has passed when nothing is left: "time", or "overload" at that limit.
    """

    def __init__(self, limits: ProgramLimits, started_s: float, processes: list[int]) -> None:
        self._processes = processes
        self._own_s = started_s + limits.seconds
        self._end_s, self._last_s = self._own_s, started_s + limits.most_seconds
        self.passed = "time"

    def left_s(self) -> float:
        """Seconds until it is time to look again; none: the time is over."""
        now_s = time.monotonic()
        if now_s >= self._end_s:
            self._end_s = self._own_s + sum(map(_waited_for_a_core_s, self._processes))
            if self._end_s > self._last_s:
                self._end_s, self.passed = self._last_s, "overload"
        return self._end_s - now_s


def _fork(body: Callable[[], None]) -> int:
    watcher = os.getpid()
    process = os.fork()
    if process:
        return process
    try:
        end_with(watcher)
        os.setsid()
        body()
    finally:
        os._exit(0)


def _close_all_but(*kept: int) -> None:
    start = 3
    for descriptor in sorted(kept):
        os.closerange(start, descriptor)
        start = descriptor + 1
    os.closerange(start, start + 64)


def _wait_for_end(process: int) -> None:
    until_s = time.monotonic() + _GRACE_S
    while time.monotonic() < until_s and not os.waitid(
        os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT
    ):
        time.sleep(0.001)


def _end(process: int) -> _Ended:
    """Kill a process with its group and say how it ended."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(process, signal.SIGKILL)
    _, status, usage = os.wait4(process, 0)
    return _Ended(status, usage.ru_utime + usage.ru_stime)


def _waited_for_a_core_s(process: int) -> float:
    """How long a process was ready to run while others ran: the second number of
    /proc/PID/schedstat (nanoseconds); 0 where it is missing.
    """
    with (
        contextlib.suppress(OSError, IndexError, ValueError),
        open(f"/proc/{process}/schedstat", encoding="ascii") as file,
    ):
        return int(file.read().split()[1]) / 1e9
    return 0.0


def _is_overfull(folder: Path, limit_bytes: int) -> bool:
    total_bytes = files = 0
    try:
        for entry in _entries(folder):
            files += 1
            with contextlib.suppress(FileNotFoundError):
                total_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
            if total_bytes > limit_bytes or files > _MAX_FILES:
                return True
    except OSError:
        return True
    return False


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything below a folder, however deep, while programs may still change it."""
    waiting = [str(folder)]
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


def _empty(folder: Path) -> None:
    """Remove all that a folder holds: what lies deep is moved up first, so that neither recursion
    nor path length ends it.
    """
    moved = 0
    while entries := list(os.scandir(folder)):
        for entry in entries:
            if not stat.S_ISDIR(entry.stat(follow_symlinks=False).st_mode):
                os.unlink(entry.path)
                continue
            os.chmod(entry.path, stat.S_IRWXU)
            for inner in list(os.scandir(entry.path)):
                moved += 1
                if inner.is_dir(follow_symlinks=False):
                    os.chmod(inner.path, stat.S_IRWXU)
                os.rename(inner.path, folder / f"{os.getpid()}-{time.monotonic_ns()}-{moved}")
            os.rmdir(entry.path)
