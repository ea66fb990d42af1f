"""The functions of `import brimful`: names in place of values, and no console to make."""

import json
import re
from pathlib import Path

from fixture_types import Captured, MakeRecipe, Refuses

import brimful
from brimful.base.env import runs_folder
from brimful.base.errors import DeviceError, RecipeError, RequestError
from brimful.base.rundir import read_json
from brimful.base.types import JsonDict
from brimful.chains.plan_options import refuse_options, save_surveyed
from brimful.chains.plans import survey

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
    plans = recipe_file.with_name("plans.json")
    refuse_options(recipe, "here", saves=True, verifies=False)
    save_surveyed(plans, recipe, survey(recipe))
    content = json.loads(plans.read_text())
    for number, variant in enumerate(("slow", "fast"), 1):
        content["plans"][variant]["micro_batches"] = [number] * (8 // number)
        for choice in content["plans"][variant]["choices"]:
            choice["value"] = number if choice["name"] == "micro_batch" else choice["value"]
    plans.write_text(json.dumps(content))

    assert brimful.run(recipe, plan_file=plans).is_file()

    for number, variant in enumerate(("slow", "fast"), 1):
        planned = read_json(runs_folder() / "both" / variant / "plan.json")
        assert planned["micro_batch"] == number


def test_names_that_are_none_are_refused_as_on_the_command_line(
    refuses: Refuses,
) -> None:
    with refuses(RecipeError):
        brimful.train("quickstrt")
    with refuses(DeviceError):
        brimful.plan("quickstart", "rtx 6000")
