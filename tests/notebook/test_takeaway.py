"""A run brought home: a drive, a zip file, the hub (a local one)."""

import json
import os
import shutil
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError, RunFolderError
from brimful.notebook import takeaway


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    for name in (
        "report.html",
        "model/config.json",
        "model/model.safetensors",
        "checkpoints/step-1/model.safetensors",
        "tensorboard/events",
        "writer.lock",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def test_the_zip_file_holds_the_run_without_its_checkpoints(
    run_folder: Path, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_folder.parent)
    path = takeaway.download(run_folder)

    with zipfile.ZipFile(path) as archive:
        assert set(archive.namelist()) == {
            "tiny/report.html",
            "tiny/model/config.json",
            "tiny/model/model.safetensors",
        }
        assert archive.read("tiny/report.html") == b"report.html"
    assert '<a href="tiny.zip" download>tiny.zip</a>' in shown.html
    assert [entry.name for entry in run_folder.parent.iterdir() if entry.name.startswith(".")] == []


def test_the_zip_file_holds_the_model_once_and_a_run_however_it_is_called(run_folder: Path) -> None:
    for name in ("export/model.safetensors", "merged/model.safetensors"):
        (run_folder / name).parent.mkdir()
        (run_folder / name).write_text(name)
    study = run_folder.parent / "study"
    study.mkdir()
    run_folder.rename(study / "merged")

    with zipfile.ZipFile(takeaway.packed(study)) as archive:
        assert set(archive.namelist()) == {
            f"study/merged/{name}"
            for name in ("report.html", "model/config.json", "model/model.safetensors")
        }


def test_a_folder_of_someone_else_puts_no_file_from_outside_into_the_zip_and_no_html_into_the_cell(
    run_folder: Path, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_folder.parent)
    (run_folder.parent / "secret").write_text("secret")
    (run_folder / "notes").symlink_to(run_folder.parent / "secret")
    (run_folder / "more").symlink_to(run_folder.parent, target_is_directory=True)
    os.mkfifo(run_folder / "pipe")
    odd = run_folder.rename(run_folder.parent / '"><img src=x onerror=alert(1)>')

    with zipfile.ZipFile(takeaway.download(odd)) as archive:
        names = {name.removeprefix(f"{odd.name}/") for name in archive.namelist()}
    assert names == {"report.html", "model/config.json", "model/model.safetensors"}
    assert "<img" not in shown.html
    monkeypatch.setattr(takeaway, "run_command", lambda *_: "")
    monkeypatch.setattr(takeaway, "send", lambda *_, **__: 'https://hub/"><img src=x>')
    takeaway.push(odd, "you/tiny")
    assert len(shown.outputs) == 2
    assert "<img" not in shown.html


def test_what_a_run_removes_while_it_is_zipped_is_left_out(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = zipfile.ZipFile.write

    def write_late(archive: zipfile.ZipFile, file: Path, *told: Any) -> None:
        if file.name == "config.json":
            file.unlink()
        write(archive, file, *told)

    monkeypatch.setattr(zipfile.ZipFile, "write", write_late)
    with zipfile.ZipFile(takeaway.packed(run_folder)) as archive:
        assert set(archive.namelist()) == {"tiny/report.html", "tiny/model/model.safetensors"}


def test_colab_sends_the_file_to_the_browser(
    run_folder: Path, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    files = ModuleType("google.colab.files")
    files.download = sent.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab.files", files)
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    path = takeaway.download(run_folder)

    assert (sent, shown.outputs) == ([str(path)], [])


def test_a_zip_file_that_cannot_be_written_leaves_nothing(
    run_folder: Path, shown: Any, refuses: Refuses
) -> None:
    (run_folder.parent / "tiny.zip").mkdir()
    with refuses(RunFolderError):
        takeaway.download(run_folder)
    assert [
        entry.name for entry in run_folder.parent.iterdir() if entry.name.endswith(".tmp")
    ] == []


def test_drive_is_mounted_in_this_process_where_it_is_colab_and_nowhere_else(
    tmp_path: Path, shown: Any, monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    assert takeaway.drive() is None
    mounted: list[str] = []
    drive = ModuleType("google.colab.drive")
    drive.mount = mounted.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab.drive", drive)
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.setattr(takeaway, "DRIVE", tmp_path / "drive")

    assert takeaway.drive() == tmp_path / "drive" / "MyDrive" / "brimful"
    assert mounted == [str(tmp_path / "drive")]
    assert (tmp_path / "drive" / "MyDrive" / "brimful").is_dir()

    def declined(place: str) -> None:
        raise ValueError("mount failed")

    drive.mount = declined  # type: ignore[attr-defined]
    with refuses(RequestError):
        takeaway.drive()


class _Hub(BaseHTTPRequestHandler):
    """The part of the hub's API that an upload of small files uses."""

    asked: ClassVar[list[tuple[str, str]]]
    refuses = False

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append((self.path, body))
        if self.refuses:
            self._answer(401, {"error": "Invalid username or password."})
        elif self.path == "/api/repos/create":
            self._answer(200, {"url": f"{self.server.server_name}/you/tiny", "name": "you/tiny"})  # type: ignore[attr-defined]
        elif self.path.startswith("/api/models/you/tiny/preupload/"):
            files = json.loads(body)["files"]
            self._answer(
                200,
                {
                    "files": [
                        {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                        for file in files
                    ]
                },
            )
        else:
            self._answer(
                200,
                {
                    "commitUrl": f"http://{self.headers['Host']}/you/tiny/commit/1",
                    "commitOid": "1",
                    "success": True,
                },
            )

    def do_GET(self) -> None:
        self._answer(200, {"id": "you/tiny", "sha": "1", "siblings": []})

    def _answer(self, status: int, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Hub]]:
    """A hub on this machine, with a token that nobody knows elsewhere."""

    class Hub(_Hub):
        asked: ClassVar[list[tuple[str, str]]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        from huggingface_hub import HfApi, constants

        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(
            "huggingface_hub.HfApi", lambda: HfApi(endpoint=address, token="hf_test")
        )
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield Hub
        server.shutdown()
        thread.join()


def test_only_the_exported_model_is_sent_and_into_a_private_repository(
    run_folder: Path, hub: type[_Hub], shown: Any
) -> None:
    (run_folder / "model" / "model.safetensors").rename(run_folder / "model" / "tokenizer.json")
    (run_folder / "model").rename(run_folder / "export")
    address = takeaway.push(run_folder, "you/tiny")

    asked = dict(hub.asked)
    created = json.loads(asked["/api/repos/create"])
    assert created == {"name": "tiny", "organization": "you", "visibility": "private"}
    (commit,) = [
        body for path, body in hub.asked if path.startswith("/api/models/you/tiny/commit/")
    ]
    sent = [json.loads(line)["value"] for line in commit.splitlines()]
    assert {entry["path"] for entry in sent if "path" in entry} == {"config.json", "tokenizer.json"}
    assert "you/tiny" in address
    assert address in shown.html


def test_an_export_that_is_older_than_the_model_is_not_sent(
    run_folder: Path, hub: type[_Hub], shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    export = run_folder / "export"
    shutil.copytree(run_folder / "model", export)
    asked: list[list[str]] = []

    def ask(words: list[str]) -> str:
        asked.append(words)
        Path(words[-1]).mkdir()
        (Path(words[-1]) / "new.json").write_text("{}")
        return ""

    monkeypatch.setattr(takeaway, "run_command", ask)
    (export / "model.safetensors").rename(export / "old.json")
    takeaway.push(run_folder, "you/tiny")
    assert asked == [], "an export of this model is sent as it is"

    later_ns = time.time_ns() + 10**9
    os.utime(run_folder / "model" / "config.json", ns=(later_ns, later_ns))
    hub.asked.clear()
    takeaway.push(run_folder, "you/tiny")
    (words,) = asked
    assert words[:3] == ["export", str(run_folder), "--to"]
    (commit,) = [body for path, body in hub.asked if "/commit/" in path]
    assert {
        entry["path"]
        for line in commit.splitlines()
        if "path" in (entry := json.loads(line)["value"])
    } == {"new.json"}
    assert (export / "old.json").exists(), "nobody's export is replaced"
    assert [path.name for path in run_folder.iterdir() if path.name.startswith(".export")] == []


@pytest.mark.parametrize("answer", ["null", "[]", "a text"])
def test_a_hub_that_answers_with_something_else_is_one_message(
    run_folder: Path,
    hub: type[_Hub],
    shown: Any,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
) -> None:
    sent = _Hub._answer
    monkeypatch.setattr(hub, "_answer", lambda self, *_: sent(self, 200, answer))
    (run_folder / "model").rename(run_folder / "export")
    with pytest.raises(RequestError, match="the hub did not take you/tiny"):
        takeaway.push(run_folder, "you/tiny")


def test_a_hub_that_refuses_says_how_to_log_in(
    run_folder: Path, hub: type[_Hub], shown: Any
) -> None:
    hub.refuses = True
    (run_folder / "model").rename(run_folder / "export")
    with pytest.raises(
        RequestError, match=r"the hub did not take you/tiny: .*Log in with a token that may write"
    ):
        takeaway.push(run_folder, "you/tiny")
    with pytest.raises(
        RequestError, match=r"push to 'tiny': write your account and a name, as in you/tiny"
    ):
        takeaway.push(run_folder, "tiny")
    assert shown.outputs == []
