"""Serving the page: what is refused before anything is loaded."""

import importlib.util
import os
import socket
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.env import silence_gradio
from brimful.base.errors import RequestError
from brimful.studio import page


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


def test_gradio_is_an_extra_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, refuses: Refuses
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "gradio" else find(name, *rest),
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    with refuses(RequestError):
        page.serve("127.0.0.1", port, None)


def test_whoever_else_sees_the_page_is_told(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    assert page.warning_of("127.0.0.1", tmp_path) == ""
    assert page.warning_of("10.0.0.1", None) == snapshot
    assert page.warning_of("10.0.0.1", tmp_path) == snapshot


def test_gradio_is_kept_from_calling_home_and_from_opening_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "GRADIO_ANALYTICS_ENABLED": "True",
        "GRADIO_ALLOWED_PATHS": "/",
        "GRADIO_SHARE": "true",
        "HF_HUB_DISABLE_TELEMETRY": "0",
    }.items():
        monkeypatch.setenv(name, value)

    silence_gradio()

    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"
    assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
    assert not {"GRADIO_ALLOWED_PATHS", "GRADIO_SHARE"} & os.environ.keys()
