"""A tokenizer's chat template: the text that it writes for messages, and where an answer begins and
ends in it.
"""

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from os.path import commonprefix
from pathlib import Path
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from brimful.base.errors import DataError
from brimful.base.text import clause, reason_of
from brimful.base.time_limit import processor_time_limit
from brimful.base.types import JsonDict
from brimful.data.conversations import THOUGHTS, Message
from brimful.data.template_losses import TemplateLosses, tools_of
from brimful.recipe import DataRecipe

RENDER_LIMIT_S = 2.0
"""Processor time for one conversation, which takes milliseconds; nested loops may take years."""
_PROBE = "an answer that no template contains"
_PROBED = "a probe of the chat template"
_TASK = Message("user", "a task")
_FIXED_DAY = "{% macro strftime_now(format) %}1 January 2026{% endmacro %}"
"""Put before chat templates that ask for today's date: examples must be the same when training
resumes on another day.
"""
_OPENED_THOUGHT = re.compile(r"<([\w:]*think[\w:]*)>\s*\Z")
"""The end of a generation prompt within a thought, as of DeepSeek-R1's distilled models."""
_CLOSED_THOUGHT = re.compile(r"<([\w:]*think[\w:]*)>\s*</\1>\s*\Z")
_OPEN_IT = (
    "The generation prompt says that there is no thought, and the row may hold one: set"
    " data.template_options='{enable_thinking: true}'."
)
_OTHERWISE = "Use data.template=plain."
_THOUGHT = re.compile(r"<[\w:]*think[\w:]*>.*\Z", re.DOTALL)


