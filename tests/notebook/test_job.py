"""A command as a process of its own: started, found again, stopped, and how it ended."""

import signal
import time
from pathlib import Path

import psutil
import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RunFolderError
from brimful.base.rundir import read_json, write_json_atomically
from brimful.notebook.job import CommandFailed, Job, run_command

PATIENCE_S = 120.0


def _ended(job: Job) -> Job:
    until = time.monotonic() + PATIENCE_S
    while job.process() is not None:
        assert time.monotonic() < until, job.log.read_text()
        time.sleep(0.02)
    return job


def test_a_process_is_found_by_whoever_asks_and_tells_its_end(tmp_path: Path) -> None:
    Job(tmp_path / "job").start(["recipes"])
    found = Job(tmp_path / "job")

    process = found.process()
    assert process is not None
    assert process.pid == read_json(tmp_path / "job" / "process.json")["pid"]
    assert found.arguments == ["recipes"]
    assert _ended(found).result().exit_code == 0
    assert "quickstart" in found.log.read_text()
    assert found.log_lines(1)[0].strip()


def test_a_command_that_is_refused_leaves_its_one_message(tmp_path: Path) -> None:
    job = Job(tmp_path / "job")
    job.start(["recipes", "show", "quikstart"])
    result = _ended(job).result()

    assert result.exit_code == 2
    assert result.message.startswith("no shipped recipe 'quikstart' - did you mean 'quickstart'?")


def test_a_killed_process_has_no_exit_code(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    job = Job(tmp_path / "job")
    job.start(["recipes"])
    process = job.process()
    assert process is not None
    process.send_signal(signal.SIGSTOP)  # before it can end
    process.kill()

    result = _ended(job).result()
    assert result.exit_code is None
    assert result.message == snapshot
    job.stop()  # nobody is there any more


def test_another_process_with_the_same_number_is_not_taken_for_it(tmp_path: Path) -> None:
    me = psutil.Process()
    for started, found in ((me.create_time(), True), (me.create_time() - 100, False)):
        write_json_atomically(
            tmp_path / "process.json", {"pid": me.pid, "process_started": started, "words": []}
        )
        assert (Job(tmp_path).process() is not None) is found


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "file").write_text("")
    with refuses(RunFolderError, names=["run.folder=PATH"]):
        Job(tmp_path / "file" / "job").start(["recipes"])


def test_asking_gives_the_output_or_the_message(tmp_path: Path) -> None:
    assert "name: quickstart" in run_command(["recipes", "show", "quickstart"])
    with pytest.raises(CommandFailed, match=r"^no shipped recipe 'quikstart'"):
        run_command(["recipes", "show", "quikstart"])
    with pytest.raises(CommandFailed, match=r"^'no-such-verb' is no verb"):
        run_command(["no-such-verb"])
