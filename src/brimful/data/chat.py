"""Examples as token ids, with a mask of the ids that are learned (completion-only loss).

An example is encoded in pieces, each by itself, so that a prompt's ids are exactly those that
generation starts from later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.time_limit import processor_time_limit
from brimful.data.formats import Example, Message, Prompt
from brimful.data.tokens import batch_encoder

LossOn = Literal["completion", "all"]

INSTRUCTION_HEADING, RESPONSE_HEADING = "### Instruction:\n", "### Response:\n"
TOOL_HEADING = "### Tool:\n"
_PROBE = "an answer that no template contains"
_FIXED_DAY = "{% macro strftime_now(format) %}1 January 2026{% endmacro %}"
"""Put before chat templates that ask for today's date: examples must be the same when training
resumes on another day.
"""
RENDER_LIMIT_S = 2.0
"""Processor time for one conversation, which takes milliseconds; nested loops may take years."""


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
        self._chat_template: str | None = None
        self._tail = ""
        self._end_of_turn_id: int | None = None
        self._writes: dict[str, bool] = {}
        self.stop_ids = more_stop_ids | {self.end_of_text_id}
        if style == "chat":
            self._chat_template = _chat_template_of(tokenizer)
            self._tail, self._end_of_turn_id = self._find_end_of_turn()
        if self._end_of_turn_id is not None:
            self.stop_ids |= {self._end_of_turn_id}

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
        style: Literal["chat", "plain"] = "plain"
        if choice != "plain" and tokenizer.chat_template:
            style = "chat"
        stop_ids = frozenset(_stop_id(tokenizer, token) for token in stop)
        return cls(tokenizer, style, stop_ids | frozenset(end_ids))

    @property
    def identity(self) -> dict[str, Any]:
        """JSON value that changes when the same messages would be encoded otherwise, apart from the
        tokenizer's vocabulary.
        """
        return {"style": self.style, "chat_template": self._chat_template, "begin": self._begin}

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the ids that generation starts from: the same that stand before the answer in
        training; never empty.

        Raises:
            DataError: the chat template refuses the messages.
        """
        if isinstance(prompt, str):
            pieces = [_Piece(prompt)]
        else:
            pieces = self._conversation_pieces(prompt, len(prompt), "the prompt", is_open=True)
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
        """The text before each answer and the answer, in turn; with `is_open` at the end the text
        before an answer that is still to come.
        """
        pieces: list[_Piece] = []
        done = 0
        for number, message in enumerate(messages):
            if message.role == "assistant":
                before, answer = self._turn(messages, done, number, where)
                pieces += [before, answer._replace(is_learned=number >= given)]
                done = number + 1
        if is_open:
            pieces.append(self._turn(messages, done, len(messages), where)[0])
        return pieces

    def _turn(
        self, messages: tuple[Message, ...], done: int, number: int, where: str
    ) -> tuple[_Piece, _Piece]:
        """The text between the `done` first messages and the answer with this number, and that
        answer (empty where it is still to come).
        """
        if self.style == "plain":
            _refuse_calls(messages, where)
            answer = "".join(message.content for message in messages[number : number + 1])
            before = "".join(map(_under_heading, messages[done:number])) + RESPONSE_HEADING
            return _Piece(before), _Piece(answer, is_answer=True)
        written = ""
        if done:
            written = self._render(messages[:done], where)
        opened = closed = self._render(messages[:number], where, is_open=True)
        if number < len(messages):
            closed = self._render(messages[: number + 1], where)
        if not (opened.startswith(written) and closed.startswith(opened)):
            raise DataError(
                f"{where}: the tokenizer's chat template writes the messages before an answer"
                " differently once the answer follows, so what is learned would not be what is"
                " generated. Use data.template=plain, or examples with a single answer."
            )
        return _Piece(opened[len(written) :], is_rendered=True), _Piece(
            closed[len(opened) :], is_answer=True, is_rendered=True
        )

    def _render(self, messages: Sequence[Message], where: str, *, is_open: bool = False) -> str:
        tools = messages[0].fields.get("tools") if messages else None
        self._refuse_what_would_be_lost(messages, tools, where)
        turns = [message.to_json() for message in messages]
        for turn in turns:
            if turn["role"] == "developer" and "developer" not in str(self._chat_template):
                turn["role"] = "system"
        try:
            return self._apply(turns, tools, is_open=is_open)
        except Exception as error:  # a template is code of others, and may raise anything
            roles = ", ".join(message.role for message in messages) or "none"
            raise DataError(
                f"{where}: the tokenizer's chat template refuses the messages ({roles}):"
                f" {str(error).rstrip('.')}. Correct the row, or use data.template=plain."
            ) from error

    def _apply(
        self, turns: list[dict[str, Any]], tools: list[Any] | None = None, *, is_open: bool = False
    ) -> str:
        with processor_time_limit(RENDER_LIMIT_S):
            text: str = self._tokenizer.apply_chat_template(
                turns,
                tools=tools,
                tokenize=False,
                add_generation_prompt=is_open,
                chat_template=self._chat_template,
            )
        return text

    def _refuse_what_would_be_lost(
        self, messages: Sequence[Message], tools: object, where: str
    ) -> None:
        """Raise DataError if the chat template leaves out tools, calls of tools or their answers;
        many templates know none of them.
        """
        for what, is_there in {
            "tools": tools,
            "tool_calls": any("tool_calls" in message.fields for message in messages),
            "messages of role tool": any(message.role == "tool" for message in messages),
        }.items():
            if not is_there:
                continue
            if what not in self._writes:
                self._writes[what] = self._is_written(what)
            if not self._writes[what]:
                raise DataError(
                    f"{where}: the tokenizer's chat template does not write {what}, so they would"
                    " be lost. Choose a model whose chat template knows tools, or remove these"
                    " rows."
                )

    def _is_written(self, what: str) -> bool:
        """Whether the chat template writes what a probe of this kind holds."""
        turns, tools = _probe_of(what)
        try:
            return _PROBE in self._apply(turns, tools)
        except Exception:  # as in _render
            return False

    def _find_end_of_turn(self) -> tuple[str, int | None]:
        """The text that the chat template writes after an answer, and the first special token in
        it.
        """
        probe = [Message("user", "a task"), Message("assistant", _PROBE)]
        tail = self._render(probe, "a probe of the chat template").rpartition(_PROBE)[2]
        special = set(self._tokenizer.added_tokens_decoder)
        ids = self._encode_rendered([tail])[0]
        return tail, next((token for token in ids if token in special), None)

    def _ids_of(self, pieces: Sequence[_Piece]) -> list[list[int]]:
        ids = {}
        for rendered, encode in ((False, self._encode_plain), (True, self._encode_rendered)):
            texts = [piece.text for piece in pieces if piece.is_rendered is rendered]
            ids[rendered] = iter(encode(texts))
        return [next(ids[piece.is_rendered]) for piece in pieces]

    def _joined(
        self, pieces: Sequence[_Piece], ids_P: Sequence[list[int]], loss_on: LossOn
    ) -> EncodedExample:
        ids = self._ids_before(pieces[0])
        is_target, num_bytes = [True] * len(ids), 0
        for piece, piece_ids in zip(pieces, ids_P, strict=True):
            text, num_learned = piece.text, 0
            if piece.is_answer:
                piece_ids, num_learned = self._with_end(piece, piece_ids, piece is pieces[-1])  # noqa: PLW2901 - the same piece
            ids += piece_ids
            is_target += [piece.is_learned] * num_learned
            is_target += [False] * (len(piece_ids) - num_learned)
            if loss_on != "all":
                text = text.removesuffix(self._tail) * piece.is_learned
            num_bytes += len(text.encode())
        if loss_on == "all":
            is_target = [True] * len(ids)
        is_target[:1] = [False]
        return EncodedExample(ids, is_target, num_bytes)

    def _ids_before(self, first: _Piece) -> list[int]:
        """Begin-of-text where the tokenizer adds it, else end-of-text before an empty text; nothing
        before rendered text.
        """
        if first.is_rendered:
            return []
        if self._begin or first.text:
            return [*self._begin]
        return [self.end_of_text_id]

    def _with_end(self, answer: _Piece, ids: list[int], is_last: bool) -> tuple[list[int], int]:
        """The ids of an answer, and how many of them are learned: up to the token that ends it. The
        last answer is cut after that token.
        """
        if answer.is_rendered and self._end_of_turn_id in ids:
            num_learned = len(ids) - ids[::-1].index(self._end_of_turn_id)
            if is_last:
                ids = ids[:num_learned]
            return ids, num_learned
        if is_last or not answer.is_rendered:
            ids = [*ids, self.end_of_text_id]
        return ids, len(ids)


