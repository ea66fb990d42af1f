"""Pushing to the hub: what would be uploaded is shown without a network, and the real client sends
it to a server that speaks the hub's protocol.
"""

import base64
import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import huggingface_hub
import pytest
from fixture_types import Refuses
from huggingface_hub.utils import _http

from brimful.base import time_limit
from brimful.base.errors import RequestError
from brimful.base.types import JsonDict
from brimful.chains.hub_push import export_and_push, require_name
from brimful.generation.export import Exported, export

RUNS = Path(__file__).resolve().parent.parent / "fixtures" / "old_runs" / "runs"


ZEROS = gzip.compress(bytes(1 << 25))


class Hub(BaseHTTPRequestHandler):
    """The hub's calls for small files: make a repository, ask how to send, commit."""

    status = 200
    address = token = ""
    requests: ClassVar[list[tuple[str, bytes]]] = []
    fault = ""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        Hub.requests.append((self.path, body))
        Hub.token = self.headers.get("Authorization", "")
        self._answer(_answer_to(self.path, body))

    def do_GET(self) -> None:
        self._answer({"id": "ada/stories", "sha": "0" * 40, "siblings": []})

    def _answer(self, values: JsonDict) -> None:
        content = json.dumps(values).encode()
        if Hub.fault == "no answer":
            time.sleep(3)
            return
        is_later = Hub.fault.startswith("come again") and self.path.endswith("/preupload/main")
        self.send_response(503 if is_later else Hub.status)
        self.send_header("Content-Type", "application/json")
        if is_later:
            self.send_header("Retry-After", "999999999")
        while Hub.fault == "endless headers":
            self._trickle(b"X: y\r\n")
        if Hub.fault == "unpacked":
            content = ZEROS
            self.send_header("Content-Encoding", "gzip")
        if Hub.fault != "endless body":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(OSError):  # the client has left
            self.wfile.write(content)
        while Hub.fault == "endless body":
            self._trickle(b" ")

    def _trickle(self, content: bytes) -> None:
        try:
            self.wfile.write(content)
            self.wfile.flush()
            time.sleep(0.05)
        except OSError:
            Hub.fault = "the client left"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _answer_to(path: str, body: bytes) -> JsonDict:
    if path.endswith("/preupload/main"):
        names = [each["path"] for each in json.loads(body)["files"]]
        send = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
        return {"files": send}
    if path.endswith("/commit/main"):
        commit = f"{Hub.address}/ada/stories/commit/{'1' * 40}"
        return {"commitUrl": commit, "commitOid": "1" * 40, "success": True}
    return {"url": f"{Hub.address}/ada/stories", "name": "ada/stories", "id": "ada/stories"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Hub.status, Hub.requests, Hub.fault = 200, [], ""
    Hub.address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", Hub.address)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    yield Hub
    server.shutdown()
    server.server_close()


@pytest.fixture
def exported(tmp_path: Path) -> Callable[[], Exported]:
    return lambda: export(RUNS / "documents-finished", tmp_path / "out")


def pushed(exported: Callable[[], Exported], name: str = "ada/stories", **options: Any) -> str:
    said: list[str] = []
    export_and_push(RUNS / "documents-finished", exported, name, said.append, **options)
    return "\n".join(said)


def test_a_dry_run_shows_files_with_sizes_and_the_card_and_needs_no_network(
    exported: Callable[[], Exported], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    said = pushed(exported, dry_run=True)
    assert "ada/stories: " in said
    assert "model.safetensors" in said
    assert "MANIFEST.json" not in said
    assert "# stories" in said
    assert "library_name: transformers" in said


def test_the_real_client_makes_the_repository_and_sends_every_file_and_the_card(
    exported: Callable[[], Exported], hub: type[Hub]
) -> None:
    said = pushed(exported, private=True)
    assert "uploaded" in said
    assert f"{hub.address}/ada/stories/commit/1" in said
    assert hub.token == "Bearer hf_test"  # noqa: S105 - of the test's own server
    made = json.loads(hub.requests[0][1])
    assert made["name"] == "stories"
    assert made["organization"] == "ada"
    assert made.get("private") is True or made.get("visibility") == "private"
    path, body = hub.requests[-1]
    assert path == "/api/models/ada/stories/commit/main"
    lines = [json.loads(line) for line in body.splitlines()]
    files = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in lines
        if line["key"] == "file"
    }
    folder = exported().folder
    assert files.keys() == {each.name for each in folder.iterdir()} - {"MANIFEST.json"} | {
        "README.md"
    }
    assert files["config.json"] == (folder / "config.json").read_bytes()
    assert files["README.md"].startswith(b"---\n")


def test_a_token_that_may_not_write_is_told_with_the_next_step(
    exported: Callable[[], Exported], hub: type[Hub]
) -> None:
    hub.status = 403
    with pytest.raises(RequestError, match="hf auth whoami"):
        pushed(exported)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("endless body", "did not end an answer within 16.0 MiB and 500 ms"),
        ("unpacked", "did not end an answer within 16.0 MiB"),
        ("endless headers", r"the hub took longer than 2\.0 s"),
        ("come again", r"the hub took longer than 2\.0 s"),
        ("come again, to a thread", "503 Service Unavailable"),
        ("no answer", "timed out"),
    ],
)
def test_a_hub_that_never_ends_an_answer_is_left(
    fault: str,
    told: str,
    exported: Callable[[], Exported],
    hub: type[Hub],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if fault in {"endless body", "no answer"}:
        monkeypatch.setattr(time_limit, "LONGEST_ANSWER_S", 0.5)
    monkeypatch.setattr(time_limit, "LONGEST_WAIT_S", 2.0 if "longer" in told else 60.0)
    monkeypatch.setattr(time_limit, "SLOWEST_BYTES_PER_S", 1e9)
    hub.fault = fault
    began_s = time.monotonic()
    if "thread" in fault:  # which no signal reaches
        waits: list[float] = []
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=waits.append))
        with ThreadPoolExecutor(1) as threads, pytest.raises(RequestError, match=told):
            threads.submit(pushed, exported).result()
        assert 0 < sum(waits) < 60
        return
    with pytest.raises(RequestError, match=told):
        pushed(exported)
    assert time.monotonic() - began_s < 30


def test_no_network_is_told_and_the_export_is_kept(
    exported: Callable[[], Exported], hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RequestError, match="Check the network"):
        pushed(exported)
    assert exported().is_older


def test_without_a_token_or_offline_nothing_is_written(
    exported: Callable[[], Exported],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    refuses: Refuses,
) -> None:
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with refuses(RequestError, names=["hf auth login", "--dry-run"]):
        pushed(exported)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with refuses(RequestError, names=["HF_HUB_OFFLINE", "--dry-run"]):
        pushed(exported)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["stories", "ada/", "a/b/c", "ada/st ories", "ada/a--b", "-a/b"])
def test_a_name_that_is_none_is_refused(name: str, refuses: Refuses) -> None:
    with refuses(RequestError, names=["USER/NAME"]):
        require_name(name)


def test_adapters_on_a_base_of_this_machine_are_refused(tmp_path: Path, refuses: Refuses) -> None:
    run = RUNS / "examples-finished"
    (tmp_path / "adapter_config.json").write_text("{}")
    made = Exported(tmp_path, 2, "adapters")
    with refuses(RequestError, names=["add --merge"]):
        export_and_push(run, lambda: made, "ada/x", lambda text: None, dry_run=True)
