"""The tab of runs: what is shown follows what is written; requests for anything else are answered
on the page.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from syrupy.assertion import SnapshotAssertion

from brimful.studio.library import Library
from brimful.studio.run_view import run_view
from brimful.studio.runs import VIEWS, As, RunsTab


def request(session: str = "a") -> Any:
    return SimpleNamespace(session_hash=session)


def write(folder: Path, steps: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(f"name: {folder.name}\n")
    records = [
        {"kind": "start", "step": 0, "total_steps": 8},
        *({"kind": "step", "step": step, "loss": 5.0} for step in range(1, steps + 1)),
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def runs(tmp_path: Path) -> RunsTab:
    for name in ("one", "two"):
        write(tmp_path / name, 1)
    return RunsTab(Library(tmp_path))


def test_a_run_is_drawn_again_only_when_something_was_written(
    runs: RunsTab, tmp_path: Path
) -> None:
    shown, told, seen = runs.show("one", "Overview", request())
    assert "1 of 8 steps" in shown
    assert told == ""
    assert runs.again("one", "Overview", seen, request()) == (gr.skip(),) * 3

    write(tmp_path / "one", 3)
    shown, _, later = runs.again("one", "Overview", seen, request())
    assert "3 of 8 steps" in shown
    assert later != seen
    assert runs.again("one", "Report", seen, request()) == (gr.skip(),) * 3, (
        "a report is left to its reader"
    )


def test_an_error_is_told_once_until_something_is_written(
    runs: RunsTab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def fail(folder: Path) -> str:
        raise ZeroDivisionError(folder.name)

    monkeypatch.setitem(VIEWS, "Overview", fail)
    _, told, seen = runs.show("one", "Overview", request())

    assert "ZeroDivisionError: one" in told
    assert runs.again("one", "Overview", seen, request()) == (gr.skip(),) * 3
    assert capsys.readouterr().err.count("Traceback") == 1
    write(tmp_path / "one", 2)
    assert "ZeroDivisionError" in runs.again("one", "Overview", seen, request())[1]


def test_a_run_that_vanishes_is_told_once_and_stays_drawn(
    runs: RunsTab, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    _, _, seen = runs.show("one", "Overview", request())
    (tmp_path / "one").rename(tmp_path / "elsewhere")

    shown, told, seen = runs.again("one", "Overview", seen, request())

    assert shown == gr.skip()
    assert told == snapshot
    assert runs.again("one", "Overview", seen, request()) == (gr.skip(),) * 3


@pytest.mark.parametrize("later", [("two", "Overview"), ("one", "Report"), (None, "Overview")])
def test_a_look_that_ends_after_something_else_was_chosen_is_dropped(
    runs: RunsTab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later: tuple[str | None, As]
) -> None:
    def slow(folder: Path) -> str:
        monkeypatch.undo()
        runs.show(*later, request())
        return run_view(folder)

    _, _, seen = runs.show("one", "Overview", request())
    write(tmp_path / "one", 3)
    monkeypatch.setitem(VIEWS, "Overview", slow)

    assert runs.again("one", "Overview", seen, request()) == (gr.skip(),) * 3
    runs.leave(request())
    runs.show(*later, request("b"))
    assert "3 of 8 steps" in runs.again("one", "Overview", seen, request())[0], (
        "what another session chose is its own"
    )


def test_nothing_chosen_is_nothing_shown(runs: RunsTab) -> None:
    assert runs.show(None, "Overview", request()) == ("", "", "")
    assert runs.again(None, "Overview", "", request()) == (gr.skip(),) * 3
    assert runs.compare(["one"]) == ("", "")


@pytest.mark.parametrize("name", ["../one", "gone", "/etc"])
def test_other_folders_are_refused_on_the_page(
    runs: RunsTab, name: str, snapshot: SnapshotAssertion
) -> None:
    assert runs.show(name, "Report", request())[1] == snapshot
    assert runs.again(name, "Overview", "", request("b"))[1] == snapshot
    assert runs.compare([name, "one"])[1] == snapshot


def test_runs_that_cannot_be_compared_are_told(
    runs: RunsTab, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "two" / "recipe.yaml").write_text("name: two\nmethod: classify\n")

    shown, told = runs.compare(["one", "two"])

    assert shown == ""
    assert told == snapshot


def test_a_new_look_keeps_what_is_chosen_where_it_is_still_there(
    runs: RunsTab, tmp_path: Path
) -> None:
    write(tmp_path / "three", 1)
    chosen, compared, listed = runs.refresh("two", ["one", "gone"])

    assert set(chosen["choices"]) == {"one", "two", "three"}
    assert chosen["value"] == "two"
    assert compared["value"] == ["one"]
    assert "three" in listed
    assert runs.refresh("gone", None)[0]["value"] in {"one", "two", "three"}
