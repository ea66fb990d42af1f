"""Whose file it is, by its keys."""

import pytest
import typer
from fixture_types import Refuses

from brimful import cli
from brimful.base.dotted import parse_yaml
from brimful.base.errors import RecipeError
from brimful.base.types import JsonDict
from brimful.integrations.other_tools.recognise import recognised, tool_named, tool_names
from brimful.recipe import Recipe
from brimful.recipe.loading import shipped_names, shipped_text

FILES: dict[str, JsonDict] = {
    "axolotl": {"base_model": "gpt2", "micro_batch_size": 1},
    "llama_factory": {"model_name_or_path": "gpt2", "stage": "sft", "bf16": True},
    "trl": {"model_name_or_path": "gpt2", "use_peft": True, "bf16": True},
    "transformers_trainer": {"model_name_or_path": "gpt2", "block_size": 512},
    "torchtune": {"model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"}},
}


def test_there_is_a_file_of_every_tool() -> None:
    assert set(FILES) == set(tool_names())


@pytest.mark.parametrize("name", tool_names())
def test_a_file_is_known_by_keys_that_only_its_tool_has(name: str) -> None:
    assert recognised(FILES[name], "job.yaml") == name


@pytest.mark.parametrize("name", tool_names())
def test_the_marks_of_a_tool_are_no_keys_of_another_or_of_a_recipe(name: str) -> None:
    marks = set(tool_named(name).marks)

    for other in set(tool_names()) - {name}:
        assert not marks & tool_named(other).keys
    assert not marks & set(Recipe.model_fields)


@pytest.mark.parametrize("name", shipped_names())
def test_a_recipe_is_no_file_of_another_tool(name: str) -> None:
    assert recognised(parse_yaml(shipped_text(name)), name) is None


def test_keys_of_two_tools_are_refused_with_both_named(refuses: Refuses) -> None:
    mixed = FILES["axolotl"] | FILES["llama_factory"]
    with refuses(RecipeError, names=["axolotl", "llama_factory", "base_model", "stage"]):
        recognised(mixed, "job.yaml")


def test_keys_that_several_tools_have_are_refused_with_their_names(refuses: Refuses) -> None:
    shared = {"model_name_or_path": "gpt2", "dataset_name": "x/y", "learning_rate": 1e-4}
    with refuses(RecipeError, names=["trl", "transformers_trainer", "--tool"]):
        recognised(shared, "job.yaml")


def test_keys_of_no_tool_are_left_to_the_reader_of_recipes() -> None:
    assert recognised({"model": "gpt2", "steps": 3}, "job.yaml") is None


def test_a_broken_recipe_is_left_to_the_reader_of_recipes() -> None:
    broken = {"model": "gpt2", "adapter": {"rank": 4}, "optimizer": {"learning_rate": 1e-4}}

    assert recognised(broken, "recipe.yaml") is None


def test_a_file_without_marks_is_the_tool_s_that_knows_most_of_it() -> None:
    keys = {"micro_batch_size": 2, "lora_target_modules": ["q_proj"], "val_set_size": 0.1}

    assert recognised(keys, "job.yaml") == "axolotl"


def test_the_help_names_every_tool() -> None:
    plan = typer.main.get_command(cli.app).commands["plan"]  # type: ignore[attr-defined]
    option = next(each for each in plan.params if each.name == "tool")

    assert [name for name in tool_names() if name not in option.help] == []


def test_an_unknown_tool_is_refused_with_the_known_ones(refuses: Refuses) -> None:
    with refuses(RecipeError, names=["unsloth", "torchtune"]):
        tool_named("unsloth")
