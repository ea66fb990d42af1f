"""What is asked of a generation back end, and what it gives back: the protocol that every back end
keeps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from brimful.base.errors import RequestError

if TYPE_CHECKING:
    from brimful.data.formats import Prompt
    from brimful.generation.sampler import SamplingSettings

Finish = Literal["end_of_text", "stop", "length", "loop"]
"""Why a text ended: a stop token, a stop text, the most tokens it may have, or a loop that would
have gone on to that many.
"""


@dataclass(frozen=True)
class Request:
    """One text to write.

    Attributes:
        key: The caller's name for it, given back with the result.
        prompt_ids: What it continues; at least one token. Requests with equal prompts that follow
            each other share one prefill.
        seed: Seed of its own random numbers: what is drawn depends on the prompt, the settings and
            this alone.
        max_new_tokens: Most new tokens, at least 1.
        settings: Settings of this text, where they are not those of the stream; the engine alone
            heeds them, but for a repetition penalty.
    """

    key: int
    prompt_ids: tuple[int, ...]
    seed: int
    max_new_tokens: int
    settings: "SamplingSettings | None" = None


@dataclass(frozen=True)
class Generation:
    """What was written.

    Attributes:
        token_ids: New tokens, without the prompt and without the stop token. With finish "stop": up
            to the token that completed the stop text.
        finish: Why it ended.
        logprobs: Log-probability of each of these tokens, in nats, under the model's own
            distribution (temperature 1, nothing filtered); None where not asked for.
    """

    token_ids: list[int]
    finish: Finish
    logprobs: list[float] | None = None


@dataclass(frozen=True)
class StopRules:
    """What ends a text.

    Attributes:
        ids: Tokens that end it and do not belong to it.
        texts: Texts that end it; what stands from there on does not belong to it.
        loops: Whether a text that repeats itself exactly ends, too (`loops.ends_in_loop`). A wish:
            other back ends than the engine write on up to the most tokens.
        keeps_token: Whether the token that ends a text belongs to it, with its log-probability;
            transformers' batching does not heed it.
    """

    ids: frozenset[int]
    texts: tuple[str, ...] = field(default=())
    loops: bool = False
    keeps_token: bool = False


class Backend(Protocol):
    """Writes texts for requests, in whatever order they finish."""

    def stream(
        self,
        requests: Iterable[Request],
        settings: "SamplingSettings",
        stop: StopRules,
        *,
        logprobs: bool = False,
    ) -> Iterator[tuple[Request, Generation]]:
        """Results as they finish.

        Requests are taken from the iterable only when there is room for them, so that the caller
        can decide late what is still worth asking. Closing the iterator ends everything.
        """
        ...


@dataclass(frozen=True)
class ShownPrompt:
    """A prompt, as a person reads it, and the answer in the data, "" where there is none."""

    prompt: "Prompt"
    text: str
    reference: str = ""


def refuse_too_long(request: Request, context: int, reader: str) -> None:
    """Refuse a text that a back end would cut.

    Args:
        request: Text to write.
        context: Most tokens that are read.
        reader: Who reads them, in words.

    Raises:
        RequestError: prompt and new tokens are more than the context.
    """
    if len(request.prompt_ids) + request.max_new_tokens > context:
        raise RequestError(
            f"prompt {request.key} has {len(request.prompt_ids)} tokens; with"
            f" {request.max_new_tokens} new ones that is more than the {context} that {reader}"
            " reads. Shorten either, or use plan.sampling=brimful, which goes on from the text's"
            " last half."
        )
