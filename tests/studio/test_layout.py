"""The page as it is served; its tabs are tested in a browser (tests/browser/test_studio.py)."""

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from brimful.studio import layout


@pytest.mark.parametrize("path", ["upload", "file=/etc/passwd", "proxy=https://example.org", "info", "openapi.json", "runs"])
def test_paths_that_the_page_has_no_use_for_are_closed(path: str) -> None:
    client = TestClient(layout.Guard(PlainTextResponse("through")))

    assert client.get(f"/gradio_api/{path}").status_code == 404
    assert client.get("/config").text == "through"
