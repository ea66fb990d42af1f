"""Put on PYTHONPATH by the tests: in every Python process a connection to another machine fails,
and the attempt is written down. Commands of brimful's may run in a warm process (`warm.py`).
"""

import os
import socket
from typing import Any

import warm

_LOCAL = ("127.", "::1", "localhost")
_connect, _resolve = socket.socket.connect, socket.getaddrinfo


def _refuse(host: str) -> None:
    if not host.startswith(_LOCAL):
        with open(os.environ["BRIMFUL_TEST_CONTACTS"], "a", encoding="utf-8") as file:
            file.write(f"{host}\n")
        raise OSError(f"the tests allow no connection to {host}")


def _connect_locally(self: socket.socket, address: Any) -> None:
    if isinstance(address, tuple):
        _refuse(str(address[0]))
    _connect(self, address)


def _resolve_locally(host: Any, *arguments: Any, **named: Any) -> Any:
    if host is not None:
        _refuse(host.decode() if isinstance(host, bytes) else str(host))
    return _resolve(host, *arguments, **named)


socket.socket.connect = _connect_locally  # type: ignore[method-assign]
socket.getaddrinfo = _resolve_locally

warm.run_if_warm()
