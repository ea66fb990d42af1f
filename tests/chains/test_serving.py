"""Serving a run: the command answers in a process of its own; what cannot be served is refused."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError, RunFolderError
from brimful.chains import serving
from brimful.chains.serving import (
    Endpoint,
    model_for_vllm,
    refuse_what_writes_nothing,
    refuse_without,
    vllm_command,
)

RUNS = Path(__file__).resolve().parent.parent / "fixtures" / "old_runs" / "runs"


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.mark.usefixtures("warm_processes")
def test_a_run_goes_on_with_a_text_until_ctrl_c() -> None:
    """The command in a process of its own; it answers as soon as it says so, and prints nothing of
    what it is asked.
    """
    port = free_port()
    run = RUNS / "documents-finished"
    command = [sys.executable, "-m", "brimful", "serve", str(run), "--port", str(port)]
    with subprocess.Popen(
        [*command, "--device", "cpu", "--allow-host", "mine.example"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "BRIMFUL_API_KEY": "secret"},
    ) as server:
        try:
            assert server.stdout is not None
            said = ""
            while f"base_url=http://127.0.0.1:{port}/v1" not in said:
                line = server.stdout.readline()
                assert line, f"the server ended: {said}"
                said += line
            answer = httpx2.post(
                f"http://127.0.0.1:{port}/v1/completions",
                json={"model": run.name, "prompt": "the cat\x1b]0;owned\x07", "max_tokens": 4},
                headers={"Authorization": "Bearer secret", "Host": "mine.example"},
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] <= 4
            assert "secret" not in said
        finally:
            server.send_signal(signal.SIGINT)
            rest = server.stdout.read() if server.stdout else ""
            server.wait()
    assert "Traceback" not in rest
    assert not {"\x1b", "\x07"} & {*said, *rest}
    assert "owned" not in said + rest


def test_without_its_packages_a_server_is_refused_with_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    with refuses(RequestError, names=["extra serve"]):
        refuse_without("brimful")
    with refuses(RequestError, names=["extra vllm"]):
        refuse_without("vllm")


def test_vllm_is_given_the_key_and_the_name() -> None:
    endpoint = Endpoint("127.0.0.1", 8123, key="secret")
    command = vllm_command(Path("/m"), endpoint, "run")
    told = "serve /m --served-model-name run --host 127.0.0.1 --port 8123 --api-key secret"
    assert command[1:] == told.split()


@pytest.mark.parametrize(
    ("endpoint", "notes"),
    [
        (Endpoint("127.0.0.1", 1), 0),
        (Endpoint("10.0.0.1", 1), 1),
        (Endpoint("10.0.0.1", 1, key="secret"), 0),
    ],
)
def test_whoever_can_use_it_is_told(endpoint: Endpoint, notes: int) -> None:
    assert len(endpoint.notes()) == notes
    assert all("--api-key" in note for note in endpoint.notes())


@pytest.mark.parametrize("name", ["labels-finished", "masked-finished"])
def test_what_writes_no_text_is_not_served(name: str, refuses: Refuses) -> None:
    with refuses(RequestError):
        refuse_what_writes_nothing(RUNS / name)


def test_adapters_are_merged_for_vllm() -> None:
    """The base of this run is not on this machine: it is asked for."""
    with pytest.raises(RunFolderError, match="was tuned from is gone"):
        model_for_vllm(RUNS / "examples-finished", lambda text: None)
