"""A study of models that train from nothing: no untuned model, figures of their own in the table,
and the page and reports that show them.
"""

from io import StringIO

import pytest
from fixture_types import MakeRecipe
from rich.console import Console

from brimful.base.rundir import read_json
from brimful.chains import finished, scoring, study

COLUMNS = (
    "Validation loss at equal time",
    "Perplexity per token",
    "Perplexity per word",
    "Bits per byte",
    "Gradient cosine with backprop",
    "Attention cosine with softmax",
    "Orthogonality violation",
    "Tokens per second",
    "Peak memory",
)


@pytest.mark.long
def test_a_study_from_nothing_ends_with_a_table_over_seeds(tiny: MakeRecipe) -> None:
    variants = "{softmax: [model.attention=softmax], fed-back: [method=feedback]}"
    recipe = tiny(
        "model.architecture=okadfa",
        "model.width=16",
        "evaluation.every=2",
        f"study={{baseline: false, seeds: [1, 2], variants: {variants}}}",
    )
    told = StringIO()
    page = study.run_study(recipe, Console(file=told, width=160))

    names = ["softmax-seed1", "softmax-seed2", "fed-back-seed1", "fed-back-seed2"]
    assert {entry.name for entry in page.parent.iterdir() if entry.is_dir()} == set(names)
    assert [
        column
        for column in COLUMNS
        if column not in told.getvalue() or column not in page.read_text()
    ] == []
    softmax, fed_back = read_json(page.parent / "study.json")["comparison"]["variants"]
    assert (softmax["seeds"], fed_back["seeds"]) == ([1, 2], [1, 2])
    assert "gradient cosine with backprop" not in softmax["figures"]
    cosine = fed_back["figures"]["gradient cosine with backprop"]
    assert cosine["interval"][0] <= cosine["value"] <= cosine["interval"][1]
    assert "Gradient by feedback" in (page.parent / names[-1] / "report.html").read_text()


def test_there_is_no_untuned_model_to_score_whatever_the_recipe_says_and_layers_are_looked_at(
    tiny: MakeRecipe,
) -> None:
    """With the whole validation split, and by diagnose."""
    recipe = tiny(
        "model.architecture=okadfa",
        "model.width=16",
        "study={baseline: true, variants: {fed-back: [method=feedback]}}",
    )
    study.run_study(recipe, Console(file=StringIO()))
    (member,) = study.members(recipe)

    assert [entry.name for entry in member.folder.parent.iterdir() if entry.is_dir()] == [
        "fed-back"
    ]
    assert "layers" not in scoring.evaluate(
        member.folder, Console(file=StringIO()), split="validation", stride=8
    )
    made = scoring.evaluate(member.folder, Console(file=StringIO()))
    assert set(made["layers"]) == {"tokens", "alignment", "attention"}
    assert read_json(member.folder / "scores.json")["layers"] == made["layers"]
    found = {
        finding.name: finding
        for finding in finished.diagnose(member.folder, Console(file=StringIO()))
    }
    assert [row["layer"] for row in found["feedback gradient"].layers] == [
        row["name"] for row in made["layers"]["alignment"]["segments"]
    ]
    assert found["kernel attention"].verdict == "ok"
