"""Files that hold the scores of a run."""

import shutil
from pathlib import Path

from brimful.base.dotted import format_yaml
from brimful.base.manifest import MANIFEST
from brimful.base.rundir import (
    finite,
    read_json,
    write_json_atomically,
    write_text_atomically,
)
from brimful.base.types import Json
from brimful.evaluation.nats import FOLDER
from brimful.evaluation.nats import path_of as nats_path
from brimful.recipe import Recipe
from brimful.runs.deciding import problem_of, read_deciding
from brimful.runs.files import MODEL_FOLDER
from brimful.runs.parsing import mapping

SCORES_FILE = "scores.json"


def add_scores(folder: Path, made: Json) -> None:
    """Merge records into scores.json."""
    path = folder / SCORES_FILE
    before = {} if problem_of(path) else read_json(path)
    write_json_atomically(path, before | dict(made), with_checksum=True)


def move_damaged_aside(folder: Path) -> str:
    """Give a damaged scores.json another name, so that it is written anew; return a sentence, empty
    where it is sound or missing.
    """
    path = folder / SCORES_FILE
    problem = problem_of(path)
    if not problem or not path.exists():
        return ""
    path.replace(folder / f"damaged-{SCORES_FILE}")
    return f"{problem}; it is now called damaged-{SCORES_FILE}, and splits are scored anew"


def discard_scores(run_folder: Path, scored: bytes) -> None:
    """Remove the scores of weights that further training has replaced.

    Args:
        scored: What `model_manifest` said of them; where it still does, the scores stay.
    """
    if scored == model_manifest(run_folder):
        return
    (run_folder / SCORES_FILE).unlink(missing_ok=True)
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)


def model_manifest(run_folder: Path) -> bytes:
    """Return the hashes of the exported model's files, by which other weights are told from those
    that were scored; empty without a model.
    """
    path = run_folder / MODEL_FOLDER / MANIFEST
    return path.read_bytes() if path.is_file() else b""


def is_scored(folder: Path, recipe: Recipe) -> bool:
    """Return whether a folder holds the likelihood and every task of the recipe. An evaluation that
    was killed leaves some of them.
    """
    return has_scores(folder) and not missing_tasks(folder, recipe)


def has_scores(folder: Path) -> bool:
    """Return whether a folder holds a sound scores.json, and what every loss in it is made of."""
    path = folder / SCORES_FILE
    if problem_of(path):
        return False
    scores = read_json(path)
    splits = (name for name in scores if finite(mapping(scores[name]).get("loss")) is not None)
    return not any(problem_of(nats_path(folder, split)) for split in splits)


def missing_tasks(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    """Return the recipe's tasks that the folder holds no scores of."""
    return tuple(task for task in recipe.evaluation.tasks if problem_of(summary_file(folder, task)))


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
        folder / "data.json", read_deciding(run_folder, "data.json"), with_checksum=True
    )
