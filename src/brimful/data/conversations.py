"""Messages of a conversation as rows hold them: roles of several conventions, content as text or in
parts, calls of tools, thoughts, flags of what is learned.

Conventions: OpenAI's and transformers' (`role`, `content`, `tool_calls`), ShareGPT's (`from`,
`value`, with `function_call` and `observation`), read 2026-11-23; flags and thoughts 2026-11-27.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

from brimful.base.discover import did_you_mean
from brimful.base.errors import DataError
from brimful.base.strict_json import load_json
from brimful.base.types import Json, JsonDict
from brimful.data.account import Intake
from brimful.data.rows import short, text_of

Role = Literal["system", "developer", "user", "assistant", "tool"]
_CALL = "function_call"
_ROLES: Mapping[str, Role] = MappingProxyType(
    {
        "system": "system",
        "developer": "developer",
        "user": "user",
        "human": "user",
        "assistant": "assistant",
        "gpt": "assistant",
        "model": "assistant",
        "tool": "tool",
        "function": "tool",
        "observation": "tool",
        "ipython": "tool",
        _CALL: "assistant",
    }
)
"""What each name of a role stands for."""
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Names of an answer's thoughts: of DeepSeek, Qwen and most others, of vLLM, of gpt-oss."""
_OF_ROLES: Mapping[Role, tuple[str, ...]] = MappingProxyType(
    {
        "system": (),
        "developer": (),
        "user": (),
        "assistant": ("tool_calls", *THOUGHTS),
        "tool": ("tool_call_id", "name"),
    }
)
"""Further fields of a message that chat templates read."""
_FLAGS: Mapping[str, bool] = MappingProxyType(
    {
        "weight": True,
        "loss": True,
        "train": True,
        "training": True,
        "learn": True,
        "trainable": True,
        "masked": False,
    }
)
"""Fields that say whether a message is learned, and the value that says it is: of OpenAI, ms-swift,
Axolotl (train, training, learn), Tinker and torchtune.
"""
_FLAGS_OF_PARTS = ("train_detail", "training_detail")
"""Axolotl's, of characters of a message."""

_TEXT_PARTS = {"text", "input_text", "output_text"}


@dataclass(frozen=True)
class Message:
    """One turn of a conversation.

    Attributes:
        extra: JSON object of what a chat template is given beside role and content: `tool_calls`
            of an assistant, `tool_call_id` and `name` of a tool's answer, and on the first message
            `tools`, the tools that may be called; of an answer its thoughts, under one of the
            names in `THOUGHTS`. Empty: nothing.
        is_learned: of an answer: whether it is learned, not only read.
    """

    role: Role
    content: str
    extra: str = ""
    is_learned: bool = True

    @property
    def is_learned_answer(self) -> bool:
        """Whether it is an answer, and learned."""
        return self.role == "assistant" and self.is_learned

    @property
    def fields(self) -> JsonDict:
        """`extra` as a dictionary."""
        fields: JsonDict = json.loads(self.extra or "{}")
        return fields

    def to_json(self) -> JsonDict:
        """As a row holds it, without the tools of the conversation."""
        fields = {name: value for name, value in self.fields.items() if name != "tools"}
        return {"role": self.role, "content": self.content, **fields}


def is_answer(turn: Json) -> bool:
    """Whether a message of a row is the assistant's."""
    return _ROLES.get(str(turn.get("role", turn.get("from")))) == "assistant"


def only_read(messages: tuple[Message, ...], count: int) -> tuple[Message, ...]:
    """The messages, of the first `count` of which no answer is learned."""
    return tuple(
        replace(message, is_learned=False)
        if number < count and message.role == "assistant"
        else message
        for number, message in enumerate(messages)
    )


