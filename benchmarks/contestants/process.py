"""A contestant as its comparison sees it: a process that works on request, and its name."""

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

OURS, KEPT = "brimful", ", memory kept"
"""How names of brimful's contestants begin; and how those of others end that get its setting of the
allocator.
"""
_MEMORY_KEPT = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_MAX_": "0"}
"""To glibc what `brimful.hardware.host.keep_freed_memory` asks for."""


def and_memory_kept(names: Sequence[str]) -> list[str]:
    """Each contestant of another library twice: as it comes, and with brimful's setting of the
    allocator.
    """
    return [name + kept for name in names for kept in ("", KEPT)]


def setting(name: str) -> str:
    """The contestant's name without what its environment alone decides."""
    return name.removesuffix(KEPT)


def allocator_variables(name: str) -> dict[str, str]:
    """What a contestant's environment tells the allocator: brimful's is as its commands start;
    others have that, too, and keep freed memory as brimful does by itself, if they are asked to.
    """
    from brimful.base.env import WHOLE_HEAP

    if name.startswith(OURS):
        return dict(WHOLE_HEAP)
    return {**_MEMORY_KEPT, **WHOLE_HEAP} if name.endswith(KEPT) else {}


def fastest(seconds: Mapping[str, Sequence[float]]) -> str:
    """The contestant of another library that takes the fewest seconds in the median; brimful's
    where there is no other.
    """
    others = [name for name in seconds if not name.startswith(OURS)]
    return min(others or seconds, key=lambda name: statistics.median(seconds[name]))


class Contestant:
    """A process that answers requests, one line each, in JSON (`worker.Worker`).

    Args:
        name: Whom it trains as.
        folder: Gets its log and its cache of compiled kernels: nobody reads another's half-written
            files.
        command: Starts it; its first answer says that it is ready.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str]) -> None:
        self.name = name
        own = folder / hashlib.sha1(name.encode()).hexdigest()  # noqa: S324
        self._log = open(own.with_suffix(".log"), "w")  # noqa: SIM115
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(own.with_suffix(".inductor"))}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **allocator_variables(name), **variables},
        )
        self.start = self._answer()

    def ask(self, request: str) -> Any:
        """Return the answer to a request."""
        self._write(request)
        return self._answer()

    def quit(self) -> None:
        """End it."""
        self._write("quit")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()

    def _write(self, request: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} died:\n{Path(self._log.name).read_text()[-3000:]}")
        return json.loads(line)
