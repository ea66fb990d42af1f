"""Brimful's commands in processes that have torch and transformers loaded already: forked from one
that a test session keeps, which saves five seconds of CPU time for each.

`join` starts that process, for all processes of a test session. Every other process with this folder on its
PYTHONPATH and `BRIMFUL_TEST_WARM` (the path of the server's socket) in its environment calls
`run_if_warm` when it starts (`sitecustomize.py`). If it is to run a command of brimful's, it sends
what it was given (arguments, environment, folder, standard streams) and becomes a stand-in: it
waits for the forked process, passes signals on, and ends as it ended. Killing the stand-in kills
the forked process. Suspending it does not suspend the forked process: a test that does so must
start its processes the usual way.
"""

import array
import contextlib
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

VARIABLE = "BRIMFUL_TEST_WARM"
COMMAND = "from brimful.cli import main; main()"
LIBRARIES = (
    "brimful.cli",
    "brimful.chains.pipeline",
    "brimful.chains.plans",
    "brimful.rehearsal.tracer",
    "peft",
)
"""Loaded before processes are forked."""
READ_AT_IMPORT = ("HF_", "TRANSFORMERS_", "TOKENIZERS_", "TORCH", "OMP_", "MKL_", "PYTHON")
"""How variables begin that Python or a library may read only once."""
READ_LATER = ("TORCHINDUCTOR_CACHE_DIR", "TORCHELASTIC_", "TORCH_NCCL_", "OMP_NUM_THREADS")
"""How variables begin that are read later: torch sets the first in any process that has compiled
something, and reads it whenever it compiles; its launcher sets the others for ranks, which read
them when they meet. `run` passes the number of threads on.
"""
STARTED_WITH = dict(os.environ)
"""What this process was started with: libraries change the environment while they are used."""
JOIN, RUN = b"j", b"r"
"""What a connection is for: its first byte."""
MAX_REQUEST_BYTES = 1 << 20


def changed(environment: Mapping[str, str]) -> set[str]:
    """Variables read at import whose values are not those that this process was started with."""
    return {
        name
        for name in STARTED_WITH.keys() | environment.keys()
        if name.startswith(READ_AT_IMPORT)
        and not name.startswith(READ_LATER)
        and STARTED_WITH.get(name) != environment.get(name)
    }


def join(path: Path, environment: dict[str, str]) -> socket.socket:
    """Start the server unless it runs, and return a connection that keeps it running: the server
    ends when the last of them is closed.

    Args:
        path: Of the server's socket.
        environment: Of the server. Libraries read variables of theirs while they are imported.
    """
    without = {name: value for name, value in environment.items() if name != VARIABLE}
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            command = [sys.executable, "-P", __file__, str(path)]
            streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            subprocess.run(command, env=without, check=True, start_new_session=True, **streams)
            connection.connect(str(path))
        connection.sendall(JOIN)
    return connection


def run_if_warm() -> None:
    """Let the server run this process's command, if it is one of brimful's; does not return then."""
    path = os.environ.get(VARIABLE)
    request = _request(sys.orig_argv) if path else None
    if path and request:
        exit_code = 70
        try:
            exit_code = _stand_in(path, request)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(exit_code)


def _request(command: list[str]) -> dict[str, Any] | None:
    """What a Python process was asked to run; None if that is no command of brimful's."""
    flags, rest = [], command[1:]
    while rest and rest[0] in ("-P", "-u"):
        flags.append(rest.pop(0))
    if len(rest) < 2:
        return None
    (option, program), arguments = rest[:2], rest[2:]
    is_ours = program.partition(".")[0] == "brimful" if option == "-m" else program == COMMAND
    if option not in ("-m", "-c") or not is_ours:
        return None
    asked = {"flags": flags, "option": option, "program": program, "arguments": arguments}
    return asked | {"environment": dict(os.environ), "folder": os.getcwd()}


def _stand_in(path: str, request: dict[str, Any]) -> int:
    """Send a request, pass signals on, and return the exit code; ends by the same signal if the
    process that ran it was ended by one.
    """
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        message = json.dumps(request).encode()
        assert len(message) < MAX_REQUEST_BYTES
        server.sendall(RUN)
        socket.send_fds(server, [len(message).to_bytes(4, "big")], [0, 1, 2])
        server.sendall(message)

        def pass_on(number: int, _frame: FrameType | None) -> None:
            server.sendall(bytes([number]))

        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, pass_on)
        answer = array.array("i", server.recv(4))
    (status,) = answer
    exit_code = os.waitstatus_to_exitcode(status)
    if exit_code < 0:
        if -exit_code in (signal.SIGINT, signal.SIGTERM):
            signal.signal(-exit_code, signal.SIG_DFL)
        os.kill(os.getpid(), -exit_code)
    return exit_code


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, streams, _, _ = socket.recv_fds(connection, 4, 3)
    size, message = int.from_bytes(header, "big"), b""
    while len(message) < size:
        message += connection.recv(size - len(message))
    return json.loads(message), streams


def serve(path: str) -> dict[str, Any] | None:
    """Answer requests while anybody keeps the server running. Returns None then; in a process that
    is forked for a request, returns the request.

    The process that was started ends as soon as requests can be sent; a fork of it answers them.
    """
    for library in LIBRARIES:
        __import__(library)
    gc.collect()
    gc.freeze()  # what all share is not copied by looking for garbage
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a process that ended stays no zombie
    kept_by: set[socket.socket] = set()
    is_new = True
    while kept_by or is_new:
        for ready in select.select([listener, *kept_by], [], [])[0]:
            if ready is not listener:
                kept_by.remove(ready)
                continue
            connection, _ = listener.accept()
            asks = connection.recv(1)
            if asks == RUN and os.fork() == 0:
                return _run_for(connection)
            if asks == JOIN:
                kept_by.add(connection)
                is_new = False
    return None


def _run_for(connection: socket.socket) -> dict[str, Any]:
    """Watch the process that runs a request; returns the request in that process alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, streams = _receive(connection)
    process = os.fork()
    if process == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return request
    for stream in streams:
        os.close(stream)
    ended = os.pidfd_open(process)
    while True:
        readable, _, _ = select.select([connection, ended], [], [])
        if ended in readable:
            _, status = os.waitpid(process, 0)
            with contextlib.suppress(BrokenPipeError):  # the stand-in was killed
                connection.sendall(array.array("i", [status]))
            os._exit(0)
        # Signals to pass on; nothing, if the stand-in was killed.
        for number in connection.recv(16) or [signal.SIGKILL]:
            os.kill(process, number)


def run(request: dict[str, Any]) -> None:
    """Run a request as a fresh Python process would."""
    os.chdir(request["folder"])
    differ = changed(request["environment"])
    assert not differ, f"the server of warm processes was started with other values: {differ}"
    os.environ.clear()
    os.environ.update(request["environment"])
    if "OMP_NUM_THREADS" in os.environ:
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through="-u" in request["flags"])
    sys.orig_argv[1:] = [*request["flags"], request["option"], request["program"]]
    sys.orig_argv.extend(request["arguments"])
    sys.argv[1:] = request["arguments"]
    if "-P" not in request["flags"]:
        sys.path.insert(0, request["folder"])
    if request["option"] == "-m":
        runpy.run_module(request["program"], run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        exec(request["program"], {"__name__": "__main__"})  # noqa: S102 - COMMAND


if __name__ == "__main__":
    asked = serve(sys.argv[1])
    if asked is not None:
        run(asked)
