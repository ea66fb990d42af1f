"""Token ids to text, as it comes and exactly as it would read as a whole; and whether a text has
run into a loop: the same words again and again, as small models write them when nothing ends an
answer (Holtzman et al. 2020, arXiv 1904.09751, section 4.3).
"""

import re
from collections.abc import Hashable, Sequence

from transformers import PreTrainedTokenizerBase


class TextStream:
    """Token ids in, printable text out, only up to whole characters.

    A byte-level token may hold part of a character; such text is held back until the rest arrives.
    The pieces and the last `flush()` put together equal the decoding of all ids at once
    (`text_behind`).

    Args:
        tokenizer: Tokenizer of the ids.
        prompt_ids: What stands before the text.
        keeps_special: Special tokens are shown as they are spelled, not left out.
    """

    _INCOMPLETE = "\N{REPLACEMENT CHARACTER}"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt_ids: Sequence[int] = (),
        *,
        keeps_special: bool = False,
    ) -> None:
        self._tokenizer, self._keeps_special = tokenizer, keeps_special
        self._shown_ids = list(prompt_ids)
        """Tokens of the newest printed piece, at first of the prompt: see `text_behind`."""
        self._held_ids: list[int] = []

    def push(self, token_id: int) -> str:
        """The text that became whole with this token; "" when it still waits for more."""
        self._held_ids.append(token_id)
        piece = self._piece()
        if piece.endswith(self._INCOMPLETE):
            return ""
        self._shown_ids, self._held_ids = self._held_ids, []
        return piece

    def flush(self) -> str:
        """What is left at the end of the text; a character that never became whole shows as
        U+FFFD.
        """
        piece = self._piece()
        self._shown_ids, self._held_ids = self._held_ids, []
        return piece

    def _piece(self) -> str:
        return text_behind(
            self._tokenizer, self._shown_ids, self._held_ids, keeps_special=self._keeps_special
        )


def text_behind(
    tokenizer: PreTrainedTokenizerBase,
    before_ids: Sequence[int],
    token_ids: Sequence[int],
    *,
    keeps_special: bool = False,
) -> str:
    """What tokens say behind others. By themselves they could say less: decoders of the
    SentencePiece kind take the space from a text's first token.
    """
    before, whole = (
        tokenizer.decode(
            ids, skip_special_tokens=not keeps_special, clean_up_tokenization_spaces=False
        )
        for ids in ([*before_ids], [*before_ids, *token_ids])
    )
    return str(whole[len(before) :])


def first_stop(text: str, stop_texts: Sequence[str]) -> int | None:
    """Where the first stop text begins; None where there is none."""
    return min((place for stop in stop_texts if (place := text.find(stop)) >= 0), default=None)


class StopFinder:
    """Says when a text that grows by a token first holds a stop text, without decoding all of it
    for each token.

    A token can complete a stop text only where its own text holds the last character of one, or
    part of a character. Only then the tail is decoded, and only where the stop text stands in it
    the whole text.

    Args:
        tokenizer: Tokenizer of the ids.
        stop_texts: None of them empty.
    """

    _PART = "\N{REPLACEMENT CHARACTER}"
    _BEFORE = 4
    """Tokens decoded before the tail, so that its first token keeps its space."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop_texts: Sequence[str]) -> None:
        self._tokenizer, self._stop_texts = tokenizer, tuple(stop_texts)
        self._last_characters = frozenset(text[-1] for text in stop_texts) | {self._PART}
        self._longest = max(map(len, stop_texts))
        self._may_complete: dict[int, bool] = {}

    def completes(self, prompt_ids: Sequence[int], new_ids: Sequence[int]) -> bool:
        """Whether the last of the new tokens completed a stop text in what they say behind the
        prompt.
        """
        if not self._can(new_ids[-1]) or not self._stands_in_tail(new_ids):
            return False
        return (
            first_stop(text_behind(self._tokenizer, prompt_ids, new_ids), self._stop_texts)
            is not None
        )

    def _can(self, token: int) -> bool:
        if token not in self._may_complete:
            text = self._tokenizer.decode(
                [token, token], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            self._may_complete[token] = not self._last_characters.isdisjoint(text)
        return self._may_complete[token]

    def _stands_in_tail(self, new_ids: Sequence[int]) -> bool:
        """Decodes so many of the last tokens that a stop text which ends in the newest one lies in
        them, whatever they say of a cut character.
        """
        newest = len(
            self._tokenizer.decode(
                new_ids[-1:], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )
        width = self._longest + 2 * self._BEFORE
        while width < len(new_ids):
            tail = text_behind(
                self._tokenizer, new_ids[-width - self._BEFORE : -width], new_ids[-width:]
            )
            if len(tail) > self._longest + newest + self._BEFORE:
                return first_stop(tail, self._stop_texts) is not None
            width *= 2
        return True


MOST_PERIOD = 64
"""Tokens or words of the longest part that is looked for."""
LEAST_TIMES, LEAST_TOKENS = 6, 48
"""An end of so many repetitions, and of so many tokens, is a loop. A row of zeros is shorter."""
LEAST_TIMES_IN_WORDS, LEAST_WORDS = 4, 16
"""Least repetitions and words of a loop in a finished text, whose numbers may differ: `243 + 1 =
244. 244 + 1 = 245.`
"""

_WORD = re.compile(r"[^\W\d_]+|\d+(?:[.,]\d+)*|[^\w\s]")


def ends_in_loop(token_ids: Sequence[int]) -> bool:
    """Return whether the last tokens are one part again and again, exactly."""
    return _repeats(token_ids, LEAST_TIMES, LEAST_TOKENS)


def text_ends_in_loop(text: str) -> bool:
    """Return whether a text's last words are the same again and again, whatever their numbers."""
    words = ["0" if word[0].isdigit() else word for word in _WORD.findall(text)]
    # The last repetition may be cut anywhere.
    return _repeats(words, LEAST_TIMES_IN_WORDS, LEAST_WORDS)


def _repeats(items: Sequence[Hashable], times: int, least: int) -> bool:
    for period in range(1, min(MOST_PERIOD, len(items) // times) + 1):
        length = max(times * period, least)
        if length <= len(items) and items[-length + period :] == items[-length:-period]:
            return True
    return False
