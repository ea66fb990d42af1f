"""Examples as token ids, with a mask of the ids that are learned (completion-only loss).

An example is encoded in pieces, each by itself, so that a prompt's ids are exactly those that
generation starts from later.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.chat_template import AnswerPlace, ChatTemplate
from brimful.data.conversations import THOUGHTS, only_read
from brimful.data.formats import Example, Message, Prompt
from brimful.data.tokenizer import begin_of, require_fast
from brimful.data.tokens import batch_encoder, special_tokens_in

LossOn = Literal["completion", "all"]
Turns = Literal["each", "last"]

INSTRUCTION_HEADING, RESPONSE_HEADING = "### Instruction:\n", "### Response:\n"
TOOL_HEADING = "### Tool:\n"


@dataclass(frozen=True)
class EncodedExample:
    """Token ids of an example.

    Attributes:
        ids: All of them, up to the last one that is learned.
        is_target: Whether an id is learned, for each; never the first, which follows nothing.
        num_bytes: UTF-8 bytes of the text that is learned; in a conversation learned as a whole,
            with the template's markup.
        example: What it was made of, up to its last answer.
    """

    ids: list[int]
    is_target: list[bool]
    num_bytes: int
    example: Example = field(compare=False, repr=False)


class _Piece(NamedTuple):
    """Text that is encoded by itself: something to read, or the message with the number `answer`.
    Where it is rendered, spelled special tokens are tokens.
    """

    text: str
    answer: int | None = None
    is_learned: bool = False
    is_rendered: bool = False


class Template:
    """How prompts and answers become token ids, and which tokens end an answer.

    Messages: by the tokenizer's chat template (style chat), or under headings of plain text (style
    plain). A prompt that is text, and a text without prompt, stand as they are in either style;
    where they spell a special token, that is text, too, unless they spell all those that the chat
    template writes around a question: then they are rendered, and these are tokens. End-of-text
    follows every answer that a chat template does not end itself.

    Attributes:
        style: chat or plain.
        end_of_text_id: The tokenizer's.
        stop_ids: Every token that ends an answer.
        spelled: Finds the tokenizer's special tokens that a text spells.
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
        self._encoder = cache(
            lambda is_rendered: batch_encoder(tokenizer, special_tokens_are_text=not is_rendered)
        )
        self._begin = begin_of(tokenizer)
        self.spelled = special_tokens_in(tokenizer)
        self._chat = ChatTemplate(tokenizer) if style == "chat" else None
        self._own = set()
        if self._chat is not None:
            self._own = self.spelled(self._chat.question.removeprefix(tokenizer.bos_token or ""))
        self._end_ids = set()
        if self._chat is not None:
            self._end_ids = {*map(int, tokenizer.convert_tokens_to_ids(self._chat.ends))}
        self.stop_ids = more_stop_ids | {self.end_of_text_id} | self._end_ids

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
        require_fast(tokenizer)
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
    def identity(self) -> JsonDict:
        """JSON value that changes when the same messages would be encoded otherwise, apart from the
        tokenizer's vocabulary.
        """
        written = {"chat_template": None} if self._chat is None else self._chat.identity
        return {"style": self.style, **written, "begin": self._begin}

    @property
    def opens_thought(self) -> bool:
        """Whether generation starts within a thought, which an answer without one has to close."""
        return self._chat is not None and self._chat.opens_thought

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the ids that generation starts from: the same that stand before the answer in
        training; never empty.

        Raises:
            DataError: the chat template refuses the messages.
        """
        if isinstance(prompt, str):
            pieces = [_Piece(prompt, is_rendered=self.is_rendered(prompt))]
        else:
            stretches = self._stretches(prompt, "the prompt", is_open=True)
            pieces = stretches[-1][:-1]
        return self._joined(pieces, self._ids_of(pieces), "completion")[0]

    def encode(
        self,
        examples: Sequence[Example],
        loss_on: LossOn = "completion",
        turns: Turns = "each",
    ) -> list[EncodedExample]:
        """Examples as ids. With `loss_on` completion the answers are learned, each with the token
        that ends it; with all, everything is.

        What is learned of an answer is what is generated. Where the template rewrites earlier
        messages, as it drops their thoughts, a conversation becomes several examples, each with
        the messages before its answer as the template writes them then.

        Args:
            examples: Examples with prompts and completions.
            loss_on: Which parts are learned, as `data.loss_on`.
            turns: Which answers are learned, as `data.turns`: every one, or the last one of each
                example.

        Raises:
            DataError: the chat template refuses the messages of an example, or writes an answer
                elsewhere than it would be generated.
        """
        runs: list[tuple[Example, list[_Piece]]] = []
        for example in examples:
            separate = self._runs(example, turns)
            runs += separate[-1:] if loss_on == "all" else separate
        ids = iter(self._ids_of([piece for _, pieces in runs for piece in pieces]))
        return [
            EncodedExample(*self._joined(pieces, [next(ids) for _ in pieces], loss_on), example)
            for example, pieces in runs
        ]

    def _runs(self, example: Example, turns: Turns) -> list[tuple[Example, list[_Piece]]]:
        """The example as text, or where the template rewrites messages once others follow (as it
        drops thoughts), one example for each stretch of answers that it does not.
        """
        messages = example.messages
        if messages is None:
            return [(example, self._texts(str(example.prompt or ""), example.completion))]
        if turns == "last":
            messages = only_read(messages, len(messages) - 1)
        runs = [*map(_up_to_learned, self._stretches(messages, example.where))]
        if len(runs) == 1:
            return [(example, runs[0])]
        return [(_part_of(example, messages, pieces), pieces) for pieces in runs if pieces]

    def _texts(self, prompt: str, completion: str) -> list[_Piece]:
        """A prompt and a completion as they stand; a rendered completion gets its end."""
        is_rendered = self.is_rendered(prompt or completion)
        if is_rendered and self._chat is not None:
            completion = self._chat.ended(completion)
        answer = _Piece(completion, 0, is_learned=True, is_rendered=is_rendered)
        return [_Piece(prompt, is_rendered=is_rendered), answer]

    def is_rendered(self, text: str) -> bool:
        """Whether a text spells all special tokens that the chat template writes around a question,
        so that it was rendered by such a template. Begin-of-text may be missing.
        """
        return bool(self._own) and self._own <= self.spelled(text)

    def _stretches(
        self, messages: tuple[Message, ...], where: str, *, is_open: bool = False
    ) -> list[list[_Piece]]:
        """The text before each answer and the answer, in turn, as long as what was written stays as
        it is; then anew from the beginning. With `is_open` an answer is still to come, and empty.
        """
        runs: list[list[_Piece]] = [[]]
        to_come = (Message("assistant", "", is_learned=False),) * is_open
        for number, message in enumerate((*messages, *to_come)):
            if message.role != "assistant":
                continue
            before, answer = self._turn(messages, number, where)
            pieces = self._continued(runs[-1], before)
            if pieces is None:
                pieces = [self._piece(before)]
                runs.append(pieces)
            runs[-1] = [*pieces, self._piece(answer, number, message.is_learned)]
        return runs

    def _piece(self, text: str, answer: int | None = None, is_learned: bool = False) -> _Piece:
        return _Piece(text, answer, is_learned, is_rendered=self._chat is not None)

    def _turn(self, messages: tuple[Message, ...], number: int, where: str) -> AnswerPlace:
        if self._chat is not None:
            return self._chat.turn(messages, number, where)
        _refuse_calls(messages, where)
        answer = "".join(message.content for message in messages[number : number + 1])
        return AnswerPlace(
            "".join(map(_under_heading, messages[:number])) + RESPONSE_HEADING, answer
        )

    def _continued(self, pieces: list[_Piece], before: str) -> list[_Piece] | None:
        """The pieces and the text between them and the next answer; None where the template wrote
        them otherwise. What it writes behind the end of a last answer only is cut.
        """
        written = "".join(piece.text for piece in pieces)
        if not before.startswith(written) and self._chat is not None:
            last = pieces[-1]
            kept = self._chat.up_to_end(last.text)
            written = written.removesuffix(last.text) + kept
            pieces = [*pieces[:-1], last._replace(text=kept)]
            if not kept:
                return None
        if not before.startswith(written):
            return None
        return [*pieces, self._piece(before[len(written) :])]

    def _ids_of(self, pieces: Sequence[_Piece]) -> list[list[int]]:
        ids = {}
        for is_rendered in {piece.is_rendered for piece in pieces}:
            texts = [piece.text for piece in pieces if piece.is_rendered is is_rendered]
            ids[is_rendered] = iter(self._encoder(is_rendered)(texts))
        return [next(ids[piece.is_rendered]) for piece in pieces]

    def _joined(
        self, pieces: Sequence[_Piece], ids_P: Sequence[list[int]], loss_on: LossOn
    ) -> tuple[list[int], list[bool], int]:
        ids = self._ids_before(pieces[0])
        is_target, num_bytes = [True] * len(ids), 0
        for piece, piece_ids in zip(pieces, ids_P, strict=True):
            text, num_learned = piece.text, 0
            if piece.answer is not None:
                piece_ids, num_learned = self._with_end(piece, piece_ids, piece is pieces[-1])  # noqa: PLW2901 - the same piece
            ids += piece_ids
            is_target += [piece.is_learned] * num_learned
            is_target += [False] * (len(piece_ids) - num_learned)
            if loss_on != "all":
                text = self._text_of(piece) * piece.is_learned
            num_bytes += len(text.encode())
        if loss_on == "all":
            is_target = [True] * len(ids)
        is_target[:1] = [False]
        return ids, is_target, num_bytes

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
        if answer.is_rendered and not self._end_ids.isdisjoint(ids):
            num_learned = len(ids)
            while ids[num_learned - 1] not in self._end_ids:
                num_learned -= 1
            if is_last:
                ids = ids[:num_learned]
            return ids, num_learned
        if is_last or not answer.is_rendered:
            ids = [*ids, self.end_of_text_id]
        return ids, len(ids)

    def _text_of(self, piece: _Piece) -> str:
        """The text of an answer without what ends it."""
        return piece.text if self._chat is None else self._chat.text_of(piece.text)


def _up_to_learned(pieces: list[_Piece]) -> list[_Piece]:
    """The pieces up to the last that is learned; none where none is."""
    return pieces[: max((n for n, piece in enumerate(pieces, 1) if piece.is_learned), default=0)]


def _part_of(example: Example, messages: tuple[Message, ...], pieces: list[_Piece]) -> Example:
    """The example up to the last answer of these pieces."""
    answers = [piece.answer for piece in pieces if piece.answer is not None]
    last = messages[answers[-1]]
    prompt = only_read(messages[: answers[-1]], answers[0])
    return replace(example, prompt=prompt, completion=last.content, extra=last.extra)


def _refuse_calls(messages: Sequence[Message], where: str) -> None:
    for message in messages:
        if {"tools", "tool_calls"} & message.fields.keys():
            raise DataError(
                f"{where}: plain headings have no place for tools and their calls. Choose a model"
                " whose chat template knows tools (data.template=chat), or remove these rows."
            )
        for name in message.fields.keys() & THOUGHTS:
            raise DataError(
                f"{where}: plain headings have no place for {name}. Write the thoughts into the"
                " content of the message, choose a model whose chat template writes them"
                f" (data.template=chat), or leave them out with data.leave_out='[{name}]'."
            )


def _under_heading(message: Message) -> str:
    text = f"{message.content}\n\n"
    if message.role in {"system", "developer"}:
        return text
    if message.role == "assistant":
        return RESPONSE_HEADING + message.content
    if message.role == "tool":
        return TOOL_HEADING + text
    return INSTRUCTION_HEADING + text


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