def with_tools(messages: tuple[Message, ...], tools: object, where: str) -> tuple[Message, ...]:
    """The messages with a row's `tools` on the first one.

    Args:
        messages: Not empty where there are tools.
        tools: A list of objects, or that as JSON; None or empty: there are none.

    Raises:
        DataError: it is something else.
    """
    if isinstance(tools, str):
        try:
            tools = load_json(tools.strip() or "[]")
        except ValueError as error:
            raise DataError(f"{where}: 'tools' is not valid JSON: {error}.") from error
    if not tools or not messages:
        return messages
    if not (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools)):
        raise DataError(
            f"{where}: 'tools' must be a list of objects that describe functions, or that as JSON."
            " Correct the row, or remove the column."
        )
    fields = {**messages[0].fields, "tools": _without_none(tools)}
    return (replace(messages[0], extra=json.dumps(fields)), *messages[1:])


def conversation(
    turns: object, where: str, keys: tuple[str, str], intake: Intake, given: int = 0
) -> tuple[Message, ...]:
    """All messages of a row; the last one is the assistant's.

    Args:
        turns: A list of objects.
        where: The row, for errors.
        keys: The usual fields of the role and of the content, for errors.
        intake: what is left out, and the account of what is not learned.
        given: so many of the first messages are context only: answers among them are not learned.

    Raises:
        DataError: it is no such list, a role is unknown, a part is no text, or the last message is
            not an answer.
    """
    if not isinstance(turns, list):
        raise DataError(
            f"{where}: expected a list of messages with {keys[0]!r} and {keys[1]!r}, found"
            f" {type(turns).__name__}."
        )
    read = [
        _message(turn, f"{where}, message {number}", keys, intake)
        for number, turn in enumerate(turns, start=1)
    ]
    messages = only_read(tuple(read), given)
    messages = tuple(message for message in messages if message.role not in intake.leave_out)
    if len(messages) < len(read):
        left_out = sorted({message.role for message in read} & intake.leave_out)
        intake.account.add("left_out", where, *left_out)
    if not any(message.role == "assistant" for message in messages):
        raise DataError(
            f"{where}: no message is the assistant's, so there is no answer to learn. Correct or"
            " remove the row."
        )
    if messages[-1].role != "assistant":
        raise DataError(
            f"{where}: the last message is the {messages[-1].role}'s, but an example must end with"
            " the assistant's answer. Remove it."
        )
    return messages


def _message(turn: object, where: str, keys: tuple[str, str], intake: Intake) -> Message:
    if not isinstance(turn, dict):
        raise DataError(
            f"{where}: expected an object with {keys[0]!r} and {keys[1]!r}, found"
            f" {type(turn).__name__}."
        )
    turn = intake.kept(turn, where)
    role_key, content_key = _keys_of(turn, where, keys)
    name = text_of(turn, role_key, where)
    if name not in _ROLES:
        raise DataError(
            f"{where}: unknown {role_key} {name!r}{did_you_mean(name, _ROLES)} Known:"
            f" {', '.join(_ROLES)}."
        )
    role = _ROLES[name]
    is_learned = _is_learned(turn, role, where, intake)
    fields = {key: turn[key] for key in _OF_ROLES[role] if turn.get(key)}
    known = {role_key, content_key, *fields, *_FLAGS}
    if unread := [key for key, value in turn.items() if key not in known and value]:
        intake.account.add("fields", where, *unread)
    if name == _CALL:
        fields["tool_calls"] = _sharegpt_calls(turn, where)
        return Message(role, "", json.dumps(fields), is_learned)
    if "tool_calls" in fields:
        fields["tool_calls"] = _calls(fields["tool_calls"], where)
    for key in fields.keys() & THOUGHTS:
        fields[key] = text_of(fields, key, f"{where}")
    content = turn.get(content_key)
    if content is not None or "tool_calls" not in fields:
        content = _text_of_content(turn, content_key, where)
    return Message(role, content or "", json.dumps(fields) if fields else "", is_learned)


