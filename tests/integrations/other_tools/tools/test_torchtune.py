"""torchtune's recipes that learn from rewards and preferences, and those for several devices."""

from typing import Any

import pytest

from brimful.base.types import JsonDict
from brimful.integrations.other_tools.job import ReadJob, TrainingJob, read_job
from brimful.integrations.other_tools.recognise import tool_named

FILE: JsonDict = {
    "model._component_": "torchtune.models.qwen2_5.qwen2_5_3b",
    "optimizer._component_": "torch.optim.AdamW",
    "loss._component_": "torchtune.modules.loss.LinearCrossEntropyLoss",
    "tokenizer.max_seq_len": 1024,
    "batch_size": 2,
    "dtype": "bf16",
}
REWARDS: JsonDict = {
    "loss._component_": "torchtune.dev.grpo.loss.GRPOSimpleLoss",
    "grpo_samples": 16,
    "forward_batch_size": 1,
    "max_generated_tokens": 512,
    "ref_checkpointer.checkpoint_dir": "a-reference",
}


def _read(**changes: Any) -> ReadJob:
    return read_job(tool_named("torchtune"), {**FILE, **changes})


def _job(**changes: Any) -> TrainingJob:
    job = _read(**changes).job
    assert job is not None
    return job


def test_a_pass_of_rewards_has_all_answers_to_a_batch_of_prompts() -> None:
    """Answers are drawn for fewer prompts at a time."""
    job = _job(**REWARDS)

    assert (job.micro_batch, job.sequence_length) == (2 * 16, 1024 + 512)
    assert job.sampling is not None
    assert (job.sampling.rows, job.sampling.tokens) == (16, 1024 + 512)
    assert job.loss.second_model
    assert job.held is not None
    assert job.held.buffers(2 * 10**9) == 10**9  # the model whole, not its reference


def test_a_server_that_writes_answers_takes_nothing_here() -> None:
    assert _job(**REWARDS, vllm_mode="server").sampling is None


@pytest.mark.parametrize(
    ("builder", "has_copy"), [("qwen2_5_3b", True), ("lora_qwen2_5_3b", False)]
)
def test_pairs_are_two_rows_each_with_a_reference(builder: str, has_copy: bool) -> None:
    """Adapters switched off are the reference of a model with adapters."""
    job = _job(
        **{
            "model._component_": f"torchtune.models.qwen2_5.{builder}",
            "model.lora_attn_modules": ["q_proj"],
            "loss._component_": "torchtune.rlhf.loss.DPOLoss",
        }
    )

    assert (job.micro_batch, job.loss.passes) == (4, 1)
    assert job.loss.second_model == has_copy
    assert (job.held is not None) == has_copy


@pytest.mark.parametrize(
    ("builder", "model"),
    [
        ("qwen2.qwen2_7b", "Qwen/Qwen2-7B"),
        ("qwen2_5.qwen2_5_7b_base", "Qwen/Qwen2.5-7B"),
        ("llama3_3.llama3_3_70b", "meta-llama/Llama-3.3-70B-Instruct"),
        ("mistral.mistral_7b", "mistralai/Mistral-7B-v0.1"),
        ("llama2.llama2_70b", "meta-llama/Llama-2-70b-hf"),
    ],
)
def test_a_builder_is_the_model_of_its_name(builder: str, model: str) -> None:
    assert _job(**{"model._component_": f"torchtune.models.{builder}"}).model == model


def test_a_compiled_step_may_keep_less_and_has_no_time() -> None:
    held = _job(compile=True).held

    assert held is not None
    assert "activations" in held.perhaps
    assert held.hides_time
    assert held.expected == 1


def test_what_several_devices_divide_may_be_compiled_too() -> None:
    held = _job(compile=True, optimizer_in_bwd=True, custom_sharded_layers=["output"]).held

    assert held is not None
    assert (held.expected, "weights" in held.parts) == (1 / 8, True)
    assert {"activations", "gradients"} <= {*held.perhaps}


def test_keys_of_the_recipe_that_are_not_known_are_named() -> None:
    assert [each.key for each in _read(layer_dropout=0.2).unknown] == ["layer_dropout"]
