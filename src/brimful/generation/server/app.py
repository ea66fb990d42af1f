"""The routes: chats, texts, and the name of the model; every other path is refused.

What a mistake of a client's comes to is one sentence and a status of 400 to 499, and what it no
longer waits for is not written on.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from brimful.base.errors import BrimfulError, RequestError
from brimful.base.local_server import MOST_BYTES, MOST_SECONDS, STATUS_OF_WHO_LEFT, json_body
from brimful.data.chat import Template
from brimful.data.tokenizer import begin_of
from brimful.generation.load import LoadedRun
from brimful.generation.requests import Request
from brimful.generation.sampler import sample_seeds
from brimful.generation.server.answer import Answer
from brimful.generation.server.asked import Asked, ChatAsked, TextAsked
from brimful.generation.server.reply import Pieces, Reply, problem
from brimful.generation.server.writer import Busy, SharedWriter, Text, Update

USUAL_TOKENS = 16
"""New tokens of a text where none are asked for, as in OpenAI's API."""


@dataclass(frozen=True)
class RequestLimits:
    """What one request may take.

    Attributes:
        tokens: New tokens of one text; the model's context is a limit, too.
        time_s: Most time from the whole request to the whole answer.
        body_bytes, body_time_s: Most bytes of a request, and most time to read it.
        waiting: Texts that wait to be begun, of all clients.
    """

    tokens: int
    time_s: float
    body_bytes: int = MOST_BYTES
    body_time_s: float = MOST_SECONDS
    waiting: int = 512


