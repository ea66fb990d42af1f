"""What a client may ask for: the fields of OpenAI's API that brimful heeds, and no others."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brimful.base.errors import RequestError
from brimful.base.problems import problem_lines
from brimful.data.formats import Message
from brimful.generation.sampler import SamplingSettings

MOST_TEXTS = 64
"""The most texts that one request may ask for."""
MOST_SAID = 2000
"""Characters of an error, which repeats wrong values."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "suffix": ("",),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "metadata": ({},),
}
"""Fields that brimful does not heed, and the values that ask for nothing."""
Texts = Annotated[list[str], Field(min_length=1, max_length=MOST_TEXTS)]
Ids = Annotated[list[int], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=200)]


class _MessagePart(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class _Turn(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_MessagePart]
    name: str | None = None

    @property
    def message(self) -> Message:
        """The message as chat templates take it."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return Message(self.role, text)


class _StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Asked(BaseModel):
    """What chats and texts are asked with alike."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_TEXTS)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None

    @classmethod
    def read(cls, body: bytes) -> Self:
        """Return what a body asks for.

        Raises:
            RequestError: it is no JSON object, or a field is unknown or out of its range; names
                them all.
        """
        try:
            fields = json.loads(body)
            json.dumps(fields, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise RequestError(f"the request is no JSON: {error}") from None
        if not isinstance(fields, dict):
            raise RequestError("the request is no JSON object")
        heeded = {}
        for name, value in fields.items():
            if name not in NEUTRAL or name in cls.model_fields:
                heeded[name] = value
            elif value is not None and value not in NEUTRAL[name]:
                raise RequestError(
                    f"{name} is not heeded here: leave it out, or set it to"
                    f" {' or '.join(map(json.dumps, NEUTRAL[name]))}"
                )
        try:
            return cls.model_validate(heeded)
        except ValidationError as error:
            raise RequestError("; ".join(problem_lines(error, cls))[:MOST_SAID]) from None

    @property
    def settings(self) -> SamplingSettings:
        """How tokens are drawn; 1 is the temperature of OpenAI's API where none is given."""
        return SamplingSettings(
            1.0 if self.temperature is None else self.temperature,
            self.top_k,
            self.top_p or 1.0,
            self.min_p or 0.0,
        )

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts that end an answer."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def wants_logprobs(self) -> bool:
        """Whether logprobs of the tokens are given."""
        return False


class ChatAsked(Asked):
    """A request for the next message of a conversation."""

    messages: Annotated[list[_Turn], Field(min_length=1, max_length=10_000)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether logprobs of the tokens are given."""
        return bool(self.logprobs)


class TextAsked(Asked):
    """A request to go on with a text, or with several."""

    prompt: str | Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=MOST_TEXTS)]
    echo: bool | None = None
    logprobs: Literal[0] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether logprobs of the tokens are given."""
        return self.logprobs is not None
