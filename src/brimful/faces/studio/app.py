"""The studio's server: one page, its files, reports of runs, and acts, each of which answers with a
stream of new contents for places on the page. Every other path is refused.
"""

import asyncio
import hmac
import json
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from brimful.base.errors import BrimfulError
from brimful.base.local_server import event, json_body
from brimful.base.types import Json
from brimful.faces.studio.asked import Act, PageRequest, Update
from brimful.faces.studio.chat import ChatActs
from brimful.faces.studio.fit_request import METHODS, TOGETHER, FitRequest, known_models
from brimful.faces.studio.html import own_file, problem_of, problem_piece, render
from brimful.faces.studio.jobs import Jobs
from brimful.faces.studio.library import Library
from brimful.faces.studio.pasted import MOST_CHARACTERS
from brimful.faces.studio.planners import Planners, Superseded
from brimful.faces.studio.planning import AS_THE_RECIPE, THIS_MACHINE, PlanActs
from brimful.faces.studio.runs import RunActs
from brimful.hardware import catalog
from brimful.planning.survey import Margin
from brimful.report.page.html import render_view, script
from brimful.report.page.run_page import run_view
from brimful.runs.folder import read_run

MOST_STREAMS = 32
"""Answers that are written at the same time, of all pages; more are refused."""
KEY_HEADER = "x-brimful-key"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self';"
    " frame-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page runs its own scripts alone, talks to its own server alone, and stands in no frame."""
