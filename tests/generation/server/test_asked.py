"""Fields of requests: those that are heeded, and one sentence about every other."""

import json
from typing import Any

import pytest
from fixture_types import Refuses

from brimful.base.errors import RequestError
from brimful.data.formats import Message
from brimful.generation.sampler import SamplingSettings
from brimful.generation.server.asked import NEUTRAL, Asked, ChatAsked, TextAsked

TEXT: dict[str, Any] = {"model": "m", "prompt": "the cat"}
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def read(kind: type[Asked], fields: dict[str, Any]) -> Asked:
    return kind.read(json.dumps(fields).encode())


@pytest.mark.parametrize(("kind", "fields"), [(TextAsked, TEXT), (ChatAsked, CHAT)])
def test_what_asks_for_nothing_is_taken(kind: type[Asked], fields: dict[str, Any]) -> None:
    usual = read(kind, fields)
    assert usual.settings == SamplingSettings(1.0, None, 1.0)
    assert usual.stops == ()
    assert not usual.wants_logprobs
    for name, values in NEUTRAL.items():
        for value in (None, *values):
            assert read(kind, {**fields, name: value}) == usual


def test_settings_are_those_that_are_asked_for() -> None:
    asked = read(
        TextAsked, {**TEXT, "temperature": 0, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "stop": "x"}
    )
    assert asked.settings == SamplingSettings(0.0, 3, 0.5, 0.1)
    assert asked.stops == ("x",)


def test_parts_of_a_message_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = ChatAsked.read(
        json.dumps({"model": "m", "messages": [{"role": "system", "content": parts}]}).encode()
    )
    assert [turn.message for turn in asked.messages] == [Message("system", "ab")]


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": -1},
        {"max_tokens": True},
        {"temperature": float("nan")},
        {"temperature": 3, "seed": 1e99},
        {"top_p": 0},
        {"n": 65},
        {"stop": ""},
        {"stop": ["a"] * 17},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": {"a": 1}},
        {"prompt": "\ud800"},
        {"logprobs": 5},
        {"presence_penalty": 1},
        {"tools": [{"type": "function"}]},
        {"chat_template_kwargs": {"chat_template": "{% for a in b %}"}},
        {"model": None},
    ],
)
def test_what_is_not_heeded_is_refused_by_name(fields: dict[str, Any], refuses: Refuses) -> None:
    with refuses(RequestError):
        read(TextAsked, {**TEXT, **fields})


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///"}}]},
        {"role": "user", "content": "x", "tool_calls": []},
    ],
)
def test_messages_of_other_kinds_are_refused(message: dict[str, Any], refuses: Refuses) -> None:
    with refuses(RequestError):
        read(ChatAsked, {**CHAT, "messages": [message]})


@pytest.mark.parametrize("body", [b"", b"\xff", b"[1]", b"[" * 100_000, b'{"n":' + b"9" * 5000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match="no JSON"):
        TextAsked.read(body)


def test_an_error_does_not_repeat_a_long_value() -> None:
    with pytest.raises(RequestError) as error:
        read(TextAsked, {**TEXT, "stop": "x" * 100_000})
    assert len(str(error.value)) <= 2000
