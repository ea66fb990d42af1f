"""The page as it is served; its tabs are tested in a browser (tests/browser/test_studio.py)."""

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from brimful.studio import layout, page
from brimful.studio.planners import Planners


@pytest.mark.parametrize(
    "path",
    [
        "gradio_api/upload",
        "gradio_api/file=/etc/passwd",
        "/gradio_api/file=/etc/passwd",
        "file=/etc/passwd",
        "gradio_api/proxy=https://example.org",
        "gradio_api/info",
        "gradio_api/runs",
        "gradio_api/call/first",
        "gradio_api/vibe-edit",
        "monitoring/summary",
        "docs",
        "openapi.json",
        "gradio_api/mcp/",
    ],
)
def test_paths_that_the_page_has_no_use_for_are_closed(path: str) -> None:
    client = TestClient(
        layout.PathGuard(PlainTextResponse("through")), base_url="http://127.0.0.1:7860"
    )

    assert client.get(f"/{path}").status_code == 404
    assert client.get("/config").text == "through"


@pytest.fixture
def made_pages() -> Iterator[list[gradio.Blocks]]:
    """Pages that are not served: Gradio leaves their event loops open, which are closed here."""
    pages: list[gradio.Blocks] = []
    yield pages
    pages.clear()
    gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_page_for_others_has_the_first_tab_alone_and_names_no_folders(
    made_pages: list[gradio.Blocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """How it is served is tested in a browser."""

    def keep(made: gradio.Blocks, **settings: Any) -> tuple[None, str, None]:
        made_pages.append(made)
        return None, f"http://{settings['server_name']}", None

    monkeypatch.setattr(gradio.Blocks, "launch", keep)
    assert layout.launch("0.0.0.0", 7860, None, Planners()) == "http://0.0.0.0"  # noqa: S104
    layout.launch("127.0.0.1", 7860, None, Planners())
    others, own = (each.get_config_file()["components"] for each in made_pages)

    assert [each["props"]["label"] for each in others if each["type"] == "tabitem"] == [
        "Will it fit?"
    ]
    assert not any("folder" in str(each["props"].get("info")) for each in others)
    assert any("folder" in str(each["props"].get("info")) for each in own)


def test_the_command_leaves_runs_out_where_asked(
    said: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[tuple[Any, ...]] = []
    monkeypatch.setattr(page, "serve", lambda *asked: served.append(asked))

    said("studio", "--only-fit", "--host", "10.0.0.1", "--port", "7000")
    said("studio")

    runs = tmp_path / "runs"
    assert served == [("10.0.0.1", 7000, None), ("127.0.0.1", 7860, runs)]
