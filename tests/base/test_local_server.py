"""Who may ask a server of this machine: nobody through another site's page, and with a key only who
knows it.
"""

from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from brimful.base.local_server import STATUS_OF_WHO_LEFT, Guard, is_local, json_body

THROUGH = PlainTextResponse("through")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),  # noqa: S104
        ("10.0.0.1", False),
    ],
)
def test_which_addresses_only_this_machine_reaches(host: str, local: bool) -> None:
    assert is_local(host) is local


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:7860", 200),
        ("localhost:7860", 200),
        ("LOCALHOST", 200),
        ("[::1]:7860", 200),
        ("10.0.0.7", 200),
        ("mine.example:80", 200),
        ("site.example:7860", 403),
        ("127.0.0.1.site.example", 403),
        ("localhost.site.example", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
def test_a_server_answers_to_its_own_names_alone(host: str, status: int) -> None:
    """DNS rebinding: a site lets a name of its own point to 127.0.0.1."""
    client = TestClient(Guard(THROUGH, ["Mine.example"]))

    assert client.get("/config", headers={"Host": host}).status_code == status


def test_a_server_for_others_may_answer_to_any_name() -> None:
    client = TestClient(Guard(THROUGH, None))

    assert client.get("/", headers={"Host": "site.example"}).text == "through"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:80", 200),
        ("http://localhost:81", 403),
        ("http://site.example", 403),
        ("http://localhost:80.site.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
@pytest.mark.parametrize("names", [(), None])
def test_pages_of_other_sites_are_refused(
    origin: str, status: int, names: tuple[str, ...] | None
) -> None:
    client = TestClient(Guard(THROUGH, names))
    headers = {"Host": "localhost:80", "Origin": origin}

    assert client.post("/v1/completions", headers=headers).status_code == status


@pytest.mark.parametrize(
    ("given", "status"),
    [(None, 401), ("Bearer wrong", 401), ("secrét", 401), ("Bearer secrét", 200)],
)
def test_a_key_is_asked_for(given: str | None, status: int) -> None:
    client = TestClient(Guard(THROUGH, None, "secrét"))
    headers = {} if given is None else {"Authorization": given.encode()}

    answer = client.get("/", headers=headers)
    assert answer.status_code == status
    assert "secr" not in answer.text


def test_who_leaves_within_a_request_is_no_error_of_the_server() -> None:
    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    request = Request({"type": "http", "headers": [(b"content-type", b"application/json")]}, left)
    # A thread of its own: a browser that tests of this process share keeps a loop in this one.
    with start_blocking_portal() as portal, pytest.raises(HTTPException) as refused:
        portal.call(json_body, request)
    assert refused.value.status_code == STATUS_OF_WHO_LEFT
