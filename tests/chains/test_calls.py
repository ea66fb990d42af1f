"""The functions of `import brimful`: names in place of values, and no console to make."""

import re
from pathlib import Path

from fixture_types import Captured, MakeRecipe, Refuses

import brimful
from brimful.base.env import runs_folder
from brimful.base.errors import DeviceError, RecipeError, RequestError
from brimful.base.types import JsonDict

ROOT = Path(__file__).parents[2]
CHANGES = ("sequence_length=32", "training.steps=6", "evaluation.every=6")


def test_the_code_of_the_page_runs_as_it_stands(
    recipe_file: Path, tmp_path: Path, capsys: Captured
) -> None:
    """Every block of docs/python.md, one after the other, with a tiny recipe for the quickstart."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 4
    names: JsonDict = {}
    for block in blocks:
        exec(block.replace('"quickstart"', repr(str(recipe_file))), names)  # noqa: S102 - ours
    told = capsys.readouterr().out
    assert names["run"].folder == runs_folder() / "from-python"
    assert "def read" in told
    assert "quadro-6000" in told


def test_a_run_needs_a_recipe_alone(tiny: MakeRecipe, recipe_file: Path, capsys: Captured) -> None:
    recipe = tiny(*CHANGES, "run.name=alone")
    report = brimful.run(recipe)
    assert report == runs_folder() / "alone" / "report.html"
    assert report.is_file()
    assert "alone" in capsys.readouterr().out
    again = brimful.train(recipe)
    assert not again.trained_now
    assert brimful.evaluate("alone", split="validation")["validation"]["perplexity"] > 1
    assert brimful.plan(recipe_file).sequence_length == 32


def test_a_study_is_run_whole_and_not_by_train(recipe_file: Path, refuses: Refuses) -> None:
    study = recipe_file.with_name("study.yaml")
    study.write_text(
        recipe_file.read_text()
        + "study: {variants: {slow: [optimizer.learning_rate=1e-3], fast: []}}\n"
    )
    recipe = brimful.load_recipe(str(study), [*CHANGES, "run.name=both"])
    with refuses(RequestError):
        brimful.train(recipe)
    with refuses(RequestError):
        brimful.run(recipe, plan_file=Path("plan.json"))
    assert brimful.run(recipe).is_file()
    assert (runs_folder() / "both" / "fast").is_dir()


def test_names_that_are_none_are_refused_as_on_the_command_line(
    refuses: Refuses,
) -> None:
    with refuses(RecipeError):
        brimful.train("quickstrt")
    with refuses(DeviceError):
        brimful.plan("quickstart", "rtx 6000")
