"""The verb data."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import Brimful

from brimful.recipe import Recipe

ALONE = """
import sys
from brimful.cli import main
try:
    main()
finally:
    print("torch" if sys.modules.get("torch") else "no torch", file=sys.stderr)
"""


@pytest.fixture
def recipe_of_examples(tuning: Callable[..., Recipe], tmp_path: Path) -> Path:
    """The recipe that `tuning` loads."""
    return tmp_path / "tuned.yaml"


def test_it_is_said_alike_in_a_process_that_imports_no_torch(
    brimful: Brimful, recipe_of_examples: Path
) -> None:
    here = brimful("data", recipe_of_examples, "--json")
    alone = subprocess.run(
        [sys.executable, "-c", ALONE, "data", str(recipe_of_examples), "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert here.code == 0
    assert json.loads(alone.stdout) == json.loads(here.out)
    assert alone.stderr == "no torch\n"


def test_rows_are_shown_and_written_as_a_page(
    brimful: Brimful, recipe_of_examples: Path, tmp_path: Path
) -> None:
    said = brimful("data", recipe_of_examples, "--rows", 2, "--html", tmp_path / "data.html")
    assert said.code == 0
    assert "examples.jsonl:2" in said.out
    assert "examples.jsonl:3" not in said.out
    assert "number 1." in (tmp_path / "data.html").read_text()


def test_what_stops_training_stops_it_too(brimful: Brimful, recipe_of_examples: Path) -> None:
    said = brimful("data", recipe_of_examples, "data.path=nowhere.jsonl")
    assert said.code == 2
    assert "nowhere.jsonl" in said.err


def test_the_learning_rate_is_no_matter_of_data(brimful: Brimful, recipe_of_examples: Path) -> None:
    """`plan` gives advice on it where the batch is changed."""
    said = brimful("data", recipe_of_examples, "batch.sequences=64")
    assert said.code == 0
    assert "B101" not in said.err
