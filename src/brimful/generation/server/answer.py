"""One answer as its tokens come, and what OpenAI's API says of it."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from transformers import PreTrainedTokenizerBase

from brimful.generation.requests import Generation
from brimful.generation.server.writer import Token
from brimful.generation.text import TextStream, first_stop

REASONS = {"end_of_text": "stop", "stop": "stop", "length": "length", "loop": "stop"}
"""Why a text ended, in OpenAI's words."""


class Answer:
    """The text so far.

    Args:
        tokenizer: Tokenizer of the model.
        prompt_ids: What stands before it.
        stops: Texts that end it and do not belong to it.

    Attributes:
        text: What was given out of it; what could still become a stop text is held back.
        tokens: Ids and logprobs.
        finish: Why it ended, in OpenAI's words; None while it is written.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], stops: Sequence[str]
    ) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._stream = TextStream(tokenizer, prompt_ids)
        self._held = ""
        self._most_held = max(map(len, stops), default=1) - 1
        self.text, self.tokens = "", list[Token]()
        self.finish: str | None = None

    def take(self, update: Token | Generation) -> str:
        """Return the text that became certain."""
        if isinstance(update, Generation):
            self._held += self._stream.flush()
            self.finish = REASONS[update.finish]
        else:
            self.tokens.append(update)
            self._held += self._stream.push(update[0])
        place = first_stop(self._held, self._stops)
        if place is not None:
            self.finish = "stop"
        elif self.finish:
            place = len(self._held)
        else:
            place = max(0, len(self._held) - self._most_held)
        piece, self._held = self._held[:place], self._held[place:]
        self.text += piece
        return piece

    def logprobs(self, since: int, *, is_chat: bool) -> dict[str, Any]:
        """Return what is told of the tokens from one on, in the shape of chats or of texts."""
        tokens = self.tokens[since:]
        spelled = [self._tokenizer.decode([token]) for token, _ in tokens]
        if is_chat:
            return {
                "content": [
                    {
                        "token": text,
                        "logprob": logprob,
                        "bytes": list(text.encode()),
                        "top_logprobs": [],
                    }
                    for text, (_, logprob) in zip(spelled, tokens, strict=True)
                ]
            }
        return {
            "tokens": spelled,
            "token_logprobs": [logprob for _, logprob in tokens],
            "top_logprobs": None,
            "text_offset": [*accumulate(map(len, spelled[:-1]), initial=0)],
        }
