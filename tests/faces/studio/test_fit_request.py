"""A question of the page becomes a recipe: by name, pasted, or changed; what breaks a rule is told
in one message.
"""

import json
import shlex
from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import BrimfulError, PlanError, RecipeError, RequestError
from brimful.base.types import JsonDict
from brimful.faces.studio.fit_request import FitRequest, in_a_shell, known_models, recipe_for
from brimful.model import catalog
from brimful.recipe import OF_RECIPE, Recipe, load, load_text, shipped_names

LLAMA = "meta-llama/Llama-3.1-8B"
TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}


def _is_known(recipe: Recipe) -> bool:
    return recipe.study is None and (
        not isinstance(recipe.model, str)
        or recipe.model.startswith(OF_RECIPE)
        or catalog.find(recipe.model) is not None
    )


@pytest.mark.parametrize("name", [name for name in shipped_names() if _is_known(load(name))])
def test_a_shipped_recipe_stays_as_it_is_and_loads_back(name: str) -> None:
    found = recipe_for(FitRequest(name))

    assert found.recipe == load(name)
    assert load_text(found.to_yaml(), "the answer") == found.recipe


def test_a_study_is_the_recipe_that_it_varies() -> None:
    found = recipe_for(FitRequest("code-rank-study"))

    assert found.recipe.study is None
    assert "study" in found.notes[0]


def test_a_published_model_gets_a_recipe_by_method() -> None:
    kinds = {
        method: recipe_for(FitRequest(LLAMA, method=method)).recipe
        for method in ("as the recipe", "full", "lora", "qlora", "pretrain")
    }  # type: ignore[arg-type]

    assert {
        name: (each.method, each.adapter is not None, each.quantize) for name, each in kinds.items()
    } == {
        "as the recipe": ("sft", True, "none"),
        "full": ("sft", False, "none"),
        "lora": ("sft", True, "none"),
        "qlora": ("sft", True, "nf4"),
        "pretrain": ("pretrain", False, "none"),
    }
    assert (
        load_text(recipe_for(FitRequest(LLAMA, method="qlora")).to_yaml(), "the answer")
        == kinds["qlora"]
    )


def test_every_number_of_the_question_is_in_the_recipe() -> None:
    recipe = recipe_for(
        FitRequest(
            "code-lora",
            rank=8,
            sequence_length=512,
            effective_batch=24,
            tokens=10**6,
            margin="tight",
        )
    ).recipe

    assert recipe.adapter is not None
    assert (
        recipe.adapter.rank,
        recipe.sequence_length,
        recipe.effective_batch,
        recipe.training.tokens,
    ) == (8, 512, 24, 10**6)
    assert recipe.plan.margin == "tight"


def test_another_method_changes_a_recipe() -> None:
    assert recipe_for(FitRequest("code-lora", method="full")).recipe.adapter is None
    assert recipe_for(FitRequest("code-lora", method="qlora")).recipe.quantize == "nf4"
    assert recipe_for(FitRequest("code-qlora", method="lora")).recipe.quantize == "none"
    assert recipe_for(FitRequest("code-lora", method="pretrain")).recipe.method == "pretrain"


def test_a_rank_without_adapters_is_said_to_be_unused(snapshot: SnapshotAssertion) -> None:
    assert recipe_for(FitRequest("tiny-gpt", rank=8)).notes[0] == snapshot


def test_an_encoder_is_a_classifier_or_pretrained(refuses: Refuses) -> None:
    assert recipe_for(FitRequest("google-bert/bert-base-uncased")).recipe.method == "classify"
    assert (
        recipe_for(FitRequest("google-bert/bert-base-uncased", method="pretrain")).recipe.method
        == "mlm"
    )
    with refuses(RequestError, names=["encoder"]):
        recipe_for(FitRequest("google-bert/bert-base-uncased", method="lora"))


def test_a_pasted_recipe_is_read() -> None:
    text = recipe_for(FitRequest("code-lora")).to_yaml()

    assert recipe_for(FitRequest(text)).recipe == load("code-lora")


def test_a_pasted_config_is_a_model_in_a_file_or_the_published_one_that_it_is() -> None:
    found = recipe_for(
        FitRequest(
            json.dumps(
                TINY | {"made_up": 1, "auto_map": {"AutoModel": "x.Y"}, "torch_dtype": "bfloat16"}
            )
        )
    )
    row = catalog.find(LLAMA)

    assert (found.recipe.model, found.model.context, found.recipe.sequence_length) == (
        "config.json",
        256,
        256,
    )
    assert "made_up" in found.notes[0]
    assert "auto_map" not in found.model.config
    assert "Save" in found.notes[1]
    assert row is not None
    assert recipe_for(FitRequest(json.dumps(dict(row.config)))).recipe.model == LLAMA


