"""The tab that writes: settings are checked, sessions stop only what is theirs, errors stay on the
page.
"""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from fixture_types import Refuses
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.chains import pipeline
from brimful.recipe import Recipe
from brimful.studio.chat import ChatTab, StopSignals, generation_request
from brimful.studio.library import Library


def request(session: str = "a") -> Any:
    return SimpleNamespace(session_hash=session)


@pytest.mark.parametrize(
    ("temperature", "top_p", "tokens", "seed"),
    [
        (None, 1, 10, 0),
        (0.7, 1, 0, 0),
        (0.7, 1, 5000, 0),
        (0.7, 1, 10, -1),
        (-1, 1, 10, 0),
        (0.7, 0, 10, 0),
    ],
)
def test_settings_out_of_range_are_told(
    temperature: Any, top_p: Any, tokens: Any, seed: Any, refuses: Refuses
) -> None:
    with refuses(RequestError):
        generation_request(temperature, top_p, tokens, seed)


def test_settings_are_those_of_the_controls() -> None:
    how = generation_request(0.5, 0.9, 12, 3)

    assert (how.settings.temperature, how.settings.top_p, how.tokens, how.seed, how.count) == (
        0.5,
        0.9,
        12,
        3,
        1,
    )


def test_a_session_stops_its_own_text_alone() -> None:
    stops = StopSignals()
    first, other = stops.begin("a"), stops.begin("b")

    stops.stop("a")
    stops.stop("nobody")
    assert first.is_set()
    assert not other.is_set()
    again = stops.begin("b")
    assert other.is_set(), "a new request of a session ends the one before it"
    assert not again.is_set()


def test_a_text_that_was_dropped_stays_dropped_after_it_was_stopped() -> None:
    stops = StopSignals()
    dropped, kept = stops.begin("a"), stops.begin("b")

    stops.stop("a")
    stops.drop("a", ("emptied",))
    stops.drop("nobody", ("emptied",))
    stops.stop("b")

    assert (dropped.is_set(), dropped.replacement) == (True, ("emptied",))
    assert (kept.is_set(), kept.replacement) == (True, None)


@pytest.fixture
def tuned(tuning: Callable[..., Recipe]) -> Path:
    """A run that was tuned in one step."""
    return pipeline.train(tuning("training.steps=1"), Console(quiet=True)).folder


def test_starting_over_while_a_text_is_written_leaves_nothing_of_it(tuned: Path) -> None:
    chat = ChatTab(Library(tuned.parent))
    asked = (tuned.name, "Say red twice.", (), False, 0.0, 1.0, 8, 0)
    left, other = chat.send(*asked, request("a")), chat.send(*asked, request("b"))
    assert "caret" in next(left)[0]

    emptied, turns, problem, _ = chat.chosen(tuned.name, request("a"))
    assert [*left] == [(emptied, (), "", gr.skip())], (
        "a piece of the old text that was on its way is replaced by the emptied conversation"
    )
    assert (turns, problem) == ((), "")

    shown, turns, _, _ = [*other][-1]
    assert [turn.prompt for turn in turns] == ["Say red twice."], "another session's text goes on"
    assert "caret" not in shown


@pytest.mark.parametrize(
    ("name", "told"),
    [(None, "choose a run first"), ("../secret", "there is no run"), ("gone", "there is no run")],
)
def test_what_cannot_be_served_is_told_on_the_page(
    tmp_path: Any, name: str | None, told: str
) -> None:
    chat = ChatTab(Library(tmp_path))

    (answer,) = chat.send(name, "a", (), False, 0.7, 1.0, 10, 0, request())

    assert told in answer[2]
    assert answer[1] == ()


def test_a_run_that_cannot_be_loaded_is_told_and_nothing_seems_to_be_written(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken" / "model").mkdir(parents=True)
    (tmp_path / "broken" / "recipe.yaml").write_text("name: broken\n")
    begun, ended = ChatTab(Library(tmp_path)).send(
        "broken", "a", (), False, 0.7, 1.0, 10, 0, request()
    )

    assert "caret" in begun[0]
    assert "caret" not in ended[0]
    assert "problem" in ended[2]


def test_without_runs_the_tab_says_how_to_make_one(
    tmp_path: Any, snapshot: SnapshotAssertion
) -> None:
    choices, note = ChatTab(Library(tmp_path)).begin(None)

    assert choices["choices"] == []
    assert note == snapshot


def test_a_run_that_is_gone_is_told_when_it_is_chosen(
    tmp_path: Any, snapshot: SnapshotAssertion
) -> None:
    shown, turns, told, _ = ChatTab(Library(tmp_path)).chosen("gone", request())

    assert (shown, turns) == ("", ())
    assert told == snapshot
