"""The tab that writes: settings are checked, a page stops only what is its own, errors leave the
conversation as it was.
"""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from asked_pages import Page
from fixture_types import MakeRecipe, Refuses
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import BrimfulError, RequestError
from brimful.chains import pipeline
from brimful.faces.studio.chat import ChatActs, generation_request, turns_of
from brimful.faces.studio.library import Library

NUMBERS = {"temperature": "0", "top_p": "1", "tokens": "8", "seed": "0"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": ""},
        {"tokens": "0"},
        {"tokens": "5000"},
        {"tokens": "1.5"},
        {"seed": "-1"},
        {"temperature": "-1"},
        {"temperature": "nan"},
        {"top_p": "0"},
    ],
)
def test_settings_out_of_range_are_told(wrong: dict[str, str], refuses: Refuses) -> None:
    with refuses(RequestError):
        generation_request(Page(**NUMBERS | wrong).asked)


def test_settings_are_those_of_the_controls() -> None:
    asked = Page(temperature="0.5", top_p="0.9", tokens="12", seed="3").asked
    how = generation_request(asked)

    assert (how.settings.temperature, how.settings.top_p) == (0.5, 0.9)
    assert (how.tokens, how.seed, how.count) == (12, 3, 1)


@pytest.mark.parametrize("text", ["{", "[1]", '[{"prompt": 1}]', '{"prompt": "a"}', "null"])
def test_a_conversation_that_is_none_is_told(text: str, refuses: Refuses) -> None:
    with refuses(RequestError):
        turns_of(text)


@pytest.fixture
def tuned(tuning: MakeRecipe) -> Path:
    """A run that was tuned in one step."""
    return pipeline.train(tuning("training.steps=1"), Console(quiet=True)).folder


def page_of(run: Path, **values: Any) -> Page:
    return Page(talker=run.name, prompt="Say red twice.", **NUMBERS | values)


def test_a_conversation_goes_on_beside_the_base_with_the_command_that_repeats_it(
    tuned: Path,
) -> None:
    chat = ChatActs(Library(tuned.parent))
    page = page_of(tuned, beside="yes").after(chat.write)
    turns = turns_of(page.has("try-turns"))

    assert [turn.prompt for turn in turns] == ["Say red twice."]
    assert {*turns[0].texts} == {"base", "run"}
    assert "caret" in page.all("try-text")[0]
    assert "caret" not in page.has("try-text")
    assert "--seed 0 --beside-base" in page.has("try-text")
    assert page.all("try-prompt") == [""]
    again = page_of(tuned, turns=page.has("try-turns")).after(chat.write)
    assert [*map(len, (turns, turns_of(again.has("try-turns"))))] == [1, 2]


def test_a_page_stops_its_own_text_alone_and_keeps_what_is_written(
    tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ChatActs(Library(tuned.parent))
    begun, goes_on = threading.Event(), threading.Event()
    load = chat._models._load

    def slow(*asked: Any) -> Any:
        begun.set()
        goes_on.wait()
        return load(*asked)

    monkeypatch.setattr(chat._models, "_load", slow)
    page = page_of(tuned, page="a")
    writes = threading.Thread(target=chat.write, args=[page.asked])
    writes.start()
    begun.wait()
    Page(page="b").after(chat.stop)
    assert not chat._writing["a"].is_set()
    Page(page="a").after(chat.stop)
    goes_on.set()
    writes.join()

    assert "stopped" in page.has("try-text")
    assert turns_of(page.has("try-turns"))[0].remarks == {"run": ("--- stopped",)}


@pytest.mark.parametrize(
    ("name", "told"),
    [("", "choose a run first"), ("../secret", "there is no run"), ("gone", "there is no run")],
)
def test_what_cannot_be_served_is_told(tmp_path: Path, name: str, told: str) -> None:
    page = Page(talker=name, prompt="a", **NUMBERS)
    with pytest.raises(BrimfulError, match=told):
        ChatActs(Library(tmp_path)).write(page.asked)
    assert page.told == []


def test_a_text_that_is_too_long_is_told(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RequestError):
        ChatActs(Library(tmp_path)).write(Page(talker="a", prompt="x" * 20_001, **NUMBERS).asked)


def test_a_run_that_cannot_be_loaded_leaves_the_conversation_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "broken" / "model").mkdir(parents=True)
    (tmp_path / "broken" / "recipe.yaml").write_text("name: broken\n")
    turns = json.dumps([{"prompt": "before", "texts": {"run": "then"}, "remarks": {}}])
    page = page_of(tmp_path / "broken", turns=turns)
    with pytest.raises(BrimfulError):
        ChatActs(Library(tmp_path)).write(page.asked)

    assert "caret" in page.all("try-text")[0]
    assert "caret" not in page.has("try-text")
    assert "before" in page.has("try-text")


def test_without_runs_the_tab_says_how_to_make_one(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    page = Page().after(ChatActs(Library(tmp_path)).begin)

    assert page.has("try-notes") == snapshot
    assert "none yet" in page.has("try-run")
    assert Page().after(ChatActs(Library(tmp_path)).open).has("try-text") == ""


def test_a_run_is_opened_with_an_empty_conversation(tuned: Path, refuses: Refuses) -> None:
    chat = ChatActs(Library(tuned.parent))
    page = Page(talker=tuned.name).after(chat.begin).after(chat.open)

    assert f"<option selected>{tuned.name}" in page.has("try-run")
    assert "checkbox" in page.has("try-beside")
    assert "Type a message" in page.has("try-text")
    assert page.all("try-turns") == [""]
    with refuses(BrimfulError):
        chat.open(Page(talker="gone").asked)
