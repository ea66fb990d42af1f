"""Runs the trials of a machine one after another, as long as there is time, and keeps each outcome
as it ends.
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brimful.base.console import Say
from brimful.base.errors import BrimfulError, RequestError
from brimful.base.text import reason_of
from brimful.base.units import format_duration
from brimful.hardware.device import Device
from brimful.prove.bases import TooLarge
from brimful.prove.material import write_material
from brimful.prove.page import write_page
from brimful.prove.record import FAILED, FILE_NAME, SKIPPED, Outcome, ProofRecord, machine_of
from brimful.prove.sweep import CHOICE
from brimful.prove.trials import BASES, Trial
from brimful.prove.workplace import (
    LONGEST_S,
    RUNS,
    Refused,
    TrialFailed,
    Workplace,
    device_choice,
)
from brimful.runs.files import CHECKPOINTS_FOLDER, MODEL_FOLDER


@dataclass(frozen=True)
class Proof:
    """What a proof found so far.

    Attributes:
        page: Page to open in a browser.
        remaining: Trials that the time did not reach.
    """

    page: Path
    record: ProofRecord
    remaining: tuple[Trial, ...]

    @property
    def failed(self) -> list[str]:
        """The names of trials that did not hold."""
        return [name for name, each in self.record.outcomes.items() if each.status == FAILED]


def prove(
    folder: Path,
    device: Device,
    trials: Sequence[Trial],
    limit_s: float,
    say: Say,
    longest_s: float = LONGEST_S,
) -> Proof:
    """Try what a folder's record does not hold yet, and what failed before; write record and page
    after each.

    Args:
        folder: Made, or continued.
        limit_s: Seconds after which no further trial begins.
        longest_s: Seconds after which a command of a trial is ended.

    Raises:
        RequestError: the folder holds something else, or the record of another machine.
        RunFolderError: its record is damaged.
    """
    _refuse_other_content(folder)
    record = ProofRecord(folder, machine_of(device))
    place = Workplace(folder, device_choice(device), longest_s)
    write_material(folder)
    record.write()
    ends_at = time.monotonic() + limit_s
    waiting = [each for each in trials if _is_open(record.outcomes.get(each.name))]
    if len(waiting) < len(trials):
        say(f"{len(trials) - len(waiting)} of {len(trials)} are in {folder} already")
    while waiting and time.monotonic() < ends_at:
        trial = waiting.pop(0)
        _forget(place, trial.name)
        say(f"{len(trials) - len(waiting)} of {len(trials)}: {trial.title} ...")
        outcome = _outcome_of(trial, place)
        _return_disk(place, trial.name)
        record.add(trial.name, outcome)
        write_page(folder, record, trials)
        say(f"  {outcome.status}: {outcome.what} ({format_duration(outcome.seconds)})")
    return Proof(write_page(folder, record, trials), record, tuple(waiting))


def _refuse_other_content(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise RequestError(f"{folder} is no folder. Name one that is empty or does not exist.")
    is_ours = (folder / FILE_NAME).exists() or (folder / "recipes").is_dir()
    if folder.exists() and any(folder.iterdir()) and not is_ours:
        raise RequestError(
            f"{folder} holds something other than a proof. Name a folder that is empty or does not"
            " exist."
        )


def _is_open(outcome: Outcome | None) -> bool:
    return outcome is None or outcome.status == FAILED


def _forget(place: Workplace, name: str) -> None:
    """Remove what an earlier try of a trial left."""
    for path in (
        place.runs / name,
        place.runs / f"{name}-killed",
        place.runs / f"{name}-beyond",
        *place.runs.glob(f"{name}{CHOICE}*"),
        place.exported(name),
    ):
        shutil.rmtree(path, ignore_errors=True)
    place.output_of(name).unlink(missing_ok=True)


def _return_disk(place: Workplace, name: str) -> None:
    """Remove checkpoints of a trial's runs and, but for those that others start from, models."""
    for run in place.runs.glob(f"{name}*"):
        shutil.rmtree(run / CHECKPOINTS_FOLDER, ignore_errors=True)
        if f"{RUNS}/{run.name}/{MODEL_FOLDER}" not in BASES:
            shutil.rmtree(run / MODEL_FOLDER, ignore_errors=True)
    shutil.rmtree(place.exported(name), ignore_errors=True)


def _outcome_of(trial: Trial, place: Workplace) -> Outcome:
    """Run a trial. Whatever ends it early is its outcome: the others are tried all the same."""
    started = time.monotonic()
    try:
        outcome = trial.run(place)
    except (TooLarge, Refused) as error:
        outcome = Outcome(status=SKIPPED, what=reason_of(error))
    except TrialFailed as error:
        outcome = replace(error.outcome, status=FAILED, what=reason_of(error))
    except (BrimfulError, OSError) as error:
        outcome = Outcome(status=FAILED, what=reason_of(error))
    return replace(outcome, seconds=time.monotonic() - started)
