"""Held-out answers that are text and not code: scored by tasks, and what cannot be scored is said
before the first step.
"""

import io
import json
from pathlib import Path

import pytest
from fixture_types import MakeRecipe, Refuses
from json_lines import write_rows
from rich.console import Console

from brimful.base.errors import DataError, RequestError
from brimful.chains import pipeline
from brimful.chains.phases import folder_of
from brimful.recipe import Recipe
from brimful.runs.folder import read_run

ENGLISH = ("The house", "My cat", "A friend", "The rain")
FRENCH = ("La maison", "Mon chat", "Un ami", "La pluie")
FEW = ("training.steps=2", "evaluation.max_new_tokens=4", "evaluation.max_examples=6")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """English sentences with their translations."""
    path = tmp_path / "pairs.jsonl"
    rows = (
        {
            "prompt": f"{ENGLISH[number % 4]} has {number}.",
            "completion": f"{FRENCH[number % 4]} a {number}.",
        }
        for number in range(80)
    )
    return write_rows(path, rows)


def run(recipe: Recipe) -> Path:
    pipeline.run(recipe, Console(file=io.StringIO()))
    return folder_of(recipe)


def test_translations_are_scored_by_every_text_task(tuning: MakeRecipe, pairs: Path) -> None:
    """The whole answer is compared with the whole of the example's own."""
    tasks = ["bleu", "chrf", "rouge-l", "exact-match"]
    folder = run(tuning(f"data.path={pairs}", f"evaluation.tasks=[{','.join(tasks)}]", *FEW))
    evaluations = read_run(folder).tasks
    assert list(evaluations.summaries) == tasks
    for name, metric in zip(tasks, ("bleu", "chrf", "rouge_l", "accuracy"), strict=True):
        assert evaluations.summaries[name].metrics[metric].n == 6
    records = [
        [
            json.loads(line)
            for line in (folder / "evaluations" / f"{name}.jsonl").read_text().splitlines()
        ]
        for name in tasks
    ]
    assert {record["reference"].split()[0] for record in records[0]} <= {"La", "Mon", "Un"}
    for other in records[1:]:
        assert [each["completion"] for each in other] == [each["completion"] for each in records[0]]


@pytest.mark.parametrize(
    ("task", "error", "names"),
    [
        ("code-bleu", RequestError, ["no example is left", "exact-match"]),
        ("quantity-match", DataError, ["pairs.jsonl:", "unit"]),
    ],
)
def test_what_cannot_be_scored_is_said_before_the_first_step(
    tuning: MakeRecipe,
    pairs: Path,
    refuses: Refuses,
    task: str,
    error: type[Exception],
    names: list[str],
) -> None:
    """Its advice works: `exact-match` can be asked of the same run."""
    recipe = tuning(f"data.path={pairs}", f"evaluation.tasks=[{task}]", *FEW)
    with refuses(error, names=names):
        run(recipe)
    assert not (folder_of(recipe) / "metrics.jsonl").exists()
    run(tuning(f"data.path={pairs}", "evaluation.tasks=[exact-match]", *FEW))


def test_a_run_without_examples_is_told_so_before_the_first_step(
    tiny: MakeRecipe, refuses: Refuses
) -> None:
    recipe = tiny("evaluation.tasks=[bleu]")
    with refuses(RequestError, names=["method sft"]):
        run(recipe)
    assert not (folder_of(recipe) / "metrics.jsonl").exists()
