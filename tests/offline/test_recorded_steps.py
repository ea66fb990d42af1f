"""Traces that the tests find stored are those that would be recorded today."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import recorded_steps

from brimful.chains import plans
from brimful.recipe import Recipe, load
from brimful.rehearsal.shipped import TRACES, library_versions


@pytest.fixture
def about() -> None:
    """Traces are of the installed libraries, and of the present recorder."""
    stored = recorded_steps.read_about()
    if stored["libraries"] != library_versions():
        pytest.skip(f"the stored steps were recorded with {stored['libraries']}")
    assert stored["traces"] == TRACES, "remove the stored steps, and record them: make steps"


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without any trace; returns the folder of its traces."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "traces"


def _same_as_stored(folder: Path) -> int:
    """How many traces of a folder are stored, each to the byte."""
    stored, recorded = recorded_steps.read_archive(), dict(recorded_steps.found(folder))
    for name, content in recorded.items():
        assert stored[name] == content
    return len(recorded)


@pytest.mark.usefixtures("about")
def test_the_stored_steps_of_a_small_model_are_those_that_are_recorded_today(
    tiny: Callable[..., Recipe], empty: Path
) -> None:
    plans.survey(tiny())

    assert _same_as_stored(empty) > 0


@pytest.mark.usefixtures("about")
def test_the_stored_steps_of_a_tuning_are_those_that_are_recorded_today(
    tuning: Callable[..., Recipe], empty: Path
) -> None:
    plans.survey(tuning())

    assert _same_as_stored(empty) > 0


@pytest.mark.usefixtures("about")
def test_the_stored_steps_of_a_classifier_are_those_that_are_recorded_today(
    labels_recipe_file: Path, empty: Path
) -> None:
    plans.survey(load(str(labels_recipe_file), []))

    assert _same_as_stored(empty) > 0


@pytest.mark.usefixtures("about")
def test_what_is_stored_is_found_again_and_nothing_of_other_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "steps.zip"
    shutil.copy(recorded_steps.ARCHIVE, archive)
    monkeypatch.setattr(recorded_steps, "ARCHIVE", archive)
    before = recorded_steps.read_archive()
    assert before

    recorded_steps.fill(tmp_path / "kept")
    archive.unlink()
    recorded_steps.store(tmp_path / "kept")

    assert recorded_steps.read_archive() == before
    monkeypatch.setattr(recorded_steps, "library_versions", lambda: {"torch": "1.0"})
    assert recorded_steps.read_archive() == {}
