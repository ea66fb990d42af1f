"""A run is found by its name or its path."""

from pathlib import Path

import pytest
from fixture_types import Refuses

from brimful.base.errors import RunFolderError
from brimful.runs.files import RECIPE_FILE, STATUS_FILE
from brimful.runs.named import is_run, resolve_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two runs."""
    for name in ("quickstart", "shakespeare"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / RECIPE_FILE).write_text(f"name: {name}\n")
    return tmp_path / "runs"


def test_a_run_is_found_by_its_name_or_its_path(runs: Path) -> None:
    folder = runs / "quickstart"
    assert resolve_run("quickstart", runs) == folder
    assert resolve_run(str(folder), runs / "elsewhere") == folder


def test_a_run_whose_recipe_is_lost_is_a_run(runs: Path) -> None:
    (runs / "quickstart" / RECIPE_FILE).rename(runs / "quickstart" / STATUS_FILE)
    assert is_run(runs / "quickstart")
    assert not is_run(runs)


def test_a_mistyped_name_is_answered_with_the_nearest_run(runs: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError, names=["'quickstart'"]):
        resolve_run("quikstart", runs)


def test_a_missing_runs_folder_says_how_to_make_a_run(tmp_path: Path, refuses: Refuses) -> None:
    with refuses(RunFolderError):
        resolve_run("quickstart", tmp_path / "runs")


def test_a_folder_without_a_recipe_is_not_taken_for_a_run(runs: Path, refuses: Refuses) -> None:
    (runs / "notes").mkdir()
    with refuses(RunFolderError):
        resolve_run("notes", runs)
