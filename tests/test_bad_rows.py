"""Rows that cannot be learned: they stop a run, or are left out, counted and listed."""

import io
import json
from pathlib import Path

import pytest
from fixture_types import MakeRecipe, Refuses
from rich.console import Console

from brimful.base.errors import DataError
from brimful.chains import pipeline
from brimful.recipe import Recipe

FEW = ("training.steps=2", "evaluation.max_examples=4")


def train(recipe: Recipe) -> tuple[Path, str]:
    told = io.StringIO()
    pipeline.train(recipe, Console(file=told, width=200), explain=True)
    return pipeline.folder_of(recipe), told.getvalue()


@pytest.fixture
def with_bad_rows(examples_file: Path) -> Path:
    """The examples, two of them bad: without an answer, and with an empty one."""
    lines = examples_file.read_text().splitlines()
    lines[20] = json.dumps({"instruction": "Say it.", "output": None})
    lines[40] = json.dumps({"instruction": "Say it.", "output": ""})
    examples_file.write_text("\n".join(lines) + "\n")
    return examples_file


def test_bad_rows_stop_a_run_or_are_left_out_and_listed(
    tuning: MakeRecipe, with_bad_rows: Path, refuses: Refuses
) -> None:
    """The error names the key; what is left out stands in a file of the run, with its line."""
    with refuses(DataError, names=["examples.jsonl:21", "data.bad_rows=drop"]):
        train(tuning(*FEW))
    folder, told = train(tuning("data.bad_rows=drop", *FEW))
    assert "2 rows left out by data.bad_rows=drop" in told
    listed = [json.loads(line) for line in (folder / "bad_rows.jsonl").read_text().splitlines()]
    assert [Path(bad["where"]).name for bad in listed] == ["examples.jsonl:21", "examples.jsonl:41"]
    facts = json.loads((folder / "data.json").read_text())
    assert sum(split["examples"] for split in facts["splits"].values()) == 58


def test_the_key_may_change_between_sessions_where_it_changes_nothing(
    tuning: MakeRecipe,
) -> None:
    """What it leaves out is part of what identifies the data; without bad rows that is nothing."""
    train(tuning("training.steps=2", "evaluation.max_examples=4"))
    longer = tuning("training.steps=4", "evaluation.max_examples=4", "data.bad_rows=drop")
    pipeline.train(longer, Console(file=io.StringIO()), accept=["training"])
    folder = pipeline.folder_of(longer)
    steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in steps if each["kind"] == "step"] == [1, 2, 3, 4]
    assert not (folder / "bad_rows.jsonl").exists()
