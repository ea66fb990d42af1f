"""The same job in the files of several tools, and what each key changes."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest

from brimful.base.types import Json, JsonDict
from brimful.hardware import catalog
from brimful.integrations.other_tools.job import FACTS, ReadJob, TrainingJob, read_job
from brimful.integrations.other_tools.optimizers import OWN
from brimful.integrations.other_tools.planned import look_up, step_of
from brimful.integrations.other_tools.recognise import tool_named, tool_names
from brimful.integrations.other_tools.settings import NotUnderstood, Settings

MODEL = "meta-llama/Llama-3.2-1B"
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj"]
JOBS: Mapping[str, JsonDict] = {
    "axolotl": {
        "base_model": MODEL,
        "adapter": "lora",
        "lora_r": 16,
        "lora_dropout": 0.05,
        "lora_target_modules": TARGETS,
        "sequence_len": 2048,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": "adamw_8bit",
        "bf16": True,
        "gradient_checkpointing": True,
    },
    "llama_factory": {
        "model_name_or_path": MODEL,
        "stage": "sft",
        "finetuning_type": "lora",
        "lora_rank": 16,
        "lora_dropout": 0.05,
        "lora_target": ",".join(TARGETS),
        "cutoff_len": 2048,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "optim": "adamw_8bit",
        "bf16": True,
    },
    "trl": {
        "model_name_or_path": MODEL,
        "dtype": "bfloat16",
        "use_peft": True,
        "lora_r": 16,
        "lora_target_modules": TARGETS,
        "max_length": 2048,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "optim": "adamw_8bit",
    },
    "torchtune": {
        "model": {
            "_component_": "torchtune.models.llama3_2.lora_llama3_2_1b",
            "lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"],
            "lora_rank": 16,
            "lora_dropout": 0.05,
        },
        "tokenizer": {"max_seq_len": 2048},
        "batch_size": 2,
        "gradient_accumulation_steps": 4,
        "optimizer": {"_component_": "bitsandbytes.optim.AdamW8bit", "lr": 2e-4},
        "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
        "dtype": "bf16",
        "clip_grad_norm": 1.0,
        "enable_activation_checkpointing": True,
    },
}
"""LoRA of Llama 3.2 1B in bf16, as far as the tools' own names go."""
FULL: Json = {
    "model_name_or_path": MODEL,
    "block_size": 1024,
    "per_device_train_batch_size": 2,
    "bf16": True,
    "gradient_checkpointing": True,
}
"""Of transformers' example script, which has no adapters."""

