"""What the servers of brimful share: they check their address and who asks, read bodies of limited
size, and stream events.
"""

import asyncio
import hmac
import json
import socket
import threading
from collections.abc import Callable, Collection
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from brimful.base.errors import RequestError

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn import Config

LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
MOST_CONNECTIONS = 1024
"""The most connections at the same time; further ones are answered with status 503."""
STATUS_OF_WHO_LEFT = 499
"""Status of a client that closed the connection before its answer (nginx's code); it is sent to
nobody.
"""
MOST_BYTES, MOST_SECONDS = 2**20, 30.0
"""Most bytes of the body of a request, and the most time that it may take."""


def is_local(host: str) -> bool:
    """Return whether only this machine reaches the address."""
    return host in LOCAL


def refuse_if_taken(host: str, port: int) -> None:
    """Raise RequestError if the address cannot be listened on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except socket.gaierror as error:
            raise RequestError(
                f"--host {host}: there is no such address ({error.strerror}). 127.0.0.1 is this"
                " machine."
            ) from error
        except OSError as error:
            raise RequestError(
                f"cannot listen on {host}, port {port}: {error.strerror}. Another program may use"
                f" the port; choose another: --port {port % 65535 + 1}"
            ) from error


class Guard:
    """Lets a request through to an ASGI application if it comes from no page of another site and,
    where there is a key, bears it.

    A page of another site can ask a server of this machine in two ways. It sends a request there,
    and the browser names the page's site in `Origin`; or it lets a name of its own point to this
    machine (DNS rebinding), and the request bears that name in `Host`.

    Args:
        app: What is guarded.
        names: Names that the server answers to, beside `localhost` and every address in figures,
            which no site can let point elsewhere; None: any.
        key: What `Authorization: Bearer KEY` has to hold; None: nothing.
    """

    def __init__(
        self, app: "ASGIApp", names: Collection[str] | None = (), key: str | None = None
    ) -> None:
        self._app, self._key = app, key
        self._names = None if names is None else {"localhost", *map(str.lower, names)}

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve a request, as ASGI says."""
        from starlette.datastructures import Headers  # noqa: PLC0415 - an extra
        from starlette.responses import JSONResponse  # noqa: PLC0415

        is_request = scope["type"] in {"http", "websocket"}
        if is_request and (refusal := self._refusal(Headers(scope=scope))):
            status, message = refusal
            content = {"error": {"message": message, "type": "refused"}}
            await JSONResponse(content, status)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, headers: "Headers") -> tuple[int, str] | None:
        """Return status and reason, if the request is refused."""
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        if self._names is not None and not self._answers_to(host):
            return 403, (
                f"this server does not answer to the name {host!r}, but to"
                f" {', '.join(sorted(self._names))} and to addresses in figures, as 127.0.0.1"
            )
        if origin is not None and urlsplit(origin).netloc.lower() != host:
            return 403, f"this server answers no pages of other sites, as {origin!r}"
        given = headers.get("authorization", "")
        if self._key is not None and not hmac.compare_digest(
            given.encode("latin-1"), f"Bearer {self._key}".encode()
        ):
            return 401, "this server asks for a key: Authorization: Bearer KEY"
        return None

    def _answers_to(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            if name in (self._names or ()):
                return True
            ip_address(name)
        except ValueError:
            return False
        return True


async def json_body(
    request: "Request", most_bytes: int = MOST_BYTES, most_s: float = MOST_SECONDS
) -> bytes:
    """Return the body of a request, which says that it is JSON.

    Raises:
        HTTPException: it is declared as something else, too long or too slow, or its client left.
    """
    from starlette.exceptions import HTTPException  # noqa: PLC0415 - an extra
    from starlette.requests import ClientDisconnect  # noqa: PLC0415

    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        raise HTTPException(415, "a request's content-type is application/json here")
    body = bytearray()
    try:
        async with asyncio.timeout(most_s):
            async for chunk in request.stream():
                if len(body) <= most_bytes:  # who writes on does not read the answer
                    body += chunk
    except TimeoutError:
        raise HTTPException(408, "the request did not arrive in time") from None
    except ClientDisconnect:
        raise HTTPException(STATUS_OF_WHO_LEFT, "the request is not whole") from None
    if len(body) > most_bytes:
        raise HTTPException(413, f"a request has at most {most_bytes:,} bytes here")
    return bytes(body)


def event(part: Any) -> str:
    """A value as a server-sent event."""
    return f"data: {json.dumps(part)}\n\n"


def listen(
    app: "ASGIApp",
    host: str,
    port: int,
    announce: Callable[[], None],
    on_exit: Callable[[], None] | None = None,
) -> None:
    """Listen on an address, announce it, and serve until a signal ends it.

    Args:
        on_exit: Called in a thread when the signal comes, to end answers that go on.
    """
    import uvicorn  # noqa: PLC0415 - an extra

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: Any) -> None:
            if on_exit is not None:
                threading.Thread(target=on_exit, daemon=True).start()
            super().handle_exit(sig, frame)

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        announce()
        Server(config_of(app)).run(sockets=[listening])


def config_of(app: "ASGIApp", most_s: float = MOST_SECONDS) -> "Config":
    """Return how an application is served: with limits of connections, and of the time in which the
    head of a request has to come.
    """
    from h11 import IDLE  # noqa: PLC0415 - an extra
    from uvicorn import Config  # noqa: PLC0415
    from uvicorn.protocols.http.h11_impl import H11Protocol  # noqa: PLC0415

    class Protocol(H11Protocol):
        _end: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._await_head()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._await_head()

        def _await_head(self) -> None:
            if self.conn.their_state is not IDLE and self._end is not None:
                self._end.cancel()
                self._end = None
            elif self.conn.their_state is IDLE and self._end is None:
                self._end = self.loop.call_later(most_s, self.timeout_keep_alive_handler)

    return Config(
        app,
        http=Protocol,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
