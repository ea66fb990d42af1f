"""Serving the page: what is refused before anything is loaded, and who is told of whom."""

import importlib.util
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.faces.studio import page


def test_a_port_in_use_is_told_with_another_to_try() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        with pytest.raises(
            RequestError, match=rf"port {port}: .* --port {port % 65535 + 1}"
        ) as error:
            page.serve("127.0.0.1", port, None)
    assert error.value.exit_code == 2


def test_an_address_that_is_none_is_told() -> None:
    with pytest.raises(RequestError, match=r"--host no\.such\.host\.invalid"):
        page.serve("no.such.host.invalid", 7860, None)


def test_the_server_is_an_extra_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "uvicorn" else find(name, *rest),
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with pytest.raises(RequestError, match=r"the page needs uvicorn, .* brimful's extra studio"):
        page.serve("127.0.0.1", port, None)


def test_whoever_else_sees_the_page_is_told(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert page.warning_of("127.0.0.1", tmp_path) == ""
    assert page.warning_of("10.0.0.1", None) == snapshot
    assert page.warning_of("10.0.0.1", tmp_path) == snapshot


def test_the_command_leaves_runs_out_where_asked(
    said: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    served: list[tuple[Any, ...]] = []
    monkeypatch.setattr(page, "serve", lambda *asked: served.append(asked))

    said("studio", "--only-fit", "--host", "10.0.0.1", "--port", "7000")
    said("studio")

    runs = tmp_path / "runs"
    assert served == [("10.0.0.1", 7000, None), ("127.0.0.1", 7860, runs)]
