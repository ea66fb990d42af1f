"""What was tried on a machine and what came of it, in one file that grows as trials end: a proof
that is cut off loses the trial under way, no more.
"""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from brimful.base.errors import RequestError, RunFolderError
from brimful.base.libraries import installed_version
from brimful.base.rundir import read_json, write_json_atomically
from brimful.base.text import reason_of
from brimful.hardware.device import Device
from brimful.report.judgement import Judgement, judge
from brimful.runs.parsing import parse

FILE_NAME = "prove.json"
HELD, FAILED, SKIPPED = "held", "failed", "skipped"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A prediction beside its measurement, in the unit that ends `key`."""

    key: str
    predicted: float
    low: float
    high: float
    measured: float

    @property
    def judgement(self) -> Judgement:
        """How good the prediction was."""
        return judge(self.predicted, (self.low, self.high), self.measured)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a trial.

    Attributes:
        status: HELD, FAILED or SKIPPED.
        what: Sentence that says what held, or what did not and where to look, or why it was not
            tried.
        seconds: How long it took.
        measured: Predictions that were met by a measurement.
        facts: Further values, such as the micro-batch.
    """

    status: str = SKIPPED
    what: str = ""
    seconds: float = 0.0
    measured: tuple[Measured, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


def machine_of(device: Device) -> dict[str, str]:
    """Return what a record is about: outcomes of another device or version are not added to it."""
    return {
        "device": device.name,
        "brimful": installed_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


class ProofRecord:
    """The outcomes so far, by the names of their trials, in the order in which they ended.

    Raises:
        RequestError: the folder holds the record of another device or of other versions.
        RunFolderError: its file is damaged.
    """

    def __init__(self, folder: Path, machine: Mapping[str, str]) -> None:
        self._path = folder / FILE_NAME
        self.machine = dict(machine)
        self.outcomes: dict[str, Outcome] = {}
        if self._path.exists():
            self._read()

    def _read(self) -> None:
        try:
            values = read_json(self._path)
            found, outcomes = values["machine"], values["outcomes"]
            self.outcomes = {name: parse(Outcome, each) for name, each in outcomes.items()}
        except (RunFolderError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(
                f"{self._path} is damaged: {reason_of(error)}. Delete it to begin anew; the runs"
                " beside it are made again."
            ) from error
        changed = [
            f"{name} {found.get(name)}, here {value}"
            for name, value in self.machine.items()
            if found.get(name) != value
        ]
        if changed:
            raise RequestError(
                f"{self._path} is the record of another machine or version: {'; '.join(changed)}."
                " Name another folder."
            )

    def add(self, name: str, outcome: Outcome) -> None:
        """Keep an outcome, durably; an earlier one of that name is replaced."""
        self.outcomes.pop(name, None)
        self.outcomes[name] = outcome
        self.write()

    def write(self) -> None:
        """Write what is known, durably: the folder is that of a proof from then on."""
        outcomes = {name: asdict(each) for name, each in self.outcomes.items()}
        write_json_atomically(self._path, {"machine": self.machine, "outcomes": outcomes})