def test_a_pasted_config_that_leaves_things_out_has_the_limits_of_its_model_type(
    refuses: Refuses,
) -> None:
    short = {
        "model_type": "llama",
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }

    found = recipe_for(FitRequest(json.dumps(short)))

    assert (found.model.vocabulary, found.model.context) == (32_000, 2048)
    with refuses(PlanError, names=["sequence_length", "4096", "2048"]):
        recipe_for(FitRequest(json.dumps(short), sequence_length=4096))


def test_of_a_pasted_config_of_several_parts_the_one_that_reads_text_is_asked_about(
    snapshot: SnapshotAssertion,
) -> None:
    text = {key: value for key, value in TINY.items() if key != "model_type"}

    found = recipe_for(
        FitRequest(json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}}))
    )

    assert (found.model.vocabulary, found.model.context) == (512, 256)
    assert found.notes[-1] == snapshot


def test_a_folder_with_a_config_is_a_model_only_where_folders_are_allowed(
    tmp_path: Path, refuses: Refuses
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")

    assert recipe_for(FitRequest(str(tmp_path))).recipe.model == str(tmp_path)
    with refuses(RequestError):
        recipe_for(FitRequest(str(tmp_path)), local_folders=False)


@pytest.mark.parametrize(
    ("question", "error", "told"),
    [
        (FitRequest(""), RequestError, "no model is named"),
        (FitRequest("Llama-3.1-8b"), RequestError, f"did you mean '{LLAMA}'"),
        (FitRequest("tiny-gtp"), RequestError, "did you mean 'tiny-gpt'"),
        (FitRequest("tiny-gpt", method="lora"), RecipeError, "published model"),
        (FitRequest("code-lora", rank=0), RequestError, "rank 0 must be a whole number from 1"),
        (
            FitRequest("code-lora", effective_batch=10**9, tokens=-1),
            RequestError,
            "effective batch .* tokens",
        ),
        (FitRequest(LLAMA, sequence_length=200_000), PlanError, "131072 positions"),
        (FitRequest("code-lora", method="both"), RequestError, "must be one of"),  # type: ignore[arg-type]
        (FitRequest("code-lora", margin="none"), RequestError, "must be one of"),  # type: ignore[arg-type]
        (FitRequest(json.dumps(TINY), sequence_length=512), PlanError, "256 positions"),
    ],
)
def test_what_breaks_a_rule_is_told(
    question: FitRequest, error: type[BrimfulError], told: str
) -> None:
    with pytest.raises(error, match=told):
        recipe_for(question)


def test_recipes_and_models_are_listed() -> None:
    recipes, models = known_models()

    assert "tiny-gpt" in recipes
    assert LLAMA in models


def test_tokens_a_step_that_no_longer_divide_become_sequences(snapshot: SnapshotAssertion) -> None:
    text = recipe_for(FitRequest("tiny-gpt")).to_yaml().replace("sequences: 128", "tokens: 32768")

    found = recipe_for(FitRequest(text, sequence_length=384))

    assert isinstance(found.recipe, Recipe)
    assert found.recipe.effective_batch == 85
    assert found.notes[0] == snapshot


def test_own_data_and_further_keys_are_part_of_the_recipe_and_of_the_command() -> None:
    shipped = recipe_for(FitRequest("lora", data="my chats.jsonl", changes=("run.name=mine",)))
    published = recipe_for(FitRequest(LLAMA, data="my chats.jsonl"))

    assert shipped.recipe.data.path == published.recipe.data.path == "my chats.jsonl"
    assert (shipped.recipe.run_name, published.recipe.training.tokens) == ("mine", None)
    assert published.recipe.training.epochs == 3
    told = in_a_shell("plan", shipped.words)
    assert load("lora", shlex.split(told.text)[3:]) == shipped.recipe
    assert (told.purpose, in_a_shell("data", published.words).text) == (
        "In a shell",
        "brimful data recipe.yaml",
    )


@pytest.mark.parametrize("wrong", [{"data": "x.jsonl"}, {"changes": ("data.path=/etc/passwd",)}])
def test_pages_for_others_name_no_data(wrong: JsonDict, refuses: Refuses) -> None:
    with refuses(RequestError):
        recipe_for(FitRequest("quickstart", **wrong), local_folders=False)
