"""Only runs below the folder can be opened, whatever a request says."""

import json
from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RunFolderError
from brimful.faces.studio.library import Library


def make_run(folder: Path, *, finished: bool = False) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text("name: a\n")
    (folder / "metrics.jsonl").write_text(
        json.dumps({"kind": "start", "step": 0, "total_steps": 8}) + "\n"
    )
    if finished:
        (folder / "model").mkdir()
    return folder


@pytest.fixture
def library(tmp_path: Path) -> Library:
    make_run(tmp_path / "runs" / "one", finished=True)
    make_run(tmp_path / "runs" / "group" / "two")
    make_run(tmp_path / "secret")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "secret")
    return Library(tmp_path / "runs")


def test_runs_are_listed_by_their_names_below_the_folder(library: Library) -> None:
    assert sorted(library.names()) == ["group/two", "one"]
    assert library.finished() == ["one"]
    assert library.path("group/two") == library.folder / "group" / "two"


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "one/../../secret",
        "/etc",
        "",
        ".",
        "group",
        "link",
        "one/model",
        "no",
        "one\0",
        "\ud800",
        "a" * 300,
        "group//../../secret",
    ],
)
def test_nothing_else_is_opened(library: Library, name: str, refuses: Refuses) -> None:
    with refuses(RunFolderError):
        library.path(name)


def test_an_absolute_path_is_not_a_name_even_of_a_run(library: Library, refuses: Refuses) -> None:
    with refuses(RunFolderError):
        library.path(str(library.folder / "one"))


def test_a_folder_that_is_not_there_holds_no_runs(tmp_path: Path) -> None:
    assert Library(tmp_path / "none").names() == []


def test_the_state_changes_with_what_is_written(library: Library) -> None:
    before = library.state("one")
    assert library.state("one") == before
    with (library.folder / "one" / "metrics.jsonl").open("a") as journal:
        journal.write('{"kind": "step", "step": 1}\n')
    assert library.state("one") != before
