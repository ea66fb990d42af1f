"""Where trials run: a folder with their data, recipes, runs and outputs. Every command is a process
of its own, as a user starts it, so that none finds memory or compiled kernels of another.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from brimful.base.env import of_a_plain_process
from brimful.base.errors import BrimfulError
from brimful.hardware.device import Device
from brimful.prove.record import Outcome
from brimful.runs.folder import RunFolder, read_run

RUNS = "runs"
LONGEST_S = 1800.0
"""After which a command is ended and its trial has failed, unless told otherwise."""

REFUSED = 2
"""Exit code of a command that was asked for something that cannot be."""


class TrialFailed(BrimfulError):
    """A trial did not hold, with the reason in a sentence, and what it measured all the same."""

    def __init__(self, reason: str, outcome: Outcome | None = None) -> None:
        super().__init__(reason)
        self.outcome = outcome or Outcome()


class Refused(TrialFailed):
    """A command refused what it was asked for, as where the plan says that memory does not hold it:
    nothing was tried.
    """


def device_choice(device: Device) -> str:
    """Return what a recipe's `plan.device` says for a device of this machine."""
    return device.kind if device.index is None else f"{device.kind}:{device.index}"


@dataclass(frozen=True)
class Workplace:
    """A folder, the device that recipes are run on (`cpu`, `cuda:0` ...), and how long a command
    may take.
    """

    folder: Path
    device: str
    longest_s: float = LONGEST_S

    @property
    def runs(self) -> Path:
        return self.folder / RUNS

    def exported(self, name: str) -> Path:
        """Return the folder that a run's model is exported to."""
        return self.folder / "exported" / name

    def output_of(self, name: str) -> Path:
        """Return the file for what the commands of a trial print; its folder is made."""
        path = self.folder / "output" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def write_recipe(self, name: str, recipe: Mapping[str, Any]) -> Path:
        """Write a recipe whose run has its name, for this device; return its path as commands
        get it, which run in the folder.
        """
        path = Path("recipes", f"{name}.yaml")
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        plan = {"device": self.device, **recipe.get("plan", {})}
        values = {"name": name, **recipe, "plan": plan}
        (self.folder / path).write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path

    def start(self, trial: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `brimful ARGUMENTS`; its output goes to the file of the trial."""
        with self.output_of(trial).open("a", encoding="utf-8") as output:
            output.write(f"$ brimful {' '.join(arguments)}\n")
            output.flush()
            return subprocess.Popen(  # noqa: S603 - this Python, this package
                [sys.executable, "-P", "-m", "brimful", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=of_a_plain_process() | {"BRIMFUL_RUNS": RUNS},
            )

    def run_recipe(self, name: str, recipe: Mapping[str, Any], verb: str = "train") -> RunFolder:
        """Write a recipe, run it to its end, and return its run.

        Raises:
            TrialFailed: the command ended with another exit code than 0, or took too long.
        """
        self.call(name, verb, str(self.write_recipe(name, recipe)), "--yes")
        return self.run_of(name)

    def call(self, trial: str, *arguments: str) -> None:
        """Run `brimful ARGUMENTS` to its end.

        Raises:
            Refused: it ended with exit code 2.
            TrialFailed: it ended with another exit code than 0, or took too long.
        """
        with self.start(trial, *arguments) as process:
            try:
                exit_code = process.wait(self.longest_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise TrialFailed(
                    f"`brimful {arguments[0]}` had not ended after {self.longest_s:.0f} s"
                ) from None
        if exit_code:
            printed = self.output_of(trial).read_text(encoding="utf-8", errors="replace").strip()
            last = printed.splitlines()[-1][:300]
            if exit_code == REFUSED:
                raise Refused(f"`brimful {arguments[0]}` refused: {last.removeprefix('brimful: ')}")
            raise TrialFailed(f"`brimful {arguments[0]}` ended with exit code {exit_code}: {last}")

    def result_of(self, trial: str, words: str, command: Sequence[str]) -> dict[str, Any]:
        """Run `python COMMAND`, which prints JSON last, and return that. Messages go to the output
        of the trial.

        Args:
            trial: Name of the trial.
            words: What a reader calls the program.
            command: Arguments of Python; of the first two a reader sees what is run.

        Raises:
            TrialFailed: it ended with another exit code than 0, or took too long.
        """
        with self.output_of(trial).open("a", encoding="utf-8") as output:
            output.write(f"$ python {' '.join(command[:2])} # {words}\n")
            output.flush()
            try:
                ended = subprocess.run(  # noqa: S603 - this Python, this package
                    [sys.executable, "-P", *command],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    env=of_a_plain_process(),
                    timeout=self.longest_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise TrialFailed(f"{words} had not ended after {self.longest_s:.0f} s") from None
        if ended.returncode:
            raise TrialFailed(f"{words} failed; {self.output_of(trial)} says why")
        result: dict[str, Any] = json.loads(ended.stdout.decode().splitlines()[-1])
        return result

    def run_of(self, name: str) -> RunFolder:
        """Return the run of this name.

        Raises:
            RunFolderError: there is none.
        """
        return read_run(self.runs / name)
