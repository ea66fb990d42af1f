"""transformers' TrainingArguments, which several tools extend: keys, defaults and what they mean.

Read in transformers 5.23.0, src/transformers/training_args.py and trainer.py, 2026-11-25.
"""

from collections.abc import Mapping
from typing import Any, Literal

from brimful.base.types import Texts
from brimful.integrations.other_tools.optimizers import BY_NAME as OPTIMIZERS
from brimful.integrations.other_tools.settings import (
    Default,
    Settings,
    count_of,
    defaults_at,
    is_off,
    number_of,
    words,
)
from brimful.integrations.other_tools.step import LossChain, TrainerQuirks

WHERE = "transformers 5.23.0, training_args.py"
DEFAULTS: Mapping[str, Default] = defaults_at(
    WHERE,
    {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "optim": "adamw_torch_fused",
        "max_grad_norm": 1.0,
        "bf16": False,
        "fp16": False,
        "activation_checkpointing": None,
        "activation_checkpointing_kwargs": None,
        "gradient_checkpointing": None,
        "gradient_checkpointing_kwargs": None,
        "use_liger_kernel": False,
        "liger_kernel_config": None,
        "learning_rate": 5e-5,
        "lr_scheduler_type": "linear",
        "num_train_epochs": 3.0,
        "max_steps": -1,
        "warmup_steps": 0,
        "warmup_ratio": 0,
        "weight_decay": 0.0,
        "adam_beta2": 0.999,
        "seed": 42,
    },
)

SHARDING = (
    "divides weights, gradients or optimizer states among devices in a way that brimful does not"
    " trace; without this key the plan is of one device that holds all"
)
DECIDES: Texts = {
    "deepspeed": SHARDING,
    "fsdp": SHARDING,
    "fsdp_config": SHARDING,
    "parallelism_config": SHARDING,
    "auto_find_batch_size": "the micro-batch is found by running out of memory",
    "torch_empty_cache_steps": "the allocator's cache is emptied while training",
    "label_smoothing_factor": "a smoothed loss is not traced",
    "optim_args": "arguments of the optimizer are not understood",
    "use_cache": "a cache of keys and values while training is not traced",
    "use_cpu": "the job is planned for the device of --on",
}
ASSUMES: Texts = {
    "neftune_noise_alpha": (
        "noise on the embeddings is not counted; nothing of it is kept for the backward pass"
    )
}
IDLE = words(
    """
        optim_target_modules
        output_dir overwrite_output_dir prediction_loss_only per_device_eval_batch_size
        lr_scheduler_kwargs adam_beta1 adam_epsilon average_tokens_across_devices tf32
        bf16_full_eval fp16_full_eval torch_compile_backend torch_compile_mode
        batch_eval_metrics  data_seed full_determinism ignore_data_skip
        restore_callback_states_from_checkpoint enable_jit_checkpoint
        resume_from_checkpoint remove_unused_columns label_names train_sampling_strategy
        length_column_name group_by_length load_best_model_at_end metric_for_best_model
        greater_is_better disable_tqdm report_to run_name project debug
        skip_memory_metrics local_rank include_num_input_tokens_seen include_for_metrics
        accelerator_config predict_with_generate generation_max_length
        generation_num_beams generation_config sortish_sampler jit_mode_eval no_cuda
        torchdynamo ray_scope include_tokens_per_second auto_find_batch_size_kwargs
        past_index use_mps_device
        """
)
IDLE_PREFIXES = (
    "logging_",
    "log_",
    "save_",
    "do_",
    "eval",
    "hub_",
    "push_to_hub",
    "dataloader_",
    "ddp_",
    "trackio_",
)
"""Evaluation batches are not part of the planned step; the report says so."""

