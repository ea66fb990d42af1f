"""The texts of one request, and how they stand in the JSON of OpenAI's API."""

import secrets
import time
from asyncio import Queue
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.exceptions import HTTPException

from brimful.base.local_server import event
from brimful.generation.server.answer import Answer
from brimful.generation.server.asked import Asked, ChatAsked
from brimful.generation.server.writer import Text, Update

Pieces = AsyncGenerator[tuple[int, str]]
"""The number of a text, and what became certain of it."""


@dataclass(frozen=True)
class Reply:
    """What a request becomes.

    Attributes:
        asked: Its fields.
        answers: One for each text.
        texts: The same texts for the writer.
        updates: What the writer tells, with the number of the text.
        prompt_tokens: Tokens of all prompts.
        begins: What stands before each text: its prompt, where that is given back.
        head: Fields of every part of the response.
    """

    asked: Asked
    answers: list[Answer]
    texts: list[Text]
    updates: "Queue[tuple[int, Update]]"
    prompt_tokens: int
    begins: list[str]
    head: dict[str, Any] = field(
        default_factory=lambda: {"id": secrets.token_hex(12), "created": int(time.time())}
    )

    @property
    def is_chat(self) -> bool:
        """Whether its texts are messages."""
        return isinstance(self.asked, ChatAsked)

    def whole(self) -> dict[str, Any]:
        """Return the response, when all is written."""
        choices = [
            self._choice(place, self.begins[place] + answer.text, 0, "message")
            for place, answer in enumerate(self.answers)
        ]
        return {**self._part("", choices), "usage": self._usage()}

    async def events(self, pieces: Pieces) -> AsyncGenerator[str]:
        """Yield server-sent events with the texts as they come, and with the error that ends
        them.
        """
        told = [0] * len(self.answers)
        for place, begin in enumerate(self.begins):
            if self.is_chat or begin:
                yield self._event(self._choice(place, begin, 0, "delta"))
        try:
            async with aclosing(pieces):
                async for place, piece in pieces:
                    answer = self.answers[place]
                    if piece or answer.finish is not None:
                        yield self._event(self._choice(place, piece, told[place], "delta"))
                        told[place] = len(answer.tokens)
        except HTTPException as error:
            yield event(problem(error.detail, error.status_code))
        else:
            if self.asked.stream_options is not None and self.asked.stream_options.include_usage:
                yield event({**self._part(".chunk", []), "usage": self._usage()})
            yield "data: [DONE]\n\n"

    def _event(self, choice: dict[str, Any]) -> str:
        return event(self._part(".chunk", [choice]))

    def _part(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        name = f"chat.completion{kind}" if self.is_chat else "text_completion"
        return {**self.head, "object": name, "model": self.asked.model, "choices": choices}

    def _choice(self, place: int, text: str, since: int, key: str) -> dict[str, Any]:
        """Return a text, or what is new of it and its tokens from one on."""
        answer, logprobs = self.answers[place], None
        if self.asked.wants_logprobs and len(answer.tokens) > since:
            logprobs = answer.logprobs(since, is_chat=self.is_chat)
        shown = {key: {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        return {"index": place, **shown, "logprobs": logprobs, "finish_reason": answer.finish}

    def _usage(self) -> dict[str, int]:
        written = sum(len(answer.tokens) for answer in self.answers)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": written,
            "total_tokens": self.prompt_tokens + written,
        }


def problem(message: str, status: int) -> dict[str, Any]:
    """Return an error as clients of OpenAI's API read it."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}
