"""Adapters in PEFT layout as the start of a recipe: their settings are taken over, a recipe that
says otherwise is refused, and so is what brimful cannot go on with.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from safetensors.torch import save_file

from brimful.base.errors import RecipeError
from brimful.base.types import JsonDict
from brimful.recipe.adapter_folder import base_and_section

CONFIG: JsonDict = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "hub/some-model",
    "r": 4,
    "lora_alpha": 12,
    "lora_dropout": 0.05,
    "target_modules": ["v_proj", "q_proj"],
    "use_rslora": True,
    "bias": "none",
    "rank_pattern": {},
    "modules_to_save": None,
}


def write(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
    name = "base_model.model.model.layers.0.self_attn.k_proj.lora_A.weight"
    save_file({name: torch.zeros(4, 8)}, folder / "adapter_model.safetensors")
    return folder


def test_a_folder_as_model_gives_its_base_and_its_settings(
    tuning: MakeRecipe, tmp_path: Path
) -> None:
    folder = write(tmp_path / "adapters")
    recipe = tuning(f"model={folder}", "adapter=null")

    assert recipe.model == "hub/some-model"
    assert recipe.adapter is not None
    assert recipe.adapter.model_dump() == {
        "rank": 4,
        "alpha": 12.0,
        "dropout": 0.05,
        "targets": ["q_proj", "v_proj"],
        "rslora": True,
        "dora": False,
        "start": str(folder),
    }


def test_a_recipe_with_a_rank_of_its_own_takes_the_scale_of_the_adapters(
    tuning: MakeRecipe, tmp_path: Path
) -> None:
    """Twice the rank, the scale of fresh adapters, would change what these compute."""
    folder = write(tmp_path / "adapters")

    found = tuning(f"adapter={{rank: 4, rslora: true, start: {folder}}}").adapter
    named = tuning(f"adapter={{rank: 4, alpha: 5, rslora: true, start: {folder}}}").adapter

    assert found is not None
    assert named is not None
    assert (found.alpha, named.alpha) == (12.0, 5.0)


def test_the_base_can_be_named_beside_the_folder(tuning: MakeRecipe, tmp_path: Path) -> None:
    folder = write(tmp_path / "adapters", base_model_name_or_path=None)
    recipe = tuning("model=another/base", f"adapter={{start: {folder}, dropout: 0.2}}")
    assert recipe.model == "another/base"
    assert recipe.adapter is not None
    assert (recipe.adapter.rank, recipe.adapter.dropout) == (4, 0.2)


def test_a_pattern_of_targets_is_read_from_the_tensors(tmp_path: Path) -> None:
    folder = write(tmp_path / "adapters", target_modules=r".*\.self_attn\.(k)_proj")
    assert base_and_section(folder)[1]["targets"] == ["k_proj"]


def test_a_resolved_recipe_is_read_without_the_folder(tuning: MakeRecipe, tmp_path: Path) -> None:
    from brimful.recipe import load_text

    folder = write(tmp_path / "adapters")
    text = tuning(f"model={folder}", "adapter=null").to_yaml()
    for path in folder.iterdir():
        path.unlink()
    assert load_text(text, "stored").to_yaml() == text


@pytest.mark.parametrize(
    "change", ["rank: 8", "alpha: 3", "targets: [q_proj]", "rslora: false", "dora: true"]
)
def test_a_recipe_that_disagrees_is_refused_with_the_key(
    tuning: MakeRecipe, tmp_path: Path, refuses: Refuses, change: str
) -> None:
    folder = write(tmp_path / "adapters")
    with refuses(RecipeError, names=[f"adapter.{change.partition(':')[0]}", "leave the key out"]):
        tuning(f"model={folder}", f"adapter={{{change}}}")
    assert tuning(f"model={folder}", "adapter={targets: 'v_proj, q_proj', rank: 4}")


CANNOT: dict[str, JsonDict] = {
    "peft_type": {"peft_type": "IA3"},
    "task_type": {"task_type": "SEQ_CLS"},
    "bias": {"bias": "all"},
    "modules_to_save": {"modules_to_save": ["embed_tokens"]},
    "alora_invocation_tokens": {"alora_invocation_tokens": [1, 2]},
    "use_bdlora": {"use_bdlora": {"target_modules_bd_a": ["q_proj"]}},
    "arrow_config": {"arrow_config": {"top_k": 3}},
    "kasa_config": {"kasa_config": {"beta": 1e-4}},
    "a_key_of_tomorrow": {"a_key_of_tomorrow": 1},
    "rank_pattern": {"rank_pattern": {"q_proj": 2}},
    "init_lora_weights": {"init_lora_weights": "pissa_niter_4"},
    "lora_alpha": {"lora_alpha": None},
}


@pytest.mark.parametrize("reason", CANNOT)
def test_what_cannot_be_gone_on_with_is_refused_by_name(
    tuning: MakeRecipe, tmp_path: Path, refuses: Refuses, reason: str
) -> None:
    folder = write(tmp_path / "adapters", **CANNOT[reason])
    with refuses(RecipeError, names=[reason]):
        tuning(f"model={folder}", "adapter=null")


def test_all_that_peft_writes_of_plain_adapters_is_known(
    tuning: MakeRecipe, tmp_path: Path
) -> None:
    peft = pytest.importorskip("peft")
    written = peft.LoraConfig(r=4, lora_alpha=8).to_dict()
    settings = {key: value for key, value in written.items() if key != "target_modules"}
    settings |= {"task_type": "CAUSAL_LM", "peft_type": "LORA", "qalora_group_size": 32}
    settings.pop("base_model_name_or_path")
    assert tuning(f"model={write(tmp_path / 'adapters', **settings)}", "adapter=null")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('"lora_alpha": 1e300', "adapter.alpha"),
        ('"lora_alpha": 1' + "0" * 400, "lora_alpha"),
        ('"rank_pattern": ' + "[" * 100_000 + "]" * 100_000, "nested more than 100 levels"),
    ],
    ids=["alpha of 1e300", "alpha of 400 digits", "nested 100,000 deep"],
)
def test_a_damaged_configuration_is_one_sentence(
    tuning: MakeRecipe, tmp_path: Path, written: str, said: str
) -> None:
    folder = write(tmp_path / "adapters")
    path = folder / "adapter_config.json"
    values = json.loads(path.read_text())
    values.pop(written.split('"')[1], None)
    path.write_text(json.dumps(values)[:-1] + f", {written}}}")
    with pytest.raises(RecipeError, match=said):
        tuning(f"model={folder}", "adapter=null")


def test_a_base_that_is_missing_or_not_named_is_refused_with_how_to_name_it(
    tuning: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    folder = write(tmp_path / "gone", base_model_name_or_path=str(tmp_path / "nowhere"))
    with refuses(RecipeError, names=["nowhere", f"adapter.start={folder}"]):
        tuning(f"model={folder}", "adapter=null")
    nameless = write(tmp_path / "nameless", base_model_name_or_path=None)
    with refuses(RecipeError, names=["names no base model", f"adapter.start={nameless}"]):
        tuning(f"model={nameless}", "adapter=null")


def test_pickled_adapters_and_a_folder_without_any_are_refused(
    tuning: MakeRecipe, tmp_path: Path, refuses: Refuses
) -> None:
    folder = write(tmp_path / "pickled")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with refuses(RecipeError, names=["can run code"]):
        tuning(f"model={folder}", "adapter=null")
    with refuses(RecipeError, names=["PEFT layout"]):
        tuning(f"adapter={{start: {tmp_path / 'none'}}}")
    damaged = write(tmp_path / "damaged")
    (damaged / "adapter_config.json").write_text("{")
    with refuses(RecipeError):
        tuning(f"model={damaged}", "adapter=null")
