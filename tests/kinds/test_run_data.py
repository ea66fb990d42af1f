"""Every kind of run: what identifies it, and what planning counts, stays as the first version of
brimful wrote it into checkpoints and plans.
"""

import hashlib
import json
from pathlib import Path

import pytest
from fixture_types import MakeRecipe, Refuses

from brimful.base.errors import BrimfulError
from brimful.base.types import JsonDict
from brimful.data.example_batches import ExampleSequences
from brimful.kinds.run_data import AnyRunData, gather, run_data_class
from brimful.recipe import KINDS, Kind, Recipe, TrainingRecipe, load

Recipes = dict[str, tuple[Recipe, str]]


REWARDED = [
    "method=grpo",
    "rewards={samples_per_prompt: 4, max_new_tokens: 6, verifiers: {exact: 1}}",
]


@pytest.fixture
def recipes(
    tiny: MakeRecipe,
    tuning: MakeRecipe,
    labels_recipe_file: Path,
    base_model: Path,
    pairs_file: Path,
    encoder: Path,
) -> Recipes:
    """By kind: a recipe and the folder of its published model."""
    return {
        "documents": (tiny(), ""),
        "masked": (tiny("method=mlm", "model.architecture=modernbert"), ""),
        "examples": (tuning(), str(base_model)),
        "pairs": (tuning("method=dpo", f"data.path={pairs_file}"), str(base_model)),
        "judged": (tuning("method=kto", f"data.path={pairs_file}"), str(base_model)),
        "rewarded": (tuning(*REWARDED), str(base_model)),
        "labels": (load(str(labels_recipe_file), ["labels.class_weights=balanced"]), str(encoder)),
    }


def _facts(data: AnyRunData, source: str) -> JsonDict:
    settings = json.dumps(data.objective, sort_keys=True)
    if source:
        settings = settings.replace(source, "BASE")
    return {
        "data": data.fingerprints["data"],
        "objective": hashlib.sha256(settings.encode()).hexdigest()[:16],
        "rows": [data.train_rows, data.validation_rows, data.planned.effective_batch],
        "tokens_per_step": data.tokens_per_step,
        "fill": round(data.fill, 3),
        "scored": round(data.scored, 3),
    }


FACTS = {
    "documents": {
        "data": "0869290fe8528d7544e5fe27717fe975",
        "objective": "74a862d2deb52c15",
        "rows": [99, 26, 8],
        "tokens_per_step": None,
        "fill": 1.0,
        "scored": 1.0,
    },
    "masked": {
        "data": "0869290fe8528d7544e5fe27717fe975",
        "objective": "d9a8f11f3831529e",
        "rows": [103, 26, 8],
        "tokens_per_step": None,
        "fill": 1.0,
        "scored": 1.0,
    },
    "examples": {
        "data": "77ec1568b88e6dd7534e2dc9d3942121",
        "objective": "166e1d293dca6465",
        "rows": [42, 11, 4],
        "tokens_per_step": 220,
        "fill": 0.858,
        "scored": 0.093,
    },
    "pairs": {
        "data": "a8f7a0c8c7a76d41c0a0c79569441e5d",
        "objective": "e82e60df1bf14a3f",
        "rows": [13, 3, 2],
        "tokens_per_step": 156,
        "fill": 0.609,
        "scored": 0.241,
    },
    "judged": {
        "data": "a8f7a0c8c7a76d41c0a0c79569441e5d",
        "objective": "9df6a771beec8958",
        "rows": [25, 6, 2],
        "tokens_per_step": 78,
        "fill": 0.609,
        "scored": 0.241,
    },
    "rewarded": {
        "data": "77ec1568b88e6dd7534e2dc9d3942121",
        "objective": "abdce100560c2540",
        "rows": [160, 10, 4],
        "tokens_per_step": 213,
        "fill": 0.831,
        "scored": 0.045,
    },
    "labels": {
        "data": "9e1e5b007b627c8ce2bae51da334a835",
        "objective": "d3ffdc5430bc1ec8",
        "rows": [80, 27, 6],
        "tokens_per_step": 84,
        "fill": 0.889,
        "scored": 1.0,
    },
}
"""All but fill, scored, pairs, judged and rewarded, as computed by the code before kinds of run were classes."""


def test_what_passes_hold_is_known_before_the_run(recipes: Recipes) -> None:
    """Of the first step of examples, laid out as the loop does; rows of documents are full."""
    recipe, source = recipes["examples"]
    data = gather(recipe.model_copy(update={"training": TrainingRecipe(steps=1)}), source)
    longest_pass_of = data.longest_pass_of("cpu")
    split, count = data.splits["train"], recipe.effective_batch

    assert longest_pass_of is not None
    for layout in ("packed", "padded"):
        sequences = ExampleSequences(split, recipe.sequence_length, layout, recipe.seed)  # type: ignore[arg-type]
        passes = list(sequences.batch(0, count).micro_batches((2,)))
        found = longest_pass_of(layout)(2)
        lengths = [micro.inputs_BT.numel() / recipe.sequence_length for micro in passes]
        assert (found.rows, found.later_rows) == (max(lengths), max(lengths[1:]))
        assert found.some == tuple(lengths)
        assert (found.step_rows, found.step_passes) == (sum(lengths), len(lengths))
    assert gather(*recipes["documents"]).longest_pass_of("cpu") is None


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_run_is_identified_and_counted_as_before(kind: str, recipes: Recipes) -> None:
    recipe, source = recipes[kind]

    data = gather(recipe, source)

    assert recipe.kind.name == kind
    assert isinstance(data, run_data_class(recipe.kind))
    assert _facts(data, source) == FACTS[kind]


def test_examples_of_one_length_have_few_lengths(tuning: MakeRecipe, tmp_path: Path) -> None:
    alike, longer = tmp_path / "alike.jsonl", tmp_path / "longer.jsonl"
    for path, words in ((alike, [1] * 20), (longer, range(1, 21))):
        rows = [
            {"prompt": f"say {number:02}", "completion": " red" * count}
            for number, count in enumerate(words)
        ]
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    def has_many_lengths(path: Path) -> bool:
        recipe = tuning(f"data.path={path}")
        return gather(recipe, str(recipe.model)).has_many_lengths

    assert not has_many_lengths(alike)
    assert has_many_lengths(longer)


def test_a_kind_without_a_module_is_refused(refuses: Refuses) -> None:
    with refuses(BrimfulError, names=["'label'"]):
        run_data_class(Kind("label", ()))


@pytest.mark.parametrize("vocabulary", ["bpe", "character"])
def test_a_sample_goes_on_where_held_out_data_begin_unless_the_recipe_has_a_prompt(
    tiny: MakeRecipe, vocabulary: str
) -> None:
    size = ["tokenizer.vocabulary=null"] if vocabulary == "character" else []
    data = gather(tiny(f"tokenizer.kind={vocabulary}", *size), "")
    validation = data.splits["validation"]
    document = data.tokenizer.decode(validation.tokens_N[: int(validation.document_offsets[1])])
    shown = data.sample_prompt.text
    assert shown.split() == document.split()[: len(shown.split())]
    assert 0 < len(shown) <= 60 < len(document)
    own = gather(tiny(f"tokenizer.kind={vocabulary}", *size, "sample.prompt=Once"), "")
    assert own.sample_prompt.text == "Once"