REPORT_POLICY = "sandbox allow-scripts; frame-ancestors 'self'"
STREAM = "text/event-stream"
HEADERS = {"referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
DATA_FILES = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".txt", ".md")
MOST_OFFERED = 50
"""Data files of the folder in which the studio was started, that are offered by name."""
GUIDES = {
    "lora": "chats or answers, for LoRA",
    "code-full": "chats or answers, all weights",
    "dpo": "pairs of answers, for DPO",
    "kto": "judged answers, for KTO",
    "moderation-minilm": "texts with labels",
    "continue-text": "plain text, to go on with",
    "tiny-gpt": "plain text, from scratch",
}
"""Shipped recipes that are offered for data, and what for."""
SLIDERS = {
    "rank": ("Rank", (4, 8, 16, 32, 64, 128, 256)),
    "length": ("Sequence length", (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)),
    "batch": ("Sequences a step", (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
    "tokens": ("Tokens to train on", ("1M", "10M", "100M", "1B", "10B", "100B", "1T")),
}


@dataclass(frozen=True)
class Studio:
    """What the page may do.

    Attributes:
        acts: Actions by name, as the page names them.
        guarded: Those that read named files, write or start something; they ask for the key.
        library: The runs; None: planning alone.
        key: What `x-brimful-key` has to hold for them.
        is_local: Whether only this machine sees the page.
    """

    acts: Mapping[str, Act]
    guarded: frozenset[str]
    library: Library | None
    key: str
    is_local: bool
    _open: dict[PageRequest, Callable[[], object]] = field(default_factory=dict)
    _room: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(MOST_STREAMS)
    )

    @classmethod
    def of(
        cls, planners: Planners, runs_folder: Path | None, key: str, *, is_local: bool
    ) -> "Studio":
        """A studio that plans; with a folder of runs it shows them, too, and, on this machine
        alone, trains.
        """
        jobs = None if runs_folder is None else Jobs(runs_folder)
        plans = PlanActs(planners, jobs, local_folders=is_local)
        acts: dict[str, Act] = {"plan": plans.plan}
        guarded: dict[str, Act] = {}
        library = None
        if runs_folder is not None and jobs is not None:
            library = Library(runs_folder)
            runs, chat = RunActs(library, jobs, starts=is_local), ChatActs(library)
            acts |= {"list": runs.listed, "watch": runs.watch, "compare": runs.compare}
            acts |= {"begin": chat.begin, "open": chat.open, "write": chat.write, "hush": chat.stop}
            guarded = {"data": plans.data, "start": plans.start, "stop": runs.stop}
            guarded |= {"go-on": runs.go_on, "export": runs.export}
        if not is_local:
            guarded = {}
        return cls(acts | guarded, frozenset(guarded), library, key, is_local)

    def app(self) -> Starlette:
        """Return the routes as an ASGI application."""
        routes = [
            Route("/", self._page),
            Route("/page.js", lambda _: _script(script())),
            Route("/studio.js", lambda _: _script(own_file("studio.js"))),
            Route("/act/{name}", self._act, methods=["POST"]),
        ]
        if self.library is not None:
            routes.append(Route("/report/{name:path}", self._report))
        return Starlette(
            routes=routes,
            exception_handlers={
                HTTPException: lambda _, error: _refused(error.detail, error.status_code),
                BrimfulError: lambda _, error: _refused(str(error), 404),
                Exception: lambda *_: _refused("the server failed", 500),
            },
        )

    def _page(self, request: Request) -> Response:
        (recipes, models), chosen = known_models(), FitRequest("").devices
        if "start" in self.acts:
            # A training that the page starts runs here.
            chosen = (THIS_MACHINE, *chosen)
        page = render(
            "page.html.j2",
            acts=self.acts,
            is_local=self.is_local,
            names=[*recipes, *models],
            files=offered_files(Path()) if self.is_local else [],
            guides=GUIDES,
            sliders=SLIDERS,
            methods=METHODS,
            margins=(AS_THE_RECIPE, *get_args(Margin)),
            together=TOGETHER,
            devices=sorted([THIS_MACHINE, *catalog.names()], key=lambda name: name not in chosen),
            chosen=chosen,
            most_characters=MOST_CHARACTERS,
        )
        return HTMLResponse(page, headers=HEADERS | {"content-security-policy": POLICY})

    def _report(self, request: Request) -> Response:
        library = self.library or Library(Path())
        run = read_run(library.path(request.path_params["name"]))
        headers = HEADERS | {"content-security-policy": REPORT_POLICY}
        return HTMLResponse(render_view(run_view(run)), headers=headers)

    async def _act(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.acts:
            raise HTTPException(404, f"there is no act {name!r} here")
        given = request.headers.get(KEY_HEADER, "").encode("latin-1")
        if name in self.guarded and not hmac.compare_digest(given, self.key.encode()):
            raise HTTPException(
                401, "open the address that the terminal of the studio shows, with its key"
            )
        try:
            values = json.loads(await json_body(request))
        except (ValueError, RecursionError):
            raise HTTPException(400, "the request is no JSON") from None
        if not isinstance(values, dict):
            raise HTTPException(400, "the request is no JSON object")
        if not self._room.acquire(blocking=False):
            raise HTTPException(503, "too many answers are being written. Try again later.")
        return StreamingResponse(self._events(name, values, request), media_type=STREAM)

    async def _events(self, name: str, values: Json, request: Request) -> AsyncGenerator[str]:
        """Yield what an act tells, as it comes; it ends when nobody waits for it."""
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Update | None]()
        asked = PageRequest(
            values, lambda update: loop.call_soon_threadsafe(told.put_nowait, update)
        )
        threading.Thread(target=self._work, args=(name, asked, told, loop), daemon=True).start()
        leaves = asyncio.ensure_future(_left(request, asked))
        ends = partial(loop.call_soon_threadsafe, told.put_nowait, None)
        self._open[asked] = ends
        try:
            while (update := await told.get()) is not None:
                yield event(update)
        finally:
            asked.leave()
            leaves.cancel()
            del self._open[asked]

    def close(self) -> None:
        """End all answers, of acts that go on too."""
        for asked, end in [*self._open.items()]:
            asked.leave()
            end()

    def _work(
        self,
        name: str,
        asked: PageRequest,
        told: "asyncio.Queue[Update | None]",
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Do an act; first there is no problem on the page any more, last perhaps a new one."""
        place = f"{PLACES.get(name, 'runs')}-problem"
        try:
            asked.show(place, "")
            with suppress(Superseded):
                self.acts[name](asked)
        except Exception as error:
            asked.show(place, problem_piece(problem_of(error)))
        finally:
            self._room.release()
            with suppress(RuntimeError):  # the server has ended
                loop.call_soon_threadsafe(told.put_nowait, None)


async def _left(request: Request, asked: PageRequest) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    asked.leave()


PLACES = {"data": "data", **dict.fromkeys(("plan", "start"), "plan")} | dict.fromkeys(
    ("begin", "open", "write", "hush"), "try"
)
"""The tab of an act, where it is not that of the runs."""


def offered_files(folder: Path) -> list[str]:
    """Return the names of data files in a folder and the folders below it."""
    found = list[str]()
    with suppress(OSError):
        for path in sorted([*folder.iterdir(), *folder.glob("*/*")]):
            if path.suffix in DATA_FILES and path.is_file() and not path.name.startswith("."):
                found.append(str(path))
    return found[:MOST_OFFERED]


def _script(text: str) -> Response:
    return Response(text, media_type="text/javascript", headers=HEADERS)


def _refused(message: str, status: int) -> Response:
    return JSONResponse({"error": {"message": message}}, status, headers=HEADERS)
