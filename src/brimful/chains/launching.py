"""Starts the ranks of a run on this machine, through torch's elastic launcher, and tells how they
ended if none of them could.
"""

import logging
import os
import signal
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from brimful.base.console import Say
from brimful.base.env import launched_rank, ranks_are_started
from brimful.base.errors import (
    BrimfulError,
    DeviceError,
    RanksParted,
    RequestError,
    StartAgain,
)
from brimful.base.text import plural
from brimful.base.watchdog import EXIT_CODE as HUNG
from brimful.chains.lost_devices import Look
from brimful.planning.spread import refuse_too_many
from brimful.recipe import Recipe
from brimful.runs.files import CHECKPOINTS_FOLDER
from brimful.training.checkpoint import CheckpointStore

WORTH_ANOTHER_START = {HUNG, RanksParted.exit_code, StartAgain.exit_code}
"""Exit codes of a process that hung, lost the others, or has to take smaller passes."""
LOOK_EVERY_S = 0.2


class RankFailed(BrimfulError):
    """A rank ended without being able to say why."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def count_of(devices: str, recipe: Recipe) -> int:
    """Return how many ranks `--devices` asks for: a number, or all CUDA devices of this machine.

    Raises:
        RequestError: not a number, or more than there are sequences.
        DeviceError: more than there are CUDA devices.
    """
    count = number_of(devices, recipe.plan.device)
    refuse_too_many(recipe, count)
    return count


def number_of(devices: str, asked: str = "auto") -> int:
    """Return how many ranks `--devices` asks for on this machine.

    Args:
        asked: The kind of device: as `plan.device`.

    Raises:
        RequestError: not a number; DeviceError: more than there are CUDA devices.
    """
    on_cpu = asked == "cpu" or not torch.cuda.is_available()
    here = 1 if on_cpu else torch.cuda.device_count()
    if devices != "all" and not (devices.isdecimal() and int(devices) > 0):
        raise RequestError(f"--devices {devices}: write a number, at least 1, or all.")
    count = here if devices == "all" else int(devices)
    if count > here and not on_cpu:
        raise DeviceError(
            f"--devices {count}: this machine has {plural(here, 'CUDA device')}. Use"
            f" --devices {here}, or plan.device=cpu for ranks that share the processor."
        )
    return count


def without_devices(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a command as each rank gets them."""
    kept: list[str] = []
    following = iter(arguments)
    for argument in following:
        if argument in {"--devices", "--restarts"}:
            next(following, None)
        elif argument != "--parallel" and not argument.startswith(("--devices=", "--restarts=")):
            kept.append(argument)
    return kept


def refuse_second_launch() -> None:
    """Raise RequestError if a launcher started this process as one of several."""
    if launched_rank() is not None:
        raise RequestError(
            "--devices starts the processes of a run, and this one was started by a launcher"
            " already. Leave --devices out: the launcher says how many there are."
        )


def launch(
    arguments: Sequence[str],
    count: int,
    folder: Path | None,
    say: Say,
    *,
    restarts: int = 0,
    look: Look = lambda: None,
) -> None:
    """Run the command line in `count` ranks until all have ended.

    Args:
        arguments: The arguments of brimful: verb, recipe, options.
        folder: The folder of the run, to name its newest checkpoint; None: nothing is trained.
        say: Prints a line.
        restarts: How often ranks are started again after one died, hung or lost its device.
        look: Says before another start which devices are left.

    Raises:
        RankFailed: a rank was killed, or hung, more often than that.
        SystemExit: a rank ended with an error, which it printed; with its exit code.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed.launcher").setLevel(logging.CRITICAL)
    devices: Sequence[str] | None = None
    for left in range(restarts, -1, -1):
        try:
            with ranks_are_started(devices):
                elastic_launch(_config(count), sys.executable)("-m", "brimful", *arguments)
        except ChildFailedError as error:
            rank, code = _cause(error.failures)
            devices = look() if left else None
            lost = 0 if devices is None else count - len(devices)
            if code > 0 and code not in WORTH_ANOTHER_START and not lost:
                raise SystemExit(code) from None
            told = f"{_ending(rank, code)}, so the other ranks were ended."
            if folder is not None:
                told = f"{told} {_kept(folder)}"
            if not left or lost == count:
                raise RankFailed(
                    f"{told} {_remedy(folder)}", 128 - code if code < 0 else code
                ) from None
            count -= lost
            say(f"{told} {_starting(count, lost)} ({left - 1} more restarts after that).")
        except SignalException as stop:
            raise SystemExit(128 + stop.sigval) from None
        else:
            return


def _config(count: int) -> LaunchConfig:
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=LOOK_EVERY_S,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
    )


def _starting(count: int, lost: int) -> str:
    if not lost:
        return f"Starting all {count} ranks again"
    return (
        f"{lost} of {count + lost} devices do not answer any more. Starting"
        f" {plural(count, 'rank')} on the others"
    )


def _cause(failures: Mapping[int, ProcessFailure]) -> tuple[int, int]:
    """Return rank and exit code of the process that failed first; of one that was killed minus the
    signal's number. Those that only lost it, or were ended because of it, come last.
    """
    followed = {RanksParted.exit_code, -signal.SIGTERM}
    rank = min(failures, key=lambda each: (failures[each].exitcode in followed, each))
    return rank, failures[rank].exitcode


def _ending(rank: int, code: int) -> str:
    if code == HUNG:
        return f"rank {rank} hung or waited for one that did"
    if code == RanksParted.exit_code:
        return f"rank {rank} lost the connection to the others"
    if code == StartAgain.exit_code:
        return f"rank {rank} ran out of memory"
    if code > 0:
        return f"rank {rank} ended with an error"
    return f"rank {rank} was ended by {signal.Signals(-code).name}"


def _remedy(folder: Path | None) -> str:
    if folder is None:
        return "Run the same command again."
    return f"Run the same command to continue{' from there' * bool(_newest(folder))}."


def _newest(folder: Path) -> int | None:
    steps = CheckpointStore(folder / CHECKPOINTS_FOLDER, keep=1).steps()
    return steps[-1] if steps else None


def _kept(folder: Path) -> str:
    step = _newest(folder)
    if step is None:
        return "No checkpoint was written yet."
    return f"The newest checkpoint is that of step {step}, in {folder / CHECKPOINTS_FOLDER}."
