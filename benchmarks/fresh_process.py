"""The command in a process of its own, with folders of its own: what it said, and what it took."""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Finished:
    """A process that has ended.

    Attributes:
        code: Its exit code, or the signal's number with a minus.
        cpu_s: Of all its threads and processes.
        memory_bytes: The most that it had resident; not less than this process has.
    """

    code: int
    said: str
    errors: str
    cpu_s: float
    wall_s: float
    memory_bytes: int


def limits_of(cpu_limit_s: int) -> tuple[int, int]:
    """Limits of RLIMIT_CPU that end a process with SIGXCPU; at the hard one the kernel sends
    SIGKILL, as it does where memory runs out.
    """
    return cpu_limit_s, cpu_limit_s + 2


def brimful(words: Sequence[str], folder: Path, cpu_limit_s: int | None = None) -> Finished:
    """Run the command, with cache and runs in a folder and without a network."""
    kept = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    folders = {"BRIMFUL_CACHE": str(folder / "cache"), "BRIMFUL_RUNS": str(folder / "runs")}
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        start_s = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "brimful", *words],
            env=kept | folders | {"HF_HUB_OFFLINE": "1"},
            stdout=said,
            stderr=errors,
        )
        if cpu_limit_s is not None:
            resource.prlimit(process.pid, resource.RLIMIT_CPU, limits_of(cpu_limit_s))
        _, status, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - start_s
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        errors.seek(0)
        return Finished(
            process.returncode,
            said.read(),
            errors.read(),
            usage.ru_utime + usage.ru_stime,
            wall_s,
            usage.ru_maxrss * 1024,
        )
