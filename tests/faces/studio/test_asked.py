"""What a page asks is read strictly, and what it left is ended."""

from typing import Any

import pytest
from asked_pages import Page
from fixture_types import Refuses

from brimful.base.errors import RequestError


def test_values_are_texts_or_several() -> None:
    asked = Page(name="  a ", one="x", many=["x", "y"]).asked

    assert (asked.text("name"), asked.text("none")) == ("a", "")
    assert (asked.texts("one"), asked.texts("many"), asked.texts("none")) == (
        ("x",),
        ("x", "y"),
        (),
    )


@pytest.mark.parametrize("value", [3, None, {"a": "b"}, ["x", 3]])
def test_what_no_page_sends_is_refused(value: Any, refuses: Refuses) -> None:
    asked = Page(name=value).asked

    with refuses(RequestError):
        asked.text("name")
    with refuses(RequestError):
        asked.texts("name")


def test_what_stands_there_already_is_not_told_again() -> None:
    page = Page()
    for html in ("a", "a", "b", "a"):
        page.asked.show("place", html)

    assert page.all("place") == ["a", "b", "a"]


def test_leaving_ends_what_is_being_done_and_nothing_else() -> None:
    asked, ended = Page().asked, list[str]()

    with asked.ending(lambda: ended.append("before")):
        pass
    with asked.ending(lambda: ended.append("meanwhile")):
        asked.leave()
    assert ended == ["meanwhile"]
    with asked.ending(lambda: ended.append("too late")):
        assert ended == ["meanwhile", "too late"]
