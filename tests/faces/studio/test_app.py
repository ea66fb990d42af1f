"""The studio's server: which paths there are, who may do what, and that nothing is done for a page
that has left.
"""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
import uvicorn
from fixture_types import Captured
from starlette.testclient import TestClient

from brimful.base.local_server import Guard
from brimful.base.types import JsonDict
from brimful.faces.studio import app
from brimful.faces.studio.app import Studio, offered_files
from brimful.faces.studio.asked import PageRequest
from brimful.faces.studio.library import Library
from brimful.faces.studio.planners import Planners

KEY = "the key"
GUARDED = {"data", "start", "stop", "go-on", "export"}
OPEN = {"plan", "list", "watch", "compare", "begin", "open", "write", "hush"}


def client(runs: Path | None, *, is_local: bool = True) -> TestClient:
    studio = Studio.of(Planners(), runs, KEY, is_local=is_local)
    return TestClient(Guard(studio.app()), base_url="http://127.0.0.1:7860")


def events(text: str) -> list[dict[str, str]]:
    """What an answer tells."""
    assert text.endswith("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in text[:-2].split("\n\n")]


@pytest.mark.parametrize(
    "path",
    [
        "/config",
        "/docs",
        "/openapi.json",
        "/studio.css",
        "/../setup.py",
        "/report/../x",
        "/report/",
        "/act/no",
    ],
)
def test_there_is_nothing_but_what_the_page_uses(tmp_path: Path, path: str) -> None:
    page = client(tmp_path)

    assert page.get(path).status_code in {404, 405}
    assert page.post(path, json={}).status_code in {404, 405}


def test_the_page_runs_its_own_scripts_alone_and_stands_in_no_frame(tmp_path: Path) -> None:
    page = client(tmp_path)
    answer = page.get("/")
    policy = answer.headers["content-security-policy"]

    for rule in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"):
        assert rule in policy
    assert "unsafe-inline" not in policy.partition("style-src")[0]
    assert KEY not in answer.text
    assert "onclick" not in answer.text
    for name in ("page.js", "studio.js"):
        script = page.get(f"/{name}")
        assert script.headers["content-type"].startswith("text/javascript")
        assert KEY not in script.text


def test_what_reads_files_writes_or_starts_asks_for_the_key(tmp_path: Path) -> None:
    page = client(tmp_path)

    for act in sorted(GUARDED):
        for key in ({}, {"x-brimful-key": "another"}, {"x-brimful-key": b"\xe9"}):
            answer = page.post(f"/act/{act}", json={}, headers=key)
            assert answer.status_code == 401, act
            assert "the address that the terminal" in answer.json()["error"]["message"]
    told = events(page.post("/act/stop", json={"run": "no"}, headers={"x-brimful-key": KEY}).text)
    assert "no process of this machine writes" in told[-1]["html"]
    assert not (tmp_path / ".studio").exists()


def test_another_site_and_another_name_are_refused(tmp_path: Path) -> None:
    page = client(tmp_path)

    for headers in ({"origin": "https://site.example"}, {"host": "site.example"}):
        headers |= {"x-brimful-key": KEY}
        assert page.post("/act/start", json={}, headers=headers).status_code == 403
        assert page.get("/", headers=headers).status_code == 403


def test_a_page_for_others_starts_nothing_and_one_without_runs_plans_alone(tmp_path: Path) -> None:
    studios = {
        (is_local, runs is not None): Studio.of(Planners(), runs, KEY, is_local=is_local)
        for is_local in (True, False)
        for runs in (tmp_path, None)
    }

    assert {case: {*studio.acts} for case, studio in studios.items()} == {
        (True, True): OPEN | GUARDED,
        (False, True): OPEN,
        (True, False): {"plan"},
        (False, False): {"plan"},
    }
    assert studios[True, True].guarded == GUARDED
    for is_local in (True, False):
        alone = client(None, is_local=is_local)
        assert alone.get("/report/one").status_code == 404
        shown = alone.get("/").text
        assert "Try it" not in shown
        assert "Start training" not in shown
        assert ("a folder with a config.json" in shown) is is_local
        assert ("Further keys" in shown) is is_local


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{}", "text/plain", 415),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'"' + b"x" * 2**20 + b'"', "application/json", 413),
    ],
)
def test_a_request_is_a_json_object_of_limited_size(
    tmp_path: Path, body: bytes, kind: str, status: int
) -> None:
    answer = client(tmp_path).post("/act/list", content=body, headers={"content-type": kind})

    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_a_report_is_a_page_of_its_own_that_cannot_reach_the_studio(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "recipe.yaml").write_text("name: one\n")
    page = client(tmp_path)
    answer = page.get("/report/one")

    assert "<h1>one" in answer.text
    assert (
        answer.headers["content-security-policy"] == "sandbox allow-scripts; frame-ancestors 'self'"
    )
    for name in ("..%2Fone", "gone", "%2Fetc", ""):
        assert page.get(f"/report/{name}").status_code == 404


def test_an_error_is_told_in_its_tab_and_nothing_more_is_said(
    tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "runs").mkdir()
    told = events(client(tmp_path / "runs").post("/act/open", json={"talker": "<b>"}).text)
    failed = events(client(tmp_path / "runs").post("/act/open", json={"talker": 3}).text)

    assert told[0] == {"slot": "try-problem", "html": ""}
    assert "&lt;b&gt;" in told[-1]["html"]
    assert failed[-1]["slot"] == "try-problem"
    assert capsys.readouterr().err == ""


@contextmanager
def listening(studio: Studio) -> Iterator[int]:
    """The port of a server that has sockets, which a test client has not."""
    server = uvicorn.Server(uvicorn.Config(studio.app(), log_level="error"))
    with socket.create_server(("127.0.0.1", 0)) as heard:
        thread = threading.Thread(target=server.run, args=[[heard]])
        thread.start()
        try:
            yield heard.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def test_what_nobody_waits_for_ends_and_too_much_at_once_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "MOST_STREAMS", 1)
    begun, ended = threading.Event(), threading.Event()

    def wait(asked: PageRequest) -> None:
        begun.set()
        asked.left.wait()
        ended.set()

    studio = Studio({"plan": wait}, frozenset(), Library(tmp_path), KEY, is_local=True)
    headers: JsonDict = {"content-type": "application/json"}
    with listening(studio) as port:
        first, other = (HTTPConnection("127.0.0.1", port) for _ in range(2))
        first.request("POST", "/act/plan", b"{}", headers)
        answer = first.getresponse()
        assert answer.readline().startswith(b"data: ")
        begun.wait()
        other.request("POST", "/act/plan", b"{}", headers)
        assert other.getresponse().status == 503
        other.close()
        answer.close()
        first.close()
        ended.wait()
        begun.clear()
        while not begun.is_set():  # the room is free again
            other.request("POST", "/act/plan", b"{}", headers)
            other.getresponse().readline()
            other.close()


def test_data_files_nearby_are_offered(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.csv", "no.py", "below/c.txt", "below/deep/d.txt", ".hidden.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    found = [str(Path(each).relative_to(tmp_path)) for each in offered_files(tmp_path)]

    assert found == ["a.csv", "b.jsonl", "below/c.txt"]
    assert offered_files(tmp_path / "none") == []