ATTENTION: dict[Any, Literal["sdpa", "eager", "flash2"]] = {
    None: "sdpa",
    "sdpa": "sdpa",
    "eager": "eager",
    "flash_attention_2": "flash2",
    "kernels-community/flash-attn2": "flash2",
    "flash_attention_3": "flash2",
    "kernels-community/flash-attn3": "flash2",
    "kernels-community/vllm-flash-attn3": "flash2",
}
"""Without a choice transformers takes sdpa."""
OVER_LOGITS = LossChain(upcast="beside", shifted_copy=False)
"""The loss of transformers from 4.49 on: labels are shifted, logits upcast beside."""
LIGER = LossChain(upcast="none", shifted_copy=False, cross_entropy="fused_linear")
LIGER_KERNELS = {
    "fused_rms_norm": True,
    "fused_rope": True,
    "fused_glu": True,
    "fused_norms_train": True,
}


micro_batch = count_of("per_device_train_batch_size")
"""Rows of a pass on a device."""
accumulation = count_of("gradient_accumulation_steps")
"""Passes of an optimizer step."""


def optimizer(settings: Settings) -> str:
    """The optimizer's variant."""
    return settings.one_of("optim", OPTIMIZERS)


def clips(settings: Settings) -> bool:
    """Whether the gradient norm is clipped: 0 turns it off."""
    value = settings["max_grad_norm"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        settings.refuse("max_grad_norm", "must be a number")
    return bool(value > 0)


def autocast(settings: Settings) -> Literal["none", "bf16", "fp16"]:
    """The dtype that accelerate casts to."""
    if settings.flag("bf16"):
        return "bf16"
    return "fp16" if settings.flag("fp16") else "none"


def recompute(
    settings: Settings, *, is_older: bool = False
) -> Literal["none", "reentrant", "non_reentrant"]:
    """Activation checkpointing; not reentrant by default from transformers 5 on (not `is_older`),
    nor switched on by trainers of that time.
    """
    key = (
        "activation_checkpointing"
        if settings.is_given("activation_checkpointing")
        else "gradient_checkpointing"
    )
    if not settings.flag(key) or (is_older and not settings.is_given(key)):
        return "none"
    options = settings[f"{key}_kwargs"]
    return (
        "reentrant"
        if is_reentrant(settings, f"{key}_kwargs", options, usual=is_older)
        else ("non_reentrant")
    )


def is_reentrant(settings: Settings, key: str, options: Any, *, usual: bool) -> bool:
    """Whether the options of torch's checkpoint ask for the older, reentrant way."""
    if is_off(options):
        return usual
    if not isinstance(options, dict) or set(options) - {"use_reentrant"}:
        settings.refuse(key, "only use_reentrant is understood")
    return bool(options.get("use_reentrant", usual))


def is_liger(settings: Settings) -> bool:
    """Whether Liger's kernels replace those of the model, all of its usual ones."""
    if not settings.flag("use_liger_kernel"):
        return False
    if not is_off(settings["liger_kernel_config"]):
        settings.refuse("liger_kernel_config", "only Liger's usual choice of kernels is traced")
    return True


def loss(settings: Settings) -> LossChain:
    """The loss inside the model, or Liger's."""
    return LIGER if is_liger(settings) else OVER_LOGITS


def kernels(settings: Settings) -> TrainerQuirks:
    """Fused kernels, and accelerate's upcast of what a model returns under autocast."""
    if is_liger(settings):
        return TrainerQuirks(**LIGER_KERNELS)
    return TrainerQuirks(fp32_outputs=autocast(settings) != "none")


def epochs(settings: Settings) -> float | None:
    """Passes over the data; None where steps are given."""
    return None if steps(settings) else settings.number("num_train_epochs")


def steps(settings: Settings) -> int | None:
    """Optimizer steps; None where epochs are given."""
    return None if settings["max_steps"] in (-1, 0) else settings.count("max_steps")


def warmup(settings: Settings) -> float:
    """Below 1 a share of the steps, else steps."""
    return settings.number("warmup_ratio") or settings.number("warmup_steps")


RECIPE = {
    "learning_rate": number_of("learning_rate"),
    "schedule": lambda settings: str(settings["lr_scheduler_type"]),
    "warmup": warmup,
    "weight_decay": number_of("weight_decay"),
    "beta2": number_of("adam_beta2"),
    "epochs": epochs,
    "steps": steps,
    "seed": count_of("seed"),
}
"""What a recipe needs beside the facts of a job."""
