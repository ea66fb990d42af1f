"""Messages as the rows of several conventions hold them."""

import json

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.account import Intake
from brimful.data.conversations import Message, conversation, with_tools

KEYS = ("role", "content")
ANSWER = {"role": "assistant", "content": "x"}


def messages(*turns: JsonDict) -> tuple[Message, ...]:
    return conversation([*turns, ANSWER], "row 1", KEYS, Intake())[:-1]


def test_roles_of_every_convention_are_understood() -> None:
    """Under either pair of keys."""
    given = {
        "developer": "developer",
        "human": "user",
        "gpt": "assistant",
        "function": "tool",
        "observation": "tool",
    }
    for name, role in given.items():
        for turn in ({"role": name, "content": "c"}, {"from": name, "value": "c"}):
            assert messages(turn) == (Message(role, "c"),)  # type: ignore[arg-type]


def test_text_in_parts_is_joined() -> None:
    """Columnar files give every part all fields."""
    parts = ["a", {"type": "text", "text": "b", "image": None}, {"text": "c"}]
    assert messages({"role": "user", "content": parts}) == (Message("user", "abc"),)


@pytest.mark.parametrize(
    "part", [{"type": "image"}, {"type": "image_url", "image_url": {}}, {"type": "input_audio"}]
)
def test_parts_that_are_no_text_are_refused_by_name(part: JsonDict, refuses: Refuses) -> None:
    """With the message and the part."""
    with refuses(DataError, names=["row 1", str(part["type"])]):
        messages({"role": "user", "content": ["look", part]})


def test_calls_of_tools_are_kept_for_the_chat_template() -> None:
    """Their arguments become values; a call needs no content; None is left out."""
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}, "other": None}
    result = {"role": "tool", "content": "7", "tool_call_id": "1", "name": "f"}
    called, answered = messages(
        {"role": "assistant", "content": None, "tool_calls": [call]}, {**result, "tool_calls": None}
    )
    assert called.content == ""
    assert called.fields == {
        "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}]
    }
    assert answered.to_json() == result
    (named,) = messages({"role": "user", "content": "c", "name": "Ann", "tool_calls": []})
    assert named == Message("user", "c")


def test_calls_of_sharegpt_become_the_same(refuses: Refuses) -> None:
    """One, or a list of them."""
    text = json.dumps({"name": "f", "arguments": {"a": 1}})
    for value in (text, f"[{text}]"):
        (called,) = messages({"from": "function_call", "value": value})
        assert called.fields["tool_calls"] == [
            {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
        ]
    with refuses(DataError, names=["'name'", "'arguments'"]):
        messages({"from": "function_call", "value": "f(1)"})


def test_the_tools_of_a_row_go_with_its_first_message() -> None:
    """As a list or as JSON; none is none."""
    user = Message("user", "c")
    tools = [{"type": "function", "function": {"name": "f", "strict": None}}]
    for given in (tools, json.dumps(tools)):
        (told,) = with_tools((user,), given, "row 1")
        assert told.fields == {"tools": [{"type": "function", "function": {"name": "f"}}]}
        assert told.to_json() == {"role": "user", "content": "c"}
    for nothing in (None, [], "", " "):
        assert with_tools((user,), nothing, "row 1") == (user,)
    for wrong in ("{", [1], {"a": 1}):
        with pytest.raises(DataError, match="row 1: 'tools'"):
            with_tools((user,), wrong, "row 1")
