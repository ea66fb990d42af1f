"""The page: three tabs in Gradio, with fonts of the system, nothing from elsewhere, no uploads, and
no way to files but what the tabs show.
"""

from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from brimful.base.local_server import Guard, is_local
from brimful.report.page.html import script
from brimful.studio import chat, runs, will_it_fit
from brimful.studio.html import style
from brimful.studio.library import Library
from brimful.studio.look import theme
from brimful.studio.planners import Planners

TITLE = "brimful studio"
WAITING_AT_MOST = 32
"""Requests in the queue; more are refused."""
AT_ONCE_AT_MOST = 8
"""Requests of one kind that are served at once; one session does not wait for another's."""
OPEN = frozenset({"/", "/config", "/theme.css", "/favicon.ico", "/robots.txt", "/manifest.json"})
OPEN_BELOW = (
    "/assets/",
    "/static/",
    "/svelte/",
    "/gradio_api/heartbeat/",
    "/gradio_api/queue/data",
    "/gradio_api/queue/join",
    "/gradio_api/run/predict",
    "/gradio_api/startup-events",
    "/gradio_api/cancel",
    "/gradio_api/reset",
    "/gradio_api/app_id",
)
"""Gradio's paths that the page uses; files, uploads, proxies, its API and whatever else it serves
are none of them.
"""


class PathGuard:
    """Serves only the paths that the page uses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI says."""
        if (
            scope["type"] in {"http", "websocket"}
            and scope["path"] not in OPEN
            and not scope["path"].startswith(OPEN_BELOW)
        ):
            await PlainTextResponse("not here", status_code=404)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def build(
    runs_folder: Path | None, planners: Planners | None = None, *, is_local: bool = True
) -> gr.Blocks:
    """The page, not served yet.

    Args:
        planners: What answers the first tab; None for processes of its own.
        runs_folder: Holds the runs to show and try; None: the first tab only.
        is_local: Only this machine sees the page, so it may name folders.
    """
    page: gr.Blocks
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        gr.HTML("<header><h1>brimful studio</h1></header>", elem_id="studio-head")
        with gr.Tabs():
            with gr.Tab("Will it fit?", id="fit"):
                will_it_fit.build(page, planners or Planners(), local_folders=is_local)
            if runs_folder is not None:
                library = Library(runs_folder)
                with gr.Tab("Runs", id="runs"):
                    runs.build(page, library)
                with gr.Tab("Try it", id="try"):
                    chat.build(page, library)
    page.queue(max_size=WAITING_AT_MOST, api_open=False, default_concurrency_limit=AT_ONCE_AT_MOST)
    return page


def launch(host: str, port: int, runs_folder: Path | None, planners: Planners) -> str:
    """Serve the page from a thread.

    Args:
        host: The address to listen on.
        port: The port to listen on.
        runs_folder: As in `build`.
        planners: What answers the first tab.

    Returns:
        Its address.
    """
    page = build(runs_folder, planners, is_local=is_local(host))
    settings: dict[str, Any] = {
        "share": False,
        "inbrowser": False,
        "inline": False,
        "ssr_mode": False,
        "mcp_server": False,
        "pwa": False,
        "enable_monitoring": False,
        "run_history": False,
        "footer_links": [],
        "allowed_paths": [],
        "max_file_size": 1,
        "quiet": True,
        "show_error": False,
    }
    _, address, _ = page.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        theme=theme(),
        css=style(),
        head=f'<script type="module">{script()}</script>',
        app_kwargs={
            "middleware": [
                Middleware(Guard, names=() if is_local(host) else None),
                Middleware(PathGuard),
            ],
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
        **settings,
    )
    return address
