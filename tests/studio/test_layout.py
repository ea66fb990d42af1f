"""The page as it is served; its tabs are tested in a browser (tests/browser/test_studio.py)."""

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from brimful.studio import layout


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


@pytest.mark.parametrize(
    ("address", "is_local", "status"),
    [
        ("http://127.0.0.1:7860", True, 200),
        ("http://localhost:7860", True, 200),
        ("http://[::1]:7860", True, 200),
        ("http://site.example:7860", True, 403),
        ("http://127.0.0.1.site.example", True, 403),
        ("http://site.example", False, 200),
    ],
)
def test_a_page_of_this_machine_answers_to_no_other_name(
    address: str, is_local: bool, status: int
) -> None:
    client = TestClient(
        layout.PathGuard(PlainTextResponse("through"), is_local=is_local), base_url=address
    )

    assert client.get("/config").status_code == status
