"""Runs that tests train, and what is read of them afterwards."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from brimful.base.rundir import read_journal
from brimful.base.types import JsonDict
from brimful.chains import pipeline
from brimful.kinds.run_data import RunData
from brimful.recipe import Recipe
from brimful.runs.files import CHECKPOINTS_FOLDER, JOURNAL_FILE
from brimful.training.checkpoint import CheckpointStore, Snapshot, load


def train(recipe: Recipe, *, writes: bool = False, **options: Any) -> Path:
    """Train, where nobody reads what is told, and return the folder of the run. The text that a
    finished model writes, a fifth of a small training, is left out unless it is asked for.
    """
    with pytest.MonkeyPatch.context() as patch:
        if not writes:
            patch.setattr(RunData, "finish", lambda *_: None)
        return pipeline.train(recipe, Console(file=StringIO()), **options).folder


def records_of(folder: Path | str, *kinds: str) -> list[JsonDict]:
    """What the journal of a run holds of these kinds."""
    return [each for each in read_journal(Path(folder, JOURNAL_FILE)) if each["kind"] in kinds]


def checkpoints_of(folder: Path | str) -> CheckpointStore:
    """The checkpoints of a run."""
    return CheckpointStore(Path(folder, CHECKPOINTS_FOLDER), keep=9)


def newest_of(folder: Path | str) -> Snapshot:
    """The newest checkpoint of a run."""
    store = checkpoints_of(folder)
    return load(store.path_of(store.steps()[-1]))
