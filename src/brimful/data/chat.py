"""The one place where examples become token ids, and where it is decided which of these ids are
learned.

An example is encoded in pieces, each by itself: a prompt's ids are exactly those that generation
starts from later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jinja2
from transformers import PreTrainedTokenizerBase

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.data.formats import Example, Message, Prompt
from brimful.data.tokens import batch_encoder

LossOn = Literal["completion", "all"]

INSTRUCTION_HEADING, RESPONSE_HEADING = "### Instruction:\n", "### Response:\n"
_PROBE = "an answer that no template contains"
_FIXED_DAY = "{% macro strftime_now(format) %}1 January 2026{% endmacro %}"
"""Before chat templates that ask for today's date: examples must be the same tomorrow, when
training goes on.
"""


@dataclass(frozen=True)
class EncodedExample:
    """Token ids of an example.

    Attributes:
        ids: All of them, up to the last one that is learned.
        is_target: For each id, whether it is learned; never the first, which follows nothing.
        num_bytes: UTF-8 bytes of the text that is learned; in a conversation learned as a whole,
            with the template's markup.
    """

    ids: list[int]
    is_target: list[bool]
    num_bytes: int


class _Piece(NamedTuple):
    """Text that is encoded by itself: something to read, or an answer. Where it is rendered,
    spelled special tokens are tokens.
    """

    text: str
    is_answer: bool = False
    is_learned: bool = False
    is_rendered: bool = False


class Template:
    """How prompts and answers become token ids, and which tokens end an answer.

    Messages: by the tokenizer's chat template (style chat), or under headings of plain text (style
    plain). A prompt that is text, and a text without prompt, stand as they are in either style;
    where they spell a special token, that is text, too. End-of-text follows every answer that a
    chat template does not end itself.

    Attributes:
        style: chat or plain.
        end_of_text_id: The tokenizer's.
        stop_ids: Every token that ends an answer.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        style: Literal["chat", "plain"],
        more_stop_ids: frozenset[int],
    ) -> None:
        self.style = style
        self.end_of_text_id = int(tokenizer.eos_token_id)
        self._tokenizer = tokenizer
        self._encode_plain = batch_encoder(tokenizer)
        self._encode_rendered = batch_encoder(tokenizer, special_tokens_are_text=False)
        self._begin = _begin_of(tokenizer)
        self._chat_template = _chat_template_of(tokenizer) if style == "chat" else None
        self._tail, self._end_of_turn_id = (
            self._find_end_of_turn() if style == "chat" else ("", None)
        )
        ends = (
            {self.end_of_text_id}
            if self._end_of_turn_id is None
            else {self.end_of_text_id, self._end_of_turn_id}
        )
        self.stop_ids = more_stop_ids | ends

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        choice: Literal["auto", "chat", "plain"] = "auto",
        *,
        stop: Sequence[str] = (),
        end_ids: Iterable[int] = (),
    ) -> "Template":
        """The template a recipe asks for.

        Args:
            tokenizer: A fast one, with an end-of-text token.
            choice: `data.template`; auto: chat where the tokenizer has a chat template.
            stop: `sample.stop`: further tokens that end an answer.
            end_ids: Those of the model's generation config.

        Raises:
            DataError: no end-of-text token, no chat template where one is asked for, a stop token
                that is none, a slow tokenizer.
        """
        if not tokenizer.is_fast:
            raise DataError(
                f"the tokenizer {_name_of(tokenizer)} has no fast version (tokenizer.json), which"
                " is needed. Convert it first."
            )
        if tokenizer.eos_token_id is None:
            raise DataError(
                f"the tokenizer {_name_of(tokenizer)} has no end-of-text token, so a model could"
                " not learn to end an answer. Set eos_token in its tokenizer_config.json."
            )
        if choice == "chat" and not tokenizer.chat_template:
            raise DataError(
                f"data.template=chat, but the tokenizer {_name_of(tokenizer)} has no chat template."
                " Use data.template=plain, or put a chat_template.jinja beside its tokenizer.json."
            )
        is_chat = choice != "plain" and bool(tokenizer.chat_template)
        stop_ids = frozenset(_stop_id(tokenizer, token) for token in stop)
        return cls(tokenizer, "chat" if is_chat else "plain", stop_ids | frozenset(end_ids))

    @property
    def identity(self) -> dict[str, Any]:
        """JSON value that changes when the same messages would be encoded otherwise, apart from the
        tokenizer's vocabulary.
        """
        return {"style": self.style, "chat_template": self._chat_template, "begin": self._begin}

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """What generation starts from: the same ids that stand before the answer in training; never
        empty.

        Raises:
            DataError: the chat template refuses the messages.
        """
        pieces = (
            [_Piece(prompt)]
            if isinstance(prompt, str)
            else self._conversation_pieces(prompt, len(prompt), "the prompt", is_open=True)
        )
        return self._joined(pieces, self._ids_of(pieces), "completion").ids

    def encode(
        self, examples: Sequence[Example], loss_on: LossOn = "completion"
    ) -> list[EncodedExample]:
        """Examples as ids. With `loss_on` completion the answers are learned, each with the token
        that ends it; with all, everything is.

        Raises:
            DataError: the chat template refuses the messages of an example, or writes them
                differently depending on what follows.
        """
        pieces_E = [self._pieces(example) for example in examples]
        ids = iter(self._ids_of([piece for pieces in pieces_E for piece in pieces]))
        return [self._joined(pieces, [next(ids) for _ in pieces], loss_on) for pieces in pieces_E]

    def _pieces(self, example: Example) -> list[_Piece]:
        if (messages := example.messages) is not None:
            return self._conversation_pieces(messages, example.given, example.where)
        return [
            _Piece(str(example.prompt or "")),
            _Piece(example.completion, is_answer=True, is_learned=True),
        ]

    def _conversation_pieces(
        self, messages: tuple[Message, ...], given: int, where: str, *, is_open: bool = False
    ) -> list[_Piece]:
        """What stands before an answer and the answer, in turn; `is_open`: at the end what stands
        before one that is still to come.
        """
        pieces: list[_Piece] = []
        done = 0
        answers = [number for number, message in enumerate(messages) if message.role == "assistant"]
        for number in answers:
            before, answer = self._turn(messages, done, number, where)
            pieces += [before, answer._replace(is_learned=number >= given)]
            done = number + 1
        return [*pieces, self._turn(messages, done, len(messages), where)[0]] if is_open else pieces

    def _turn(
        self, messages: tuple[Message, ...], done: int, number: int, where: str
    ) -> tuple[_Piece, _Piece]:
        """What stands between the messages that are done and the answer with this number, and that
        answer (empty where it is to come).
        """
        if self.style == "plain":
            answer = messages[number].content if number < len(messages) else ""
            return _Piece(
                "".join(map(_under_heading, messages[done:number])) + RESPONSE_HEADING
            ), _Piece(answer, is_answer=True)
        written = self._render(messages[:done], where) if done else ""
        opened = self._render(messages[:number], where, is_open=True)
        closed = self._render(messages[: number + 1], where) if number < len(messages) else opened
        if not (opened.startswith(written) and closed.startswith(opened)):
            raise DataError(
                f"{where}: the tokenizer's chat template writes the messages before an answer"
                " differently once the answer follows, so what is learned would not be what is"
                " generated. Use data.template=plain, or examples with a single answer."
            )
        before = _Piece(opened[len(written) :], is_rendered=True)
        return before, _Piece(closed[len(opened) :], is_answer=True, is_rendered=True)

    def _render(self, messages: Sequence[Message], where: str, *, is_open: bool = False) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        try:
            text: str = self._tokenizer.apply_chat_template(
                turns,
                tokenize=False,
                add_generation_prompt=is_open,
                chat_template=self._chat_template,
            )
        except (jinja2.TemplateError, ValueError, TypeError) as error:
            roles, reason = (
                ", ".join(message.role for message in messages) or "none",
                str(error).rstrip("."),
            )
            raise DataError(
                f"{where}: the tokenizer's chat template refuses the messages ({roles}): {reason}."
                " Correct the row, or use data.template=plain."
            ) from error
        return text

    def _find_end_of_turn(self) -> tuple[str, int | None]:
        """What the chat template writes after an answer, and the first special token in it."""
        written = self._render(
            [Message("user", "a task"), Message("assistant", _PROBE)],
            "a probe of the chat template",
        )
        tail = written.rpartition(_PROBE)[2]
        special = set(self._tokenizer.added_tokens_decoder)
        return tail, next(
            (token for token in self._encode_rendered([tail])[0] if token in special), None
        )

    def _ids_of(self, pieces: Sequence[_Piece]) -> list[list[int]]:
        plain = iter(self._encode_plain([piece.text for piece in pieces if not piece.is_rendered]))
        rendered = iter(
            self._encode_rendered([piece.text for piece in pieces if piece.is_rendered])
        )
        return [next(rendered if piece.is_rendered else plain) for piece in pieces]

    def _joined(
        self, pieces: Sequence[_Piece], ids_P: Sequence[list[int]], loss_on: LossOn
    ) -> EncodedExample:
        ids = [] if pieces[0].is_rendered else self._begin_before(pieces[0].text)
        is_target = [True] * len(ids)
        num_bytes = 0
        for piece, piece_ids in zip(pieces, ids_P, strict=True):
            is_last = piece is pieces[-1]
            found, num_learned = (
                self._with_end(piece, piece_ids, is_last) if piece.is_answer else (piece_ids, 0)
            )
            ids += found
            is_target += [piece.is_learned] * num_learned + [False] * (len(found) - num_learned)
            if piece.is_learned or loss_on == "all":
                num_bytes += len(
                    (
                        piece.text if loss_on == "all" else piece.text.removesuffix(self._tail)
                    ).encode()
                )
        is_target = [True] * len(ids) if loss_on == "all" else is_target
        is_target[:1] = [False]
        return EncodedExample(ids, is_target, num_bytes)

    def _begin_before(self, text: str) -> list[int]:
        """Begin-of-text where the tokenizer adds it; a text from nothing follows end-of-text where
        it does not.
        """
        return [*self._begin] if self._begin or text else [self.end_of_text_id]

    def _with_end(self, answer: _Piece, ids: list[int], is_last: bool) -> tuple[list[int], int]:
        """The ids of an answer, and how many of them are learned: up to the token that ends it,
        behind which the last answer is cut.
        """
        if answer.is_rendered and self._end_of_turn_id in ids:
            num_learned = len(ids) - ids[::-1].index(self._end_of_turn_id)
            return (ids[:num_learned] if is_last else ids), num_learned
        ended = [*ids, self.end_of_text_id] if is_last or not answer.is_rendered else ids
        return ended, len(ended)


def _chat_template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    found: str = tokenizer.get_chat_template()
    return f"{_FIXED_DAY}{found}" if "strftime_now" in found else found


def _under_heading(message: Message) -> str:
    return (
        f"{message.content}\n\n"
        if message.role == "system"
        else f"{INSTRUCTION_HEADING}{message.content}\n\n"
    )


def _begin_of(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Begin-of-text where the tokenizer puts it before a text by itself."""
    with_special, without = (tokenizer.encode("a", add_special_tokens=add) for add in (True, False))
    return (
        (with_special[0],)
        if with_special[0] == tokenizer.bos_token_id and without[:1] != with_special[:1]
        else ()
    )


def _stop_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    ids = tokenizer.encode(token, add_special_tokens=False)
    if len(ids) == 1 and ids[0] != tokenizer.unk_token_id:
        return int(ids[0])
    known = sorted(tokenizer.added_tokens_encoder)
    raise DataError(
        f"sample.stop: {token!r} is not a token of"
        f" {_name_of(tokenizer)}{did_you_mean(token, known)} Its special tokens:"
        f" {', '.join(known)}."
    )


def _name_of(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.name_or_path or "of this model")
