"""Variants of a study side by side: each in a process of its own that has one device."""

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

import torch

from brimful.base.console import Say
from brimful.base.env import whole, with_cuda_devices
from brimful.base.errors import Interrupted
from brimful.base.types import Texts
from brimful.chains.launching import LOOK_EVERY_S, WORTH_ANOTHER_START
from brimful.chains.lost_devices import cuda_devices

LEFT_OUT = 3
"""Exit code of a variant that this device cannot train: it does not fit, or has no kernels."""
_TOLD = "brimful: "
"""How the message of an error begins that a command prints."""


@dataclass(frozen=True)
class OneDevice:
    """What one process gets of this machine.

    Attributes:
        name: Name that the user sees.
        environment: The environment of the process.
        cores: It may run on; empty: any.
    """

    name: str
    environment: Texts
    cores: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Failed:
    """A variant that did not end well.

    Attributes:
        exit_code: The exit code of its process; minus the number of the signal that ended it.
        reason: What it told last.
    """

    exit_code: int
    reason: str

    @property
    def is_left_out(self) -> bool:
        """Whether the device cannot train it, which is a result of the study."""
        return self.exit_code == LEFT_OUT


def devices_here(count: int, asked: str) -> list[OneDevice]:
    """Return so many devices of this machine: CUDA devices, or shares of the processor's cores.

    Args:
        count: No more than there are CUDA devices, if these are used.
        asked: The kind of device: as `plan.device`.
    """
    if asked != "cpu" and torch.cuda.is_available():
        return [
            OneDevice(f"cuda:{name}", with_cuda_devices([name])) for name in cuda_devices(count)
        ]
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    shares = [frozenset(cores[number::count] or cores) for number in range(count)]
    return [
        OneDevice(f"share {number} of the processor", whole(), share)
        for number, share in enumerate(shares, start=1)
    ]


@dataclass
class _Process:
    """A variant that runs."""

    name: str
    device: OneDevice
    output: IO[str]
    process: subprocess.Popen[str]


@dataclass
class ParallelVariants:
    """Runs one command for each variant, as many at a time as there are devices.

    Args:
        command: Arguments of brimful, without the variant's name.
        folder: Gets what each process prints.
        devices: One process at a time has each.
        say: Prints a line.
        restarts: How often a variant is started again whose process was killed or hung.
    """

    command: Sequence[str]
    folder: Path
    devices: Sequence[OneDevice]
    say: Say
    restarts: int = 0
    _running: list[_Process] = field(default_factory=list)
    _stopped_by: int = 0

    def run(self, names: Sequence[str]) -> dict[str, Failed]:
        """Run them all; return by name what failed. The others went on meanwhile.

        Raises:
            Interrupted: a signal asked to stop; every variant was stopped, and continues when the
                same command runs again.
        """
        waiting, failed = deque(names), dict[str, Failed]()
        left = dict.fromkeys(names, self.restarts)
        free = deque(self.devices)
        with self._passing_signals_on():
            while (waiting and not self._stopped_by) or self._running:
                while waiting and free and not self._stopped_by:
                    self._start(waiting.popleft(), free.popleft())
                for each in [each for each in self._running if each.process.poll() is not None]:
                    free.append(each.device)
                    failure = self._end(each)
                    if failure is None or self._stopped_by:
                        continue
                    if left[each.name] and _is_worth_another_start(failure):
                        left[each.name] -= 1
                        self.say(f"{each.name} starts again ({left[each.name]} more after that)")
                        waiting.appendleft(each.name)
                    else:
                        failed[each.name] = failure
                time.sleep(LOOK_EVERY_S)
        if self._stopped_by:
            raise Interrupted(
                "stopped, with the variants that were running. Run the same command to continue.",
                self._stopped_by,
            )
        return failed

    def output_of(self, name: str) -> Path:
        """Return the file that holds what a variant's process printed."""
        return self.folder / f"output-{name}.txt"

    def _start(self, name: str, device: OneDevice) -> None:
        output = self.output_of(name).open("w")
        process = subprocess.Popen(  # noqa: S603 - this Python, this package
            [sys.executable, "-m", "brimful", *self.command, "--only", name],
            env=dict(device.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # Ctrl-C reaches it through this process, once
        )
        if device.cores:
            with suppress(OSError):
                os.sched_setaffinity(process.pid, device.cores)
        self._running.append(_Process(name, device, output, process))
        self.say(f"{name} begins on {device.name}; it prints to {self.output_of(name)}")

    def _end(self, ended: _Process) -> Failed | None:
        self._running.remove(ended)
        ended.output.close()
        code = ended.process.returncode
        if code == 0:
            self.say(f"{ended.name} is done")
            return None
        reason = f"its process was ended by {signal.Signals(-code).name}" if code < 0 else ""
        reason = reason or _told_last(self.output_of(ended.name)) or f"it ended with {code}"
        self.say(f"{ended.name} ended: {reason}")
        return Failed(code, reason)

    @contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM stop the variants instead of this process."""

        def stop(number: int, _: FrameType | None) -> None:
            self._stopped_by = number
            for each in self._running:
                each.process.send_signal(signal.SIGINT)

        before = {}
        with suppress(ValueError):  # not in the main thread
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, stop)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for each in self._running:
                each.process.send_signal(signal.SIGINT)


def _is_worth_another_start(failure: Failed) -> bool:
    return failure.exit_code < 0 or failure.exit_code in WORTH_ANOTHER_START


def _told_last(path: Path) -> str:
    """Return the message of the error that a command printed last; else its last line."""
    text = path.read_text(errors="replace").strip()
    _, is_found, message = f"\n{text}".rpartition(f"\n{_TOLD}")
    return message if is_found else text.rpartition("\n")[2]