def _is_learned(turn: Json, role: Role, where: str, intake: Intake) -> bool:
    """Whether no flag of a message says that it is not learned.

    Raises:
        DataError: a flag that is neither on nor off, or that cannot be kept.
    """
    for name in _FLAGS_OF_PARTS:
        if turn.get(name):
            raise DataError(
                f"{where}: {name!r} says which characters are learned, but brimful learns an answer"
                f" as a whole. Remove it, or ignore it with data.leave_out='[{name}]'."
            )
    flags = [name for name in _FLAGS if turn.get(name) is not None]
    for name in flags:
        if not isinstance(turn[name], int | float) or turn[name] not in {0, 1}:
            raise DataError(
                f"{where}: {name!r} is {short(turn[name])}, but brimful learns an answer or does"
                " not: it must be 0 or 1, or false or true. Correct the row, or ignore the field"
                f" with data.leave_out='[{name}]'."
            )
    off = [name for name in flags if bool(turn[name]) is not _FLAGS[name]]
    if off and intake.learns_all:
        raise DataError(
            f"{where}: {off[0]!r} says that it is not learned, but data.loss_on=all learns every"
            " token. Use data.loss_on=completion, or ignore the field with"
            f" data.leave_out='[{off[0]}]'."
        )
    if off and role == "assistant":
        intake.account.add("flagged", where, *off)
    if flags and not off and role != "assistant" and not intake.learns_all:
        intake.account.add("no_answers", where, *flags)
    return not off


def _keys_of(turn: Json, where: str, keys: tuple[str, str]) -> tuple[str, str]:
    for role_key, content_key in (keys, ("role", "content"), ("from", "value")):
        has_content = content_key in turn or turn.get("tool_calls")
        if role_key in turn and has_content:
            return role_key, content_key
    raise DataError(
        f"{where}: expected {keys[0]!r} and {keys[1]!r}, found {', '.join(map(repr, turn))}."
    )


def _text_of_content(turn: Json, key: str, where: str) -> str:
    """The text of a message; parts are joined."""
    content = turn[key]
    if not isinstance(content, list):
        return text_of(turn, key, where)
    texts = []
    for number, part in enumerate(content, start=1):
        place = f"{where}, part {number}"
        if isinstance(part, str):
            part = {"type": "text", "text": part}  # noqa: PLW2901 - the same part
        kind = part.get("type", "text") if isinstance(part, dict) else type(part).__name__
        if kind not in _TEXT_PARTS:
            raise DataError(
                f"{place} is of type {kind!r}: brimful trains on text and reads no images, sound or"
                " files. Remove the row, or this part of it."
            )
        if "text" not in part:
            raise DataError(f"{place} has no text. Correct or remove the row.")
        texts.append(text_of(part, "text", place))
    return "".join(texts)


def _calls(calls: object, where: str) -> list[Any]:
    """Calls of tools; arguments that are written as JSON become values, as chat templates expect
    them.
    """
    if not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise DataError(f"{where}: 'tool_calls' must be a list of objects. Correct the row.")
    found: list[Any] = _without_none(calls)
    for call in found:
        function = call.get("function", call)
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _value_of(function["arguments"])
    return found


def _sharegpt_calls(turn: Json, where: str) -> list[Any]:
    """The calls in a message from `function_call`: JSON of name and arguments, one or a list."""
    content = next(str(turn[key]) for key in ("value", "content") if key in turn)
    calls = _value_of(content)
    if isinstance(calls, dict):
        calls = [calls]
    if not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
        raise DataError(
            f"{where}: a {_CALL} must be JSON with 'name' and 'arguments'. Correct the row."
        )
    return _calls([{"type": "function", "function": call} for call in calls], where)


def _value_of(text: str) -> Any:
    """A JSON value, or the text where it is none."""
    try:
        return load_json(text)
    except ValueError:
        return text


def _without_none(value: Any) -> Any:
    """A JSON value without fields that are None: columnar files give every object all fields."""
    if isinstance(value, list):
        return [_without_none(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_none(one) for key, one in value.items() if one is not None}
    return value
