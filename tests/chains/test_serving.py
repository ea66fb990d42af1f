"""Serving a run: a real server answers one chat completion; what cannot be served is refused."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError, RunFolderError
from brimful.chains import serving
from brimful.chains.serving import Endpoint, choose_server, model_to_serve, vllm_command

RUNS = Path(__file__).resolve().parent.parent / "fixtures" / "old_runs" / "runs"
needs_server = pytest.mark.skipif(
    bool(serving._missing("transformers")), reason="needs the extra serve"
)
WITH_TEMPLATE = "{% for each in messages %}{{ each.content }} {% endfor %}"


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@needs_server
def test_a_run_answers_a_chat_and_goes_on_with_a_text(tmp_path: Path) -> None:
    """The command in a process of its own, asked by OpenAI's own client."""
    import openai

    run = tmp_path / "served"
    model = run / "model"
    subprocess.run(["cp", "-r", RUNS / "documents-finished", run], check=True)
    (model / "MANIFEST.json").unlink()
    (run / "run.json").unlink()
    (model / "chat_template.jinja").write_text(WITH_TEMPLATE)
    port = free_port()
    command = [sys.executable, "-m", "brimful", "serve", str(run), "--port", str(port)]
    with subprocess.Popen(
        [*command, "--server", "transformers", "--device", "cpu"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    ) as server:
        try:
            assert server.stdout is not None
            said = ""
            while "Uvicorn running" not in said:
                line = server.stdout.readline()
                assert line, f"the server ended: {said}"
                said += line
            assert f"http://127.0.0.1:{port}/v1" in said
            name = str(run / "export")
            address = f"http://127.0.0.1:{port}/v1"
            asked = [{"role": "user", "content": "the cat"}]
            with openai.OpenAI(base_url=address, api_key="any") as client:
                chat = client.chat.completions.create(model=name, messages=asked, max_tokens=4)
                text = client.completions.create(model=name, prompt="the cat", max_tokens=4)
            assert chat.choices[0].message.role == "assistant"
            assert isinstance(chat.choices[0].message.content, str)
            assert 1 <= chat.usage.completion_tokens <= 4
            assert isinstance(text.choices[0].text, str)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait()


def test_without_its_packages_a_server_is_refused_with_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None)
    with refuses(RequestError, names=["extra serve"]):
        choose_server("auto")
    with refuses(RequestError, names=["extra vllm"]):
        choose_server("vllm")


def test_vllm_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec("json")
    monkeypatch.setattr(serving, "find_spec", lambda name: real)
    assert choose_server("auto") == "vllm"
    assert choose_server("transformers") == "transformers"
    command = vllm_command(Endpoint(Path("/m"), "127.0.0.1", 8123))
    told = "serve /m --served-model-name /m --host 127.0.0.1 --port 8123"
    assert command[1:] == told.split()


@pytest.mark.parametrize("name", ["labels-finished", "masked-finished"])
def test_what_writes_no_text_is_not_served(name: str, refuses: Refuses) -> None:
    with refuses(RequestError):
        model_to_serve(RUNS / name, lambda text: None)


def test_adapters_are_merged_first() -> None:
    """The base of this run is not on this machine: it is asked for."""
    with pytest.raises(RunFolderError, match="was tuned from is gone"):
        model_to_serve(RUNS / "examples-finished", lambda text: None)
