"""Commands are processes of their own: what they print is kept, and they can be interrupted."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.studio import jobs
from brimful.studio.jobs import Jobs, interrupt


@pytest.fixture
def started(tmp_path: Path) -> Jobs:
    """`brimful --version`, as a run called `a b/c`."""
    made = Jobs(tmp_path)
    made.start("a b/c", ["--version"])
    made._processes["a b/c"].wait()
    return made


def test_what_a_command_prints_is_read_back_also_by_another_studio(
    started: Jobs, tmp_path: Path
) -> None:
    assert started.printed("a b/c").startswith("brimful ")
    assert Jobs(tmp_path).printed("a b/c") == started.printed("a b/c")
    assert (started.exit_code("a b/c"), started.is_running("a b/c")) == (0, False)
    assert (started.pid("a b/c"), started.names()) == (None, ["a b/c"])
    assert (started.printed("no"), started.exit_code("no")) == ("", None)
    assert [each.name for each in tmp_path.iterdir()] == [jobs.FOLDER]


def test_a_command_is_not_of_the_studios_terminal(started: Jobs) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started._processes["long"] = process
    try:
        assert os.getsid(process.pid) == os.getsid(0)
        assert started.pid("long") == process.pid
        with pytest.raises(RequestError, match="long is running already"):
            started.start("long", ["--version"])
    finally:
        process.communicate()
    started.start("long", ["studio", "--host", "no.such.host.invalid"])
    assert os.getsid(started._processes["long"].pid) != os.getsid(0)
    assert started._processes["long"].wait() == 2
    assert "no.such.host.invalid" in started.printed("long")


def test_a_run_of_a_name_that_exists_is_refused(tmp_path: Path, refuses: Refuses) -> None:
    (tmp_path / "mine").mkdir()

    with refuses(RequestError, names=["mine"]):
        Jobs(tmp_path).start_run("mine", "name: x")


def test_interrupting_is_ctrl_c(refuses: Refuses) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    interrupt(process.pid)
    process.wait()

    assert process.returncode in {-signal.SIGINT, 1}
    process.communicate()
    with pytest.raises(RequestError, match=f"process {process.pid} cannot be stopped"):
        interrupt(process.pid)
