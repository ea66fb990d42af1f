"""Training goes on without its kernel, is found again by the next one, and stops when its cell is
interrupted: real kernels, a real run.
"""

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty

import psutil
import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from brimful.base.env import runs_folder
from brimful.base.rundir import read_journal, read_json
from brimful.notebook.job import Job

PATIENCE_S = 180.0


def _until(is_so: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < limit, what
        time.sleep(0.05)


class _Notebook:
    """A kernel, as a notebook's front end sees it."""

    def __init__(self) -> None:
        self.manager = KernelManager()
        self.manager.start_kernel()
        self.client: BlockingKernelClient = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE_S)
        self.outputs: dict[str, str] = {}
        """Text by display id: an update replaces what was there."""
        self.errors: list[str] = []

    def run(self, code: str) -> None:
        self.outputs.clear()
        self.errors.clear()
        self.client.execute(
            code, stop_on_error=False
        )  # else what comes right after an error is dropped

    def read(self, is_so: Callable[[], bool], what: str) -> None:
        """Take in messages until something is so."""
        limit = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < limit, f"{what}: {self.outputs} {self.errors}"
            try:
                message = self.client.get_iopub_msg(timeout=0.5)
            except Empty:
                continue
            content = message["content"]
            if message["msg_type"] in {"display_data", "update_display_data"}:
                self.outputs[content["transient"]["display_id"]] = content["data"]["text/plain"]
            elif message["msg_type"] == "error":
                self.errors.append("\n".join(content["traceback"]))

    @property
    def text(self) -> str:
        return "\n".join(self.outputs.values())

    def restart(self) -> None:
        """As the button does: the kernel is interrupted, told of its end, and started anew."""
        self.manager.restart_kernel(now=False)
        self.client.wait_for_ready(timeout=PATIENCE_S)

    def kill(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


@pytest.fixture
def train(recipe_file: Path, contacts: Path) -> Iterator[str]:
    """The cell that trains; whatever it leaves is ended."""
    yield (
        f"import brimful.notebook as nb\nrun = nb.train({str(recipe_file)!r},"
        " 'training.steps=1500', 'evaluation.every=1500')"
    )
    process = Job(runs_folder() / ".notebook" / "tiny").process()
    if process is not None:
        process.kill()


def _interrupt_waits(process: psutil.Process) -> bool:
    """Whether a suspended process will get SIGINT as soon as it goes on; told by Linux alone."""
    path = Path(f"/proc/{process.pid}/status")
    masks = (
        re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", path.read_text(), re.MULTILINE)
        if path.exists()
        else []
    )
    return any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)


def _is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_training_outlives_its_kernel_and_stops_when_its_cell_is_interrupted(train: str) -> None:
    folder, job = runs_folder() / "tiny", Job(runs_folder() / ".notebook" / "tiny")
    notebook = _Notebook()
    try:
        notebook.run(train)
        _until(
            lambda: any(
                record["kind"] == "step" for record in read_journal(folder / "metrics.jsonl")
            ),
            "a first step",
        )
        process = job.process()
        assert process is not None
        process.suspend()  # so that it does not end while kernels come and go

        notebook.restart()
        assert job.process() == process, "a kernel that restarts leaves training alone"
        assert not _interrupt_waits(process), "it is not asked to stop once it goes on, either"
        notebook.run(train)
        notebook.read(
            lambda: "tiny: training step " in notebook.text, "the new kernel shows the run"
        )
        notebook.kill()
        assert job.process() == process, "so does one that is killed"
        assert not _interrupt_waits(process)

        notebook = _Notebook()
        notebook.run(train)
        notebook.read(
            lambda: "tiny: training step " in notebook.text, "the next kernel shows the run"
        )
        assert job.process() == process
        assert len(notebook.outputs) == 1

        notebook.manager.interrupt_kernel()
        notebook.read(
            lambda: "stopping at the next step" in notebook.text, "an interrupt is answered"
        )
        assert _interrupt_waits(process) or not Path("/proc").exists()
        process.resume()
        notebook.read(lambda: bool(notebook.errors), "the cell ends")
        assert notebook.errors[0].startswith("brimful: stopped at step ")
        assert notebook.errors[0].endswith(
            "a checkpoint is saved. Run this cell again to go on from there."
        )
        assert len(notebook.outputs) == 1
        assert "\x1b" not in job.log.read_text(), "kernels ask for colours, logs have none"
        assert read_json(folder / "run.json")["status"] == "stopped"

        _goes_on_after_a_kill(notebook, train, job)
    finally:
        notebook.kill()


def _goes_on_after_a_kill(notebook: _Notebook, train: str, job: Job) -> None:
    """The same cell continues from the checkpoint; where its process is killed it says so."""
    reached = max(
        record["step"]
        for record in read_journal(runs_folder() / "tiny" / "metrics.jsonl")
        if record["kind"] == "step"
    )
    notebook.run(train)
    notebook.read(lambda: "tiny: training step " in notebook.text, "it goes on")
    process = job.process()
    assert process is not None
    process.kill()
    notebook.read(lambda: bool(notebook.errors), "the cell ends")
    assert notebook.errors[0].startswith("brimful: tiny was killed.")
    starts = [
        record
        for record in read_journal(runs_folder() / "tiny" / "metrics.jsonl")
        if record["kind"] == "start"
    ]
    assert [record["resumed"] for record in starts] == [False, True]
    assert starts[1]["step"] == reached
    _until(lambda: _is_gone(process), "no process is left")
