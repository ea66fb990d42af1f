"""Contestants of a paired timing: each a process of its own that trains step by step on request, asked in turns."""

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


class Contestant:
    """A process that answers requests, one line each, in JSON.

    Args:
        name: Whom it trains as.
        folder: Gets its log.
        command: Starts it; its first answer says that it is ready.
        environment: Variables beside this process's own.
    """

    def __init__(self, name: str, folder: Path, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._log = open(folder / f"{hashlib.sha1(name.encode()).hexdigest()}.log", "w")  # noqa: SIM115, S324
        variables = {**os.environ, **(environment or {})}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=variables)
        self.start = self._answer()

    def ask(self, request: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        return self._answer()

    def quit(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("quit\n")
        self._process.stdin.flush()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} died:\n{Path(self._log.name).read_text()[-3000:]}")
        return json.loads(line)


def interleaved(contestants: Sequence[Contestant], rounds: int, loads: list[float]) -> Iterator[Contestant]:
    """Every contestant once a round, forwards and backwards in turn; the machine's load goes into `loads` before each round."""
    for number in range(rounds):
        loads.append(os.getloadavg()[0])
        yield from contestants if number % 2 == 0 else reversed(contestants)