def use_own_chat_template(data: DataRecipe, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give a tokenizer the chat template of `data.chat_template` and `data.template_options`.

    Raises:
        DataError: the file cannot be read, there is no template, or an option that it does not
            read.
    """
    if not data.has_own_chat_template:
        return
    text, whose = tokenizer.chat_template, "the tokenizer's chat template"
    if data.chat_template is not None:
        whose = data.chat_template
        try:
            text = Path(whose).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"data.chat_template={whose} cannot be read: {reason_of(error)}. Name a text file"
                " with a chat template in Jinja."
            ) from error
    if not isinstance(text, str):
        raise DataError(
            "data.template_options: the tokenizer has no single chat template that reads them. Give"
            " one by data.chat_template=FILE."
        )
    for name, value in data.template_options.items():
        if not re.search(rf"\b{re.escape(name)}\b", text):
            raise DataError(
                f"data.template_options: {whose} does not read {name!r}, so nothing would change."
                " Correct the name, or leave it out."
            )
        default = f"{{% set {name} = {json.dumps(value)} %}}"
        text = f"{{% if {name} is not defined %}}{default}{{% endif %}}{text}"
    tokenizer.chat_template = text


class AnswerPlace(NamedTuple):
    """An answer, as a template writes it.

    Attributes:
        before: All that generation of the answer starts from.
        answer: What follows that; empty where the answer is still to come.
    """

    before: str
    answer: str


class _Form(NamedTuple):
    """How a template is given messages; templates differ in what they can read.

    Attributes:
        parts: Content is a list with one text, as for models that see images.
        none: The content of an answer that only calls tools is None, not an empty text.
        json: Arguments of calls are JSON, not values.
    """

    parts: bool = False
    none: bool = False
    json: bool = False

    def of(self, message: Message) -> JsonDict:
        turn = message.to_json()
        calls = turn.get("tool_calls", [])
        for function in (call.get("function", call) for call in calls):
            if self.json and not isinstance(function.get("arguments", ""), str):
                function["arguments"] = json.dumps(function["arguments"], ensure_ascii=False)
        if self.none and calls and not message.content:
            turn["content"] = None
        elif self.parts:
            turn["content"] = [{"type": "text", "text": message.content}]
        return turn


class ChatTemplate:
    """A tokenizer's chat template.

    Attributes:
        source: Its text, in Jinja.
        question: a question, as it writes it before an answer.
        tail: What it writes after an answer.
        ends: The special tokens that end an answer and calls of tools; none: it writes no end.
        opens_thought: Whether generation starts within a thought.

    Raises:
        DataError: it fails on a question and its answer, or does not write the answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.source: str = tokenizer.get_chat_template()
        if "strftime_now" in self.source:
            self.source = _FIXED_DAY + self.source
        self._form = _Form()
        self._losses = TemplateLosses(self._apply)
        probe = (_TASK, Message("assistant", _PROBE))
        if not self._is_written("answers"):
            self._text(probe, _PROBED)  # raises where the template fails
            raise DataError(
                "the tokenizer's chat template does not write the assistant's messages, so there is"
                " nothing to learn. Use data.template=plain."
            )
        written = self._render(probe, _PROBED)
        self.question = self._render(probe[:1], _PROBED, is_open=True)
        self.opens_thought = bool(_OPENED_THOUGHT.search(self.question))
        self.tail = written.rpartition(_PROBE)[2]
        self.ends = self._first_special(self.tail)
        self._next = {} if self.ends else self._what_follows()
        if self.ends and self._is_written("tool_calls"):
            called = self._apply(*_probe_of("tool_calls"))
            self.ends += [token for token, *_ in self._special_in(called)[-1:]]
        self.ends += self._next.values()

    @property
    def identity(self) -> JsonDict:
        """JSON value that changes when the same messages would be written otherwise."""
        further: JsonDict = {"parts": self._form.parts, "next": [*self._next.values()]}
        first = [token for token, *_ in self._special_in(self.tail)[:1]]
        further["end"] = self.ends[:1] if first not in ([], self.ends[:1]) else None
        return {
            "chat_template": self.source,
            **{key: value for key, value in further.items() if value},
        }

    def turn(self, messages: Sequence[Message], number: int, where: str) -> AnswerPlace:
        """The answer with this number, or with the number of messages: the one to come.

        Raises:
            DataError: the template refuses the messages, leaves out something of them, or writes
                the answer elsewhere than generation would.
        """
        asked, begun = messages[:number], messages[: number + 1]
        try:
            before = self._render(asked, where, is_open=True) if asked else None
        except DataError:
            if not all(message.role in {"system", "developer"} for message in asked):
                raise
            before = None
        if before is None:
            return self._turn_without_question(messages, number, where)
        if number == len(messages):
            return AnswerPlace(before, "")
        written = self._render(begun, where)
        if not written.startswith(before):
            answer = _behind_a_thought(messages[number].content, before, written)
            if answer is None:
                is_closed = _CLOSED_THOUGHT.search(before) and "enable_thinking" in self.source
                raise DataError(
                    f"{where}: the tokenizer's chat template does not write message {number + 1}"
                    " behind the text that it would be generated from, so what is learned would not"
                    f" be what is generated. {_OPEN_IT if is_closed else _OTHERWISE}"
                )
            return AnswerPlace(before, answer)
        return AnswerPlace(before, written[len(before) :] + self._next_after(messages[number]))

    def text_of(self, answer: str) -> str:
        """An answer without what ends it."""
        if answer.endswith(self.tail):
            return answer.removesuffix(self.tail)
        return next((answer.removesuffix(end) for end in self.ends if answer.endswith(end)), answer)

    def ended(self, text: str) -> str:
        """A rendered text, its last answer ended where it is not. Behind an end there may also
        stand what opens an answer, which is no answer.
        """
        behind, opening = (
            each[len(self.up_to_end(each)) :].strip() for each in (text, self.question)
        )
        return text + self.tail * (behind not in {"", opening})

    def up_to_end(self, answer: str) -> str:
        """An answer up to the last token that ends it; empty where it has none."""
        return answer[
            : max((answer.rfind(end) + len(end) for end in self.ends if end in answer), default=0)
        ]

    def _turn_without_question(
        self, messages: Sequence[Message], number: int, where: str
    ) -> AnswerPlace:
        """The answer with which a conversation begins. Templates refuse to open such an answer, and
        some to end with it: its place is found by another text in its stead.
        """
        probed = (*messages[:number], Message("assistant", _PROBE), *messages[number + 1 :])
        for count in range(number + 1, len(probed) + 1):
            try:
                shown = self._render(probed[:count], where)
                break
            except DataError:
                if count == len(probed):
                    raise
        head, _, rest = shown.partition(_PROBE)
        task = (_TASK,)
        opened, closed = self._render(task, where, is_open=True), self._render(task, where)
        opening = _THOUGHT.sub("", opened[len(_common_start(opened, closed)) :])
        before = head[: head.rfind(opening) + len(opening)] if opening in head else head
        if number == len(messages):
            return AnswerPlace(before, "")
        written = self._render(messages[:count], where)
        if not (written.startswith(before) and written.endswith(rest)):
            raise DataError(
                f"{where}: the tokenizer's chat template writes message {number + 1}, with which"
                " the assistant begins, in a way that it cannot be told apart. Remove this message,"
                " or use data.template=plain."
            )
        answer = written[len(before) : len(written) - len(rest)]
        end = _common_start(rest, self.tail) or self._next_after(messages[number])
        return AnswerPlace(before, answer + end)

    def _render(self, messages: Sequence[Message], where: str, *, is_open: bool = False) -> str:
        text = self._text(messages, where, is_open=is_open)
        self._losses.refuse(messages, text, where, is_open=is_open)
        return text

    def _text(self, messages: Sequence[Message], where: str, *, is_open: bool = False) -> str:
        try:
            return self._apply(messages, tools_of(messages), is_open=is_open)
        except Exception as error:  # a template is code of others, and may raise anything
            roles = ", ".join(message.role for message in messages) or "none"
            remedy = " leave such messages out (data.leave_out='[system]'),"
            raise DataError(
                f"{where}: the tokenizer's chat template refuses the messages ({roles}):"
                f" {str(error).rstrip('.')}. Correct the row,{clause('system' in roles, remedy)} or"
                " use data.template=plain."
            ) from error

    def _apply(
        self, messages: Sequence[Message], tools: list[Any] | None, *, is_open: bool = False
    ) -> str:
        turns = [self._form.of(message) for message in messages]
        for turn in turns:
            if turn["role"] == "developer" and "developer" not in self.source:
                turn["role"] = "system"
            for name in turn.keys() & THOUGHTS:
                turn[self._name_of_thoughts or name] = turn.pop(name)
        return self._written(turns, tools, is_open=is_open)

    def _written(
        self, turns: list[JsonDict], tools: list[Any] | None = None, *, is_open: bool = False
    ) -> str:
        with processor_time_limit(RENDER_LIMIT_S):
            text: str = self._tokenizer.apply_chat_template(
                turns,
                tools=tools,
                tokenize=False,
                add_generation_prompt=is_open,
                chat_template=self.source,
            )
        return text

    @cached_property
    def _name_of_thoughts(self) -> str:
        """The field of an answer that the template writes as its thoughts; empty: none."""
        asked, answer = map(self._form.of, (_TASK, Message("assistant", "an answer")))
        for name in THOUGHTS:
            with suppress(Exception):  # as in _render
                if _PROBE in self._written([asked, {**answer, name: _PROBE}]):
                    return name
        return ""

    def _is_written(self, what: str) -> bool:
        """Whether the chat template writes what a probe of this kind holds, in some form, which is
        kept.
        """
        messages, tools = _probe_of(what)
        given = self._form
        for changes in _FORMS.get(what, ({},)):
            self._form = given._replace(**changes)
            try:
                written = self._apply(messages, tools)
            except Exception:  # as in _render
                written = ""
            if _PROBE in written:
                return True
        self._form = given
        return False

    def _what_follows(self) -> dict[bool, str]:
        """The special tokens that stand behind an answer and, under True, behind calls of tools,
        where the template writes no end: the model generates the beginning of what comes next, as
        GLM does.
        """
        answered = (*_probe_of("answers")[0], _TASK)
        behind = self._render(answered, _PROBED).rpartition(_PROBE)[2]
        found = {False: self._first_special(behind, within=0)}
        if self._is_written("tool_calls") and self._is_written("messages of role tool"):
            asked, _ = _probe_of("messages of role tool")
            written, called = self._apply(asked, None), self._apply(asked[:-1], None)
            found[True] = self._first_special(written.removeprefix(called), within=0)
        begin = [self._tokenizer.bos_token]
        return {called: tokens[0] for called, tokens in found.items() if tokens not in ([], begin)}

    def _next_after(self, answer: Message) -> str:
        return self._next.get("tool_calls" in answer.fields, "")

    def _first_special(self, text: str, within: int | None = None) -> list[str]:
        """The first special token of a text, or the last of several that adjoin each other; none
        where it begins after `within` characters.
        """
        found: list[str] = []
        for token, start, end in self._special_in(text):
            if (within is not None or found) and start != within:
                break
            found, within = [token], end
        return found

    def _special_in(self, text: str) -> list[tuple[str, int, int]]:
        """The special tokens of a text, in order, each with where it begins and ends."""
        known = self._tokenizer.added_tokens_decoder
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        places = zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        return [(known[token].content, *place) for token, place in places if token in known]


_FORMS: dict[str, tuple[dict[str, bool], ...]] = {
    "answers": ({}, {"parts": True}),
    "tool_calls": ({}, {"none": True}, {"json": True}, {"none": True, "json": True}),
}
"""What is tried of `_Form`, by what is to be written."""


def _probe_of(what: str) -> tuple[list[Message], list[Any] | None]:
    """Messages and tools of which one holds the probe's text."""
    call = {"name": "look_up", "arguments": {"word": "x"}}
    if what == "answers":
        return [_TASK, Message("assistant", _PROBE)], None
    if what == "tool_calls":
        call["arguments"] = {"word": _PROBE}
    calls = [{"id": "abcdefghi", "type": "function", "function": call}]
    asked = [_TASK, Message("assistant", "", json.dumps({"tool_calls": calls}))]
    if what == "tool_calls":
        return asked, None
    result = {"name": "look_up", "tool_call_id": "abcdefghi"}
    return [*asked, Message("tool", _PROBE, json.dumps(result))], None


def _behind_a_thought(content: str, before: str, written: str) -> str | None:
    """What follows a generation prompt that opens a thought, of an answer that the template writes
    otherwise: the thought that stands in its content, or an empty one; None: it opens none.
    """
    opened = _OPENED_THOUGHT.search(before)
    if opened is None or not written.startswith(before[: opened.start()]):
        return None
    rest = written[opened.start() :]
    closing = f"</{opened[1]}>"
    if closing not in rest:
        thought, is_there, _ = content.rpartition(closing)
        if not is_there:
            return f"\n{closing}\n\n{rest}"
        rest = thought + closing + rest
    return rest.lstrip().removeprefix(f"<{opened[1]}>").lstrip("\n")


def _common_start(one: str, other: str) -> str:
    return commonprefix([one, other])  # noqa: RUF071 - of texts, not of paths
