"""Traces that the tests find stored are those that would be recorded today."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import recorded_steps

from brimful.rehearsal.shipped import TRACES, library_versions
from brimful.rehearsal.store import NO_FAMILY


@pytest.fixture
def about() -> None:
    """Traces are of the installed libraries, and of the present recorder."""
    stored = recorded_steps.read_about()
    if stored["libraries"] != library_versions():
        pytest.skip(f"the stored steps were recorded with {stored['libraries']}")
    assert stored["traces"] == TRACES, "remove the stored steps, and record them: make steps"


KINDS = {
    "pretraining": ["tiny.yaml"],
    "tuning": ["tuned.yaml"],
    "classification": ["sorted.yaml"],
    "pairs": ["tuned.yaml", "method=dpo", "data.path=pairs.jsonl"],
    "rewards": ["tuned.yaml", "method=grpo", "batch.sequences=8", "rewards={max_new_tokens: 6}"],
}
"""By name of a kind of step: the recipe that has it, and overrides."""


@pytest.mark.long_but("bert-classification")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("about", "contacts")
@pytest.mark.usefixtures("recipe_file", "tuning_file", "labels_recipe_file", "pairs_file")
def test_the_first_step_that_a_process_records_is_the_stored_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Modules that load while it is recorded leave nothing in it."""
    monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "brimful", "plan", *KINDS[kind]]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    stored = recorded_steps.read_archive()
    recorded = dict(recorded_steps.found(tmp_path / "cache" / "traces"))

    assert said.returncode == 0, said.stderr
    assert recorded
    same = {name for name, content in recorded.items() if content == stored.get(name)}
    assert recorded.keys() == same
    assert NO_FAMILY not in recorded.values()


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