class Front:
    """Answers requests with a run's model.

    Args:
        loaded: The run.
        writer: Writes with its model.
        limits: Limits of one request.
    """

    def __init__(self, loaded: LoadedRun, writer: SharedWriter, limits: RequestLimits) -> None:
        self._loaded, self._writer, self._limits = loaded, writer, limits
        self._keys, self._encoding = count(), asyncio.Lock()
        self._name, self._created = loaded.run_folder.name, int(time.time())
        self._template = loaded.template
        if self._template is None and loaded.tokenizer.chat_template:
            self._template = Template.of(loaded.tokenizer)

    def app(self) -> Starlette:
        """Return the routes as an ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._chat, methods=["POST"]),
                Route("/v1/completions", self._text, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._model),
            ],
            exception_handlers={
                HTTPException: lambda _, error: _refused(error),
                Busy: lambda _, error: _refused(HTTPException(503, str(error))),
                BrimfulError: lambda _, error: _refused(HTTPException(400, str(error))),
                Exception: lambda *_: _refused(HTTPException(500, "the server failed")),
            },
        )

    async def _models(self, request: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._model_card()]})

    async def _model(self, request: HttpRequest) -> Response:
        self._check_name(request.path_params["name"])
        return JSONResponse(self._model_card())

    def _model_card(self) -> dict[str, Any]:
        return {
            "id": self._name,
            "object": "model",
            "created": self._created,
            "owned_by": "brimful",
        }

    def _check_name(self, name: str) -> None:
        if name != self._name:
            raise HTTPException(404, f"there is no model {name!r} here, only {self._name!r}")

    async def _chat(self, request: HttpRequest) -> Response:
        asked = ChatAsked.read(await self._body(request))
        if self._template is None:
            raise RequestError(
                f"{self._name} continues text and has no chat template: ask /v1/completions"
            )
        messages = tuple(turn.message for turn in asked.messages)
        most = asked.max_completion_tokens or asked.max_tokens
        template = self._template
        return await self._answer(request, asked, lambda: [template.prompt_ids(messages)], most)

    async def _text(self, request: HttpRequest) -> Response:
        asked = TextAsked.read(await self._body(request))
        prompt = asked.prompt
        prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        return await self._answer(
            request,
            asked,
            lambda: [self._ids(each) for each in prompts],
            asked.max_tokens or USUAL_TOKENS,
        )

    def _ids(self, prompt: Any) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        ids = [*begin_of(self._loaded.tokenizer), *self._loaded.encode(prompt)]
        return ids or [self._loaded.end_of_text_id]

    async def _body(self, request: HttpRequest) -> bytes:
        return await json_body(request, self._limits.body_bytes, self._limits.body_time_s)

    async def _answer(
        self,
        request: HttpRequest,
        asked: Asked,
        encode: Callable[[], list[list[int]]],
        most_tokens: int | None,
    ) -> Response:
        self._check_name(asked.model)
        async with self._encoding:
            prompts = await run_in_threadpool(encode)
        reply = self._reply(asked, prompts, most_tokens)
        self._writer.put(reply.texts)
        if asked.stream:
            events = reply.events(self._pieces(reply))
            return StreamingResponse(events, media_type="text/event-stream")
        written = asyncio.ensure_future(_drained(self._pieces(reply)))
        left = asyncio.ensure_future(request.receive())
        await asyncio.wait((written, left), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not written.done():
            written.cancel()
            return Response(status_code=STATUS_OF_WHO_LEFT)
        written.result()
        return JSONResponse(reply.whole())

    def _reply(self, asked: Asked, prompts: list[list[int]], most_tokens: int | None) -> Reply:
        tokenizer, loop = self._loaded.tokenizer, asyncio.get_running_loop()
        seed = secrets.randbits(32) if asked.seed is None else asked.seed % 2**64
        is_echoed = isinstance(asked, TextAsked) and bool(asked.echo)
        reply = Reply(asked, [], [], asyncio.Queue(), sum(map(len, prompts)), [])
        for ids in prompts:
            room = self._room(ids, most_tokens)
            for copy_seed in sample_seeds(seed, asked.n or 1):
                wanted = Request(next(self._keys), tuple(ids), copy_seed, room, asked.settings)
                reply.texts.append(Text(wanted, _teller(loop, reply.updates, len(reply.texts))))
                reply.answers.append(Answer(tokenizer, ids, asked.stops))
                reply.begins.append(tokenizer.decode(ids) if is_echoed else "")
        return reply

    def _room(self, ids: Sequence[int], most_tokens: int | None) -> int:
        """Return how many new tokens a text may have.

        Raises:
            RequestError: fewer than are asked for.
        """
        room = min(self._loaded.context - len(ids), self._limits.tokens)
        if room < 1 or (most_tokens or 0) > room:
            raise RequestError(
                f"max_tokens={most_tokens}: after a prompt of {len(ids)} tokens, at most"
                f" {max(0, room)} new ones are written here. Ask for fewer, or shorten the prompt."
            )
        return most_tokens or room

    async def _pieces(self, reply: Reply) -> Pieces:
        """Yield the number of a text and what became certain of it, until all are whole; closed
        before, nothing is written on.

        Raises:
            HTTPException: it took too long; BrimfulError: the model cannot write it.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._limits.time_s
        try:
            while any(answer.finish is None for answer in reply.answers):
                place, update = await asyncio.wait_for(reply.updates.get(), end_s - loop.time())
                if isinstance(update, BrimfulError):
                    raise HTTPException(503, str(update))
                if reply.answers[place].finish is None:
                    yield place, reply.answers[place].take(update)
                if reply.answers[place].finish is not None:
                    reply.texts[place].is_wanted = False
        except TimeoutError:
            limit_s = self._limits.time_s
            raise HTTPException(504, f"the answer was not whole after {limit_s:g} s") from None
        finally:
            for text in reply.texts:
                text.is_wanted = False


def _teller(
    loop: asyncio.AbstractEventLoop, updates: "asyncio.Queue[tuple[int, Update]]", place: int
) -> Callable[[Update], None]:
    def tell(update: Update) -> None:
        loop.call_soon_threadsafe(updates.put_nowait, (place, update))

    return tell


async def _drained(pieces: Pieces) -> None:
    async with aclosing(pieces):
        async for _ in pieces:
            pass


def _refused(error: HTTPException) -> Response:
    content = problem(error.detail, error.status_code)
    return JSONResponse(content, error.status_code, headers=error.headers)
