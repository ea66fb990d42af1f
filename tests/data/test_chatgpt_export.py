"""Conversations as ChatGPT exports them."""

from collections.abc import Callable

import pytest
from fixture_types import Refuses

from brimful.base.errors import DataError
from brimful.base.types import JsonDict
from brimful.data.account import Account
from brimful.data.chatgpt_export import shown_branch
from brimful.data.formats import Message, examples_of
from brimful.data.rows import Row
from brimful.recipe import DataRecipe


def exported(kind: str = "text") -> JsonDict:
    """A conversation as ChatGPT exports it, whose answer was asked for twice."""

    def node(parent: str | None, role: str, text: str, kind: str = "text") -> JsonDict:
        content = {"content_type": kind, "parts": [text]}
        return {"parent": parent, "message": {"author": {"role": role}, "content": content}}

    return {
        "title": "A chat",
        "current_node": "again",
        "mapping": {
            "root": {"parent": None, "message": None},
            "system": node("root", "system", ""),
            "asked": node("system", "user", "Hi"),
            "first": node("asked", "assistant", "left"),
            "again": node("asked", "assistant", "right", kind),
        },
    }


def test_a_chatgpt_export_is_read_along_its_current_branch(
    data_recipe: Callable[..., DataRecipe],
) -> None:
    (example,) = examples_of([Row(exported(), "row 1")], data_recipe("x"))
    assert (example.prompt, example.completion) == ((Message("user", "Hi"),), "right")


def test_a_chatgpt_message_that_is_no_text_is_refused_or_left_out(
    data_recipe: Callable[..., DataRecipe], refuses: Refuses
) -> None:
    """The advice of the error works."""
    rows = [
        *(Row(exported(), f"row {number}") for number in range(19)),
        Row(exported("code"), "row 19"),
    ]
    with refuses(DataError, names=["row 19", "'code'", "data.bad_rows=drop"]):
        list(examples_of(rows, data_recipe("x"), Account()))
    account = Account()
    assert len([*examples_of(rows, data_recipe("x", bad_rows="drop"), account)]) == 19
    assert [bad.where for bad in account.bad_rows] == ["row 19"]


@pytest.mark.parametrize(
    "broken", [{"again": None}, {"asked": {"parent": "lost"}}, {"asked": {"message": {}}}]
)
def test_a_tree_that_is_not_whole_is_refused(broken: JsonDict) -> None:
    """A message or its parent is missing, or is no message."""
    with pytest.raises(DataError, match="not whole"):
        shown_branch(exported()["mapping"] | broken, "again", "row 1")
