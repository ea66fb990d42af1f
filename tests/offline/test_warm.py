"""A command in a warm process is seen by whoever started it as one in a process of its own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import warm

from brimful.base.rundir import writer_of

pytestmark = pytest.mark.usefixtures("warm_processes")


def _start(*arguments: str, folder: Path, module: str = "brimful") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-u", "-m", module, *arguments],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_output_exit_code_folder_and_environment_are_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIMFUL_RUNS", "of-my-own")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # as after compiling
    (tmp_path / "wrong.yaml").write_text("name: wrong\nseed: x\n")
    shown = _start("runs", "--json", folder=tmp_path)
    refused = _start("plan", "wrong.yaml", folder=tmp_path)

    out, err = shown.communicate(timeout=600)
    assert (shown.returncode, json.loads(out), err) == (0, [], "")
    out, err = refused.communicate(timeout=600)
    assert (refused.returncode, out) == (2, "")
    assert "wrong.yaml" in err


def _running(recipe_file: Path, runs: Path) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A training that would go on for long, and the process that trains."""
    long = ("training.steps=100000", "evaluation.every=100000")
    stand_in = _start("train", str(recipe_file), *long, folder=runs.parent)
    assert stand_in.stdout is not None
    for line in stand_in.stdout:
        if line.startswith("step "):
            break
    writer = writer_of(runs / "tiny")
    assert writer is not None
    process = psutil.Process(writer.pid)
    assert process.pid != stand_in.pid
    return stand_in, process


def test_an_interrupt_is_passed_on(recipe_file: Path, tmp_path: Path) -> None:
    stand_in, process = _running(recipe_file, tmp_path / "runs")

    stand_in.send_signal(signal.SIGINT)

    _, err = stand_in.communicate(timeout=600)
    assert "a checkpoint is saved" in err
    assert stand_in.returncode == 130
    assert not process.is_running()


def test_who_kills_the_stand_in_kills_the_process(recipe_file: Path, tmp_path: Path) -> None:
    stand_in, process = _running(recipe_file, tmp_path / "runs")

    stand_in.kill()
    stand_in.communicate(timeout=600)
    psutil.wait_procs([process], timeout=600)

    assert not process.is_running()


def test_a_process_that_is_killed_is_reported_as_killed(recipe_file: Path, tmp_path: Path) -> None:
    stand_in, process = _running(recipe_file, tmp_path / "runs")

    process.kill()
    stand_in.communicate(timeout=600)

    assert stand_in.returncode == -signal.SIGKILL


def test_other_programs_are_left_to_python() -> None:
    assert os.environ[warm.VARIABLE]
    code = "import os, sys; print(os.getppid(), 'torch' in sys.modules)"

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout.split() == [str(os.getpid()), "False"]