Changes = Mapping[str, Any]
OF_ARGUMENTS: Changes = {
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 1,
    "optim": "adamw_torch",
    "max_grad_norm": 0,
    "use_liger_kernel": True,
}
CHANGES: Mapping[str, Changes] = {
    "axolotl": {
        "base_model": "meta-llama/Llama-3.2-3B",
        "model_quantization_config": "Mxfp4Config",
        "micro_batch_size": 3,
        "gradient_accumulation_steps": 1,
        "optimizer": "paged_adamw_32bit",
        "max_grad_norm": 0,
        "adapter": None,
        "lora_r": 8,
        "lora_dropout": 0.1,
        "lora_target_modules": ["q_proj"],
        "lora_target_linear": True,
        "peft_use_dora": True,
        "lora_modules_to_save": ["lm_head"],
        "peft_autocast_adapter_dtype": False,
        "bf16": False,
        "gradient_checkpointing": False,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
        "activation_offloading": True,
        "sequence_len": 1024,
        "sample_packing": True,
        "pad_to_sequence_len": True,
        "attn_implementation": "eager",
        "flash_attention": True,
        "eager_attention": True,
        "trust_remote_code": True,
        "rl": "dpo",
        "plugins": ["axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"],
    },
    "llama_factory": {
        **{key: value for key, value in OF_ARGUMENTS.items() if key != "use_liger_kernel"},
        "model_name_or_path": "meta-llama/Llama-3.2-3B",
        "finetuning_type": "full",
        "lora_rank": 4,
        "lora_dropout": 0.1,
        "lora_target": "all",
        "additional_target": "lm_head",
        "use_muon": True,
        "cutoff_len": 1024,
        "bf16": False,
        "pure_bf16": True,
        "flash_attn": "fa2",
        "enable_liger_kernel": True,
        "disable_gradient_checkpointing": True,
        "use_reentrant_gc": False,
        "use_unsloth_gc": True,
        "upcast_layernorm": True,
        "quantization_bit": 4,
        "use_dora": True,
        "packing": True,
        "stage": "kto",
    },
    "trl": {
        **OF_ARGUMENTS,
        "model_name_or_path": "meta-llama/Llama-3.2-3B",
        "dtype": "float32",
        "torch_dtype": "float16",
        "trl_version": "0.21",
        "attn_implementation": "flash_attention_2",
        "use_flash_attention_2": True,
        "use_peft": False,
        "lora_r": 8,
        "lora_dropout": 0.0,
        "lora_target_modules": ["q_proj"],
        "use_dora": True,
        "lora_modules_to_save": ["lm_head"],
        "load_in_4bit": True,
        "max_length": 512,
        "max_seq_length": 512,
        "callbacks": ["of_my_own"],
        "activation_offloading": True,
        "packing": True,
        "padding_free": True,
        "loss_type": "sigmoid",
        "beta": 0.2,
        "precompute_ref_log_probs": True,
        "label_smoothing": 0.1,
        "loss_weights": [1.0],
        "ld_alpha": 0.5,
        "f_divergence_type": "forward_kl",
        "use_weighting": True,
        "num_generations": 4,
        "max_completion_length": 128,
        "generation_batch_size": 32,
        "steps_per_generation": 2,
        "use_vllm": True,
        "vllm_mode": "server",
        "vllm_gpu_memory_utilization": 0.5,
        "vllm_enable_sleep_mode": True,
        "desirable_weight": 1.5,
        "undesirable_weight": 0.5,
        "fp16": True,
        "gradient_checkpointing": False,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "torchtune": {
        "model._component_": "torchtune.models.llama3_2.lora_llama3_2_3b",
        "model.lora_attn_modules": ["q_proj"],
        "model.apply_lora_to_mlp": True,
        "model.lora_rank": 4,
        "model.lora_dropout": 0.0,
        "model.use_dora": True,
        "model.quantize_base": True,
        "tokenizer.max_seq_len": 512,
        "batch_size": 1,
        "gradient_accumulation_steps": 1,
        "optimizer._component_": "bitsandbytes.optim.PagedAdamW",
        "dtype": "fp32",
        "clip_grad_norm": None,
        "dataset.packed": True,
        "loss._component_": "torchtune.modules.loss.CEWithChunkedOutputLoss",
        "optimizer_in_bwd": True,
        "custom_sharded_layers": ["tok_embeddings"],
        "fsdp_cpu_offload": True,
        "compile": True,
        "enable_activation_checkpointing": False,
        "enable_activation_offloading": True,
    },
    "transformers_trainer": {
        **OF_ARGUMENTS,
        "gradient_accumulation_steps": 4,
        "model_name_or_path": "meta-llama/Llama-3.2-3B",
        "block_size": 512,
        "dtype": "float32",
        "attn_implementation": "eager",
        "bf16": False,
        "gradient_checkpointing": False,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
}
"""By tool: another value of each key that decides."""
ALONE_WITHOUT_EFFECT = {
    "axolotl": {
        "load_in_8bit",
        "load_in_4bit",
        "model_quantization_config_kwargs",
        "fp16",
        "float16",
        "bfloat16",
        "batch_size",
        "sdp_attention",
        "lora_mlp_kernel",
        "lora_qkv_kernel",
        "lora_o_kernel",
        "cut_cross_entropy",
        "liger_rope",
        "liger_rms_norm",
        "liger_glu_activation",
        "liger_swiglu",
        "liger_cross_entropy",
        "liger_fused_linear_cross_entropy",
        "precompute_ref_log_probs",
        "rl_adapter_ref_model",
        "dpo_padding_free",
        "rl_beta",
        "orpo_alpha",
        "simpo_gamma",
        "cpo_alpha",
        "trl.num_generations",
        "trl.max_completion_length",
        "trl.generation_batch_size",
        "trl.beta",
        "trl.use_vllm",
        "trl.vllm_mode",
        "trl.vllm_enable_sleep_mode",
        "vllm.gpu_memory_utilization",
    },
    "llama_factory": {
        "fp16",
        "pref_loss",
        "pref_beta",
        "pref_ftx",
        "dpo_label_smoothing",
        "simpo_gamma",
        "ref_model",
        "quantization_method",
        "quantization_type",
        "double_quantization",
        "neat_packing",
        "upcast_lmhead_output",
    },
    "trl": {
        "bf16",
        "load_in_8bit",
        "unsloth",
        "max_prompt_length",
        "bnb_4bit_quant_type",
        "use_bnb_nested_quant",
        "packing_strategy",
        "liger_kernel_config",
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
    },
    "torchtune": {
        "model.apply_lora_to_output",
        "optimizer.fused",
        "grpo_samples",
    },
    "transformers_trainer": {
        "fp16",
        "torch_dtype",
        "liger_kernel_config",
        "activation_checkpointing",
        "activation_checkpointing_kwargs",
    },
}
"""Keys that decide only together with another one, or of which only one value can be traced."""


def _job(name: str, changes: Changes | None = None) -> ReadJob:
    tool = tool_named(name)
    given = {**tool.flat(JOBS.get(name, FULL)), **(changes or {})}
    return read_job(tool, given)


def _planned(read: ReadJob) -> tuple[object, ...]:
    """All that a plan on a device follows from; what is not understood, where that decides."""
    job = read.job
    if job is None:
        return read.unknown
    step = step_of(job, look_up(job.model), catalog.get("NVIDIA L4"))
    return step, job.micro_batch, job.accumulation, job.rows, job.sampling, job.held


def test_the_same_job_of_four_tools_has_the_same_deciding_facts() -> None:
    jobs = [_job(name).job for name in JOBS]

    def decides(job: TrainingJob | None) -> tuple[object, ...]:
        assert job is not None
        assert job.adapter is not None
        return (
            job.model,
            job.weights,
            job.quantize,
            job.adapter.rank,
            job.adapter.targets,
            job.adapter.dropout,
            job.sequence_length,
            job.rows,
            job.micro_batch,
            job.accumulation,
            OWN.get(job.optimizer, job.optimizer),
            job.clips,
            job.recompute != "none",
        )

    assert len({decides(job) for job in jobs}) == 1


@pytest.mark.parametrize("name", tool_names())
def test_every_tool_says_every_fact_with_the_key_that_says_it(name: str) -> None:
    read = _job(name)

    assert set(FACTS) <= set(read.values)
    assert read.job is not None
    assert all(read.said_by[fact] for fact in ("model", "micro_batch", "optimizer"))
    assert "(default)" in " ".join(read.said_by.values())


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, changes in CHANGES.items() for key in changes]
)
def test_changing_a_key_that_decides_changes_the_plan(name: str, key: str) -> None:
    changed = {key: CHANGES[name][key]}
    if key == "packing" and name == "llama_factory":
        changed["per_device_train_batch_size"] = 2  # packed rows have no mask

    assert _planned(_job(name, changed)) != _planned(_job(name))


@pytest.mark.parametrize("name", tool_names())
def test_no_key_that_decides_is_left_out_above(name: str) -> None:
    asked: set[str] = set()

    class Asked(Settings):
        def __getitem__(self, key: str) -> Any:
            asked.add(key)
            return super().__getitem__(key)

    tool = tool_named(name)
    for changes in ({}, *({key: value} for key, value in CHANGES[name].items())):
        given = {**tool.flat(JOBS.get(name, FULL)), **changes}
        for work_out in tool.facts.values():
            with suppress(NotUnderstood):
                work_out(Asked(given, tool.defaults))

    assert asked <= set(CHANGES[name]) | ALONE_WITHOUT_EFFECT[name]
    assert ALONE_WITHOUT_EFFECT[name] <= set(tool.defaults)


@pytest.mark.parametrize("name", tool_names())
def test_tables_are_of_a_version_with_a_source_and_a_day(name: str) -> None:
    tool = tool_named(name)

    assert tool.version
    assert "@" in tool.source
    assert tool.read.count("-") == 2
    assert all(default.where for default in tool.defaults.values())
    assert not set(tool.defaults) & (set(tool.decides) | tool.idle)
