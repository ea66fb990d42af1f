"""Recipes made from other tools' files: they load, and say what differs."""

from pathlib import Path

import pytest
from fixture_types import Refuses
from syrupy.assertion import SnapshotAssertion

from brimful.base.errors import RequestError
from brimful.integrations.other_tools.as_recipe import recipe_text
from brimful.integrations.other_tools.job import read_job
from brimful.integrations.other_tools.recognise import tool_named, tool_names
from brimful.recipe import load_text

MODEL = "meta-llama/Llama-3.2-1B"
FILES = {
    "axolotl": {
        "base_model": MODEL,
        "adapter": "qlora",
        "load_in_4bit": True,
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_target_linear": True,
        "sequence_len": 1024,
        "sample_packing": True,
        "attn_implementation": "flash_attention_2",
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": "paged_adamw_8bit",
        "learning_rate": 2e-4,
        "warmup_ratio": 0.1,
        "num_epochs": 2,
        "datasets": [{"path": "tatsu-lab/alpaca", "type": "alpaca"}],
    },
    "llama_factory": {
        "model_name_or_path": MODEL,
        "stage": "sft",
        "finetuning_type": "full",
        "dataset": "identity,alpaca_en_demo",
        "cutoff_len": 512,
        "lr_scheduler_type": "cosine_with_restarts",
        "max_steps": 100,
        "bf16": True,
    },
    "trl": {"model_name_or_path": MODEL, "use_peft": True, "dataset_name": "trl-lib/Capybara"},
    "transformers_trainer": {
        "model_name_or_path": MODEL,
        "block_size": 512,
        "train_file": "corpus.txt",
        "bf16": True,
    },
    "torchtune": {
        "model": {"_component_": "torchtune.models.llama3_2.llama3_2_1b"},
        "tokenizer": {"max_seq_len": 512},
        "batch_size": 2,
        "gradient_accumulation_steps": 2,
        "optimizer": {"_component_": "bitsandbytes.optim.PagedAdamW", "lr": 2e-5},
        "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
        "dtype": "bf16",
    },
}


@pytest.mark.parametrize("name", tool_names())
def test_the_recipe_of_a_job_loads_and_trains_the_same(
    name: str, snapshot: SnapshotAssertion
) -> None:
    read = read_job(tool_named(name), FILES[name])
    text = recipe_text(Path("job.yaml"), read)
    recipe, job = load_text(text, "a test"), read.job

    assert job is not None
    assert recipe.model == job.model
    assert recipe.effective_batch == job.micro_batch * job.accumulation
    assert recipe.sequence_length == job.sequence_length
    assert (recipe.adapter is None) == (job.adapter is None)
    if recipe.adapter is not None and job.adapter is not None:
        assert recipe.adapter.rank == job.adapter.rank
    assert (recipe.quantize != "none") == (job.quantize != "none")
    assert text == snapshot


def test_a_job_that_is_not_understood_is_no_recipe(refuses: Refuses) -> None:
    read = read_job(tool_named("axolotl"), {**FILES["axolotl"], "deepspeed": "mine.json"})

    with refuses(RequestError, names=["deepspeed"]):
        recipe_text(Path("job.yaml"), read)
