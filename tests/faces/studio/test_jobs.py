"""Commands are processes of their own: what they print is kept, and they can be interrupted."""

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.faces.studio import jobs
from brimful.faces.studio.jobs import Jobs, interrupt


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
    # Whoever runs the tests may have told their children to ignore it.
    plain = f"import signal; signal.signal({signal.SIGINT:d}, signal.SIG_DFL); print(1, flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{plain}; input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    interrupt(process.pid)
    process.communicate()

    assert process.returncode == -signal.SIGINT
    with pytest.raises(RequestError, match=f"process {process.pid} cannot be stopped"):
        interrupt(process.pid)


SERVED = """
import signal, socket, sys
from pathlib import Path
from brimful.base.local_server import listen
from brimful.faces.studio.jobs import Jobs

async def app(scope, receive, send):
    sys.executable = sys.argv[2]
    jobs.start("run", [])
    jobs._processes["run"].wait()
    signal.raise_signal(signal.SIGTERM)

jobs = Jobs(Path(sys.argv[1]))
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
listen(app, "127.0.0.1", port, lambda: print(port, flush=True))
"""
"""A studio whose first request starts a command."""


def test_a_command_of_a_studio_in_the_background_can_be_interrupted(tmp_path: Path) -> None:
    """A shell's `nohup brimful studio &` tells it and its children to ignore Ctrl-C."""
    python = tmp_path / "python"
    python.write_text(
        f"#!{sys.executable}\nimport signal\nprint(signal.getsignal(signal.SIGINT))\n"
    )
    python.chmod(0o755)
    words = [sys.executable, "-c", SERVED, str(tmp_path), str(python)]
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        served = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert served.stdout is not None
    port = int(served.stdout.readline())
    with contextlib.suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=30).read()
    served.communicate(timeout=30)

    assert "default_int_handler" in Jobs(tmp_path).printed("run")
