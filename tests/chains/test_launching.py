"""Ranks that brimful starts itself: a killed one is told with the newest checkpoint, and those that
still have a device start again.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from finished_runs import records_of, train
from fixture_types import MakeRecipe, Refuses

from brimful.base.errors import DeviceError, RequestError
from brimful.base.rundir import read_json
from brimful.chains import pipeline
from brimful.chains.launching import count_of, launch


@pytest.mark.parametrize(
    ("devices", "options", "error"),
    [
        ("none", (), RequestError),
        ("0", (), RequestError),
        ("9", (), RequestError),
    ],
    ids=["no-number", "nothing", "more-than-sequences"],
)
def test_a_number_of_devices_that_cannot_be_is_refused(
    tiny: MakeRecipe,
    refuses: Refuses,
    devices: str,
    options: tuple[str, ...],
    error: type[Exception],
) -> None:
    with refuses(error):
        count_of(devices, tiny(*options))


def test_more_ranks_than_cuda_devices_are_refused(
    tiny: MakeRecipe, refuses: Refuses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)

    assert count_of("all", tiny("plan.device=auto")) == 2
    assert count_of("all", tiny()) == 1
    with refuses(DeviceError, names=["2 CUDA devices"]):
        count_of("4", tiny("plan.device=auto"))


def _kill_rank_1_after_a_checkpoint(folder: Path) -> None:
    """Wait for a checkpoint, then end a rank that is not the first."""
    until_s = time.monotonic() + 240
    while time.monotonic() < until_s and not list(folder.glob("checkpoints/step-*[0-9]")):
        time.sleep(0.02)
    for process in psutil.Process().children(recursive=True):
        if "brimful" in process.cmdline() and process.environ().get("RANK") == "1":
            process.send_signal(signal.SIGKILL)


@pytest.mark.usefixtures("warm_processes")
@pytest.mark.filterwarnings("ignore")  # of torch's launcher
@pytest.mark.long
def test_a_killed_rank_ends_the_others_and_those_with_a_device_start_again_and_end_undisturbed(
    tiny: MakeRecipe, recipe_file: Path
) -> None:
    changes = ["batch.sequences=7", "checkpoint.every=3", "training.steps=40"]
    recipe, told = tiny(*changes), []
    folder = pipeline.folder_of(recipe)
    killer = threading.Thread(target=_kill_rank_1_after_a_checkpoint, args=[folder])
    killer.start()

    command = ["train", str(recipe_file), *changes]
    launch(command, 3, folder, told.append, restarts=1, look=lambda: ["0", "2"])
    killer.join()

    (message,) = told
    assert message.startswith(
        "rank 1 was ended by SIGKILL, so the other ranks were ended. The newest"
    )
    assert message.endswith(
        "1 of 3 devices do not answer any more. Starting 2 ranks on the others (0 more restarts"
        " after that)."
    )
    assert read_json(folder / "plan.json")["devices"] == 2
    assert "CUDA_VISIBLE_DEVICES" not in os.environ
    alone = train(tiny(*changes, "run.name=alone"))
    steps = [[each["loss"] for each in records_of(path, "step")] for path in (folder, alone)]
    assert len(steps[0]) == 40
    assert steps[0] == pytest.approx(steps[1], rel=1e-4)


@pytest.mark.long
def test_ranks_end_with_a_launcher_that_is_killed(tiny: MakeRecipe, recipe_file: Path) -> None:
    journal = pipeline.folder_of(tiny()) / "metrics.jsonl"
    command = [sys.executable, "-m", "brimful", "train", str(recipe_file), "training.steps=100000"]
    launcher = psutil.Popen([*command, "--devices", "2"], stdout=subprocess.DEVNULL)
    until_s = time.monotonic() + 240
    while launcher.poll() is None and not journal.exists() and time.monotonic() < until_s:
        time.sleep(0.1)
    started = [each for each in launcher.children() if "RANK" in each.environ()]
    launcher.kill()
    launcher.wait()
    assert len(started) == 2
    assert psutil.wait_procs(started, timeout=60)[1] == []
