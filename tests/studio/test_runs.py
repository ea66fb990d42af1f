"""The tab of runs: what is shown follows what is written; requests for anything else are answered on the page."""

import json
from pathlib import Path

import gradio as gr
import pytest

from brimful.studio.library import Library
from brimful.studio.runs import Runs


def write(folder: Path, steps: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(f"name: {folder.name}\n")
    records = [{"kind": "start", "step": 0, "total_steps": 8}, *({"kind": "step", "step": step, "loss": 5.0} for step in range(1, steps + 1))]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    for name in ("one", "two"):
        write(tmp_path / name, 1)
    return Runs(Library(tmp_path))


def test_a_run_is_drawn_again_only_when_something_was_written(runs: Runs, tmp_path: Path) -> None:
    shown, told, seen = runs.show("one", "Overview")
    assert "1 of 8 steps" in shown
    assert told == ""
    assert runs.again("one", "Overview", seen) == (gr.skip(),) * 3

    write(tmp_path / "one", 3)
    shown, _, later = runs.again("one", "Overview", seen)
    assert "3 of 8 steps" in shown
    assert later != seen
    assert runs.again("one", "Report", seen) == (gr.skip(),) * 3, "a report is left to its reader"


def test_nothing_chosen_is_nothing_shown(runs: Runs) -> None:
    assert runs.show(None, "Overview") == ("", "", "")
    assert runs.again(None, "Overview", "") == (gr.skip(),) * 3
    assert runs.compare(["one"]) == ("", "")


@pytest.mark.parametrize("name", ["../one", "gone", "/etc"])
def test_other_folders_are_refused_on_the_page(runs: Runs, name: str) -> None:
    assert "there is no run" in runs.show(name, "Report")[1]
    assert "there is no run" in runs.again(name, "Overview", "")[1]
    assert "there is no run" in runs.compare([name, "one"])[1]


def test_runs_that_cannot_be_compared_are_told(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "two" / "recipe.yaml").write_text("name: two\nmethod: classify\n")

    shown, told = runs.compare(["one", "two"])

    assert shown == ""
    assert "no score in common" in told


def test_a_new_look_keeps_what_is_chosen_where_it_is_still_there(runs: Runs, tmp_path: Path) -> None:
    write(tmp_path / "three", 1)
    chosen, compared, listed = runs.refresh("two", ["one", "gone"])

    assert set(chosen["choices"]) == {"one", "two", "three"}
    assert chosen["value"] == "two"
    assert compared["value"] == ["one"]
    assert "three" in listed
    assert runs.refresh("gone", None)[0]["value"] in {"one", "two", "three"}
