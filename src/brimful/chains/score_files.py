"""Files that hold the scores of a run."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful.base.dotted import format_yaml
from brimful.base.rundir import read_json, write_json_atomically, write_text_atomically
from brimful.evaluation.nats import FOLDER
from brimful.recipe import Recipe

SCORES_FILE = "scores.json"


def add_scores(folder: Path, made: Mapping[str, Any]) -> None:
    """Merge records into scores.json."""
    path = folder / SCORES_FILE
    write_json_atomically(
        path, (read_json(path) if path.exists() else {}) | dict(made), with_checksum=True
    )


def discard_scores(run_folder: Path) -> None:
    """Remove the scores of weights that further training has replaced."""
    (run_folder / SCORES_FILE).unlink(missing_ok=True)
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)


def is_scored(folder: Path, recipe: Recipe) -> bool:
    """Return whether a folder holds the likelihood and every task of the recipe. An evaluation that
    was killed leaves some of them.
    """
    return (folder / SCORES_FILE).exists() and not missing_tasks(folder, recipe)


def missing_tasks(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    """Return the recipe's tasks that the folder holds no scores of."""
    return tuple(
        task for task in recipe.evaluation.tasks if not summary_file(folder, task).exists()
    )


def summary_file(folder: Path, task: str) -> Path:
    """Return the file of a task's scores."""
    return folder / FOLDER / f"{task.replace(':', '-')}.json"


def describe_untuned(folder: Path, run_folder: Path, recipe: Recipe) -> None:
    """Write what a comparison reads of a run folder: the model, and the data it is scored on."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomically(
        folder / "recipe.yaml",
        format_yaml({"name": folder.name, "model": recipe.model, "untuned": True}),
    )
    write_json_atomically(
        folder / "data.json", read_json(run_folder / "data.json"), with_checksum=True
    )
