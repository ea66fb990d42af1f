"""What a chat template leaves out of a conversation: it is asked to write a probe of the same
shape, as templates drop what they do not know without a word.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from brimful.base.errors import DataError
from brimful.base.types import Json
from brimful.data.conversations import THOUGHTS, Message


class Apply(Protocol):
    """Writes messages and tools by a chat template; it may raise anything."""

    def __call__(
        self, messages: Sequence[Message], tools: list[Any] | None, *, is_open: bool = False
    ) -> str: ...


class _Part(NamedTuple):
    """Something of a conversation: in words, what kind of advice there is, and its name."""

    told: str
    kind: str
    name: str = ""


_TOOL_ADVICE = "Choose a model whose chat template knows tools, or remove these rows."
_ADVICE = {
    "system": (
        "Leave such messages out with data.leave_out='[{name}]', put their text into the user's"
        " messages, or use data.template=plain."
    ),
    "thoughts": (
        "Choose a model whose chat template does, write them into the content of the message, or"
        " leave them out with data.leave_out='[{name}]'."
    ),
    "tools": _TOOL_ADVICE,
    "tool_calls": _TOOL_ADVICE,
    "tool": _TOOL_ADVICE,
}
_OTHER_ADVICE = "Correct the row, or use data.template=plain."


class TemplateLosses:
    """Finds what a chat template leaves out.

    Args:
        apply: writes messages by the template.
    """

    def __init__(self, apply: Apply) -> None:
        self._apply = apply
        self._lost: dict[str, list[_Part]] = {}

    def refuse(
        self, messages: Sequence[Message], text: str, where: str, *, is_open: bool = False
    ) -> None:
        """Raise DataError if something of the messages is not in what the template writes.

        Args:
            messages: of the conversation.
            text: what it writes of them.
            where: the row, for errors.
            is_open: whether an answer is to follow.
        """
        has_tools = bool(tools_of(messages))
        shape = json.dumps([*map(_shape_of, messages), has_tools, is_open])
        if shape not in self._lost:
            probes, marks = _probe_of(messages)
            if has_tools:
                marks[_mark(-1)] = _Part("tools", "tools")
            try:
                written = self._apply(probes, [_TOOL] if has_tools else None, is_open=is_open)
            except Exception:  # it refuses the probe: then by the messages themselves
                marks, written = _contents_of(messages), text
            self._lost[shape] = [part for mark, part in marks.items() if mark not in written]
        for part in self._lost[shape]:
            advice = _ADVICE.get(part.kind, _OTHER_ADVICE).format(name=part.name)
            raise DataError(
                f"{where}: the tokenizer's chat template does not write {part.told}, which would be"
                f" lost. {advice}"
            )


def tools_of(messages: Sequence[Message]) -> list[Any] | None:
    """The tools that may be called in a conversation."""
    tools: list[Any] | None = messages[0].fields.get("tools") if messages else None
    return tools


def _mark(number: int) -> str:
    """Text that stands in no template."""
    return f"probe{number}end"


_TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": _mark(-1),
        "parameters": {"type": "object", "properties": {}},
    },
}


def _shape_of(message: Message) -> list[Any]:
    fields = message.fields
    calls = len(fields.get("tool_calls", ()))
    same = len(_thoughts(fields))
    return [message.role, sorted(fields), same, calls, bool(message.content.strip())]


def _thoughts(fields: Json) -> list[str]:
    """The different thoughts of a message; the same one may stand under several names."""
    return [*dict.fromkeys(fields[name] for name in THOUGHTS if name in fields)]


def _probe_of(messages: Sequence[Message]) -> tuple[list[Message], dict[str, _Part]]:
    """Messages of the same shape, and what each mark in them stands for. Of thoughts, those of the
    last message: a template may leave out earlier ones, as the model does not see them either.
    """
    probes, marks = list[Message](), dict[str, _Part]()

    def marked(part: _Part) -> str:
        mark = _mark(len(marks))
        marks[mark] = part
        return mark

    for number, message in enumerate(messages, start=1):
        fields, content = message.fields, message.content
        if content.strip():
            content = marked(_content_of(message, number))
        for call in fields.get("tool_calls", ()):
            part = _Part(f"tool_calls of message {number}", "tool_calls")
            call.get("function", call)["arguments"] = {"word": marked(part)}
        for thought in _thoughts(fields) if number == len(messages) else ():
            names = [name for name in THOUGHTS if fields.get(name) == thought]
            part = _Part(f"{names[0]} of message {number}", "thoughts", names[0])
            fields |= dict.fromkeys(names, marked(part))
        probes.append(replace(message, content=content, extra=json.dumps(fields)))
    return probes, marks


def _content_of(message: Message, number: int) -> _Part:
    return _Part(f"message {number}, of role {message.role}", message.role, message.role)


def _contents_of(messages: Sequence[Message]) -> dict[str, _Part]:
    """What the texts of people and of the model stand for."""
    return {
        message.content.strip(): _content_of(message, number)
        for number, message in enumerate(messages, start=1)
        if message.role != "tool"
    }