def _chat_template_of(tokenizer: PreTrainedTokenizerBase) -> str:
    template: str = tokenizer.get_chat_template()
    if "strftime_now" in template:
        return _FIXED_DAY + template
    return template


def _probe_of(what: str) -> tuple[list[dict[str, Any]], list[Any] | None]:
    """Messages and tools of which one holds the probe's text."""
    task = {"role": "user", "content": "a task"}
    call = {"name": "look_up", "arguments": {"word": "x"}}
    if what == "tools":
        parameters = {"type": "object", "properties": {}}
        tool = {"name": "look_up", "description": _PROBE, "parameters": parameters}
        return [task], [{"type": "function", "function": tool}]
    answer: dict[str, Any] = {"role": "assistant", "content": ""}
    answer["tool_calls"] = [{"id": "abcdefghi", "type": "function", "function": call}]
    if what == "tool_calls":
        call["arguments"] = {"word": _PROBE}
        return [task, answer], None
    result = {"role": "tool", "content": _PROBE, "name": "look_up", "tool_call_id": "abcdefghi"}
    return [task, answer, result], None


def _refuse_calls(messages: Sequence[Message], where: str) -> None:
    if any({"tools", "tool_calls"} & message.fields.keys() for message in messages):
        raise DataError(
            f"{where}: plain headings have no place for tools and their calls. Choose a model whose"
            " chat template knows tools (data.template=chat), or remove these rows."
        )


def _under_heading(message: Message) -> str:
    text = f"{message.content}\n\n"
    if message.role in {"system", "developer"}:
        return text
    if message.role == "tool":
        return TOOL_HEADING + text
    return INSTRUCTION_HEADING + text


def _begin_of(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Begin-of-text where the tokenizer puts it before a text by itself."""
    with_special, without = (tokenizer.encode("a", add_special_tokens=add) for add in (True, False))
    if with_special[0] != tokenizer.bos_token_id or without[:1] == with_special[:1]:
        return ()
    return (with_special[0],)


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
