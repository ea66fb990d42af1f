"""Axolotl's YAML: keys, defaults and what they mean for a training step.

Sources in its repository: src/axolotl/utils/schemas/*.py (defaults), utils/config/__init__.py
(dtype, reentrant checkpointing), loaders/model.py (casts), core/builders/base.py (autocast),
schemas/config.py (LoRA kernels are switched on where they can be).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from brimful.base.types import Json
from brimful.integrations.other_tools import preferences
from brimful.integrations.other_tools.job import Sampling, Tool
from brimful.integrations.other_tools.optimizers import BY_NAME
from brimful.integrations.other_tools.settings import (
    Settings,
    because,
    count_of,
    defaults_at,
    flag_of,
    is_off,
    model_in,
    number_of,
    value_of,
    words,
)
from brimful.integrations.other_tools.step import LossChain, TrainerQuirks
from brimful.integrations.other_tools.training_arguments import (
    ASSUMES,
    ATTENTION,
    LIGER,
    OVER_LOGITS,
    SHARDING,
    is_reentrant,
    warmup,
)
from brimful.planning.step import Lora

_OF_REWARDS: Json = {
    "trl.num_generations": 8,
    "trl.max_completion_length": 512,
    "trl.generation_batch_size": None,
    "trl.beta": 0.0,
    "trl.use_vllm": False,
    "trl.vllm_mode": "colocate",
    "trl.vllm_enable_sleep_mode": False,
    "vllm.gpu_memory_utilization": 0.9,
}
"""Keys of the sections trl and vllm, for rewards (rl: grpo)."""
_OF_JUDGED = {"kto_desirable_weight": 1.0, "kto_undesirable_weight": 1.0}
DEFAULTS = {
    **defaults_at("schemas/model.py", {"base_model": None, "trust_remote_code": None}),
    **defaults_at(
        "schemas/training.py",
        {
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "batch_size": None,
            "optimizer": "adamw_torch_fused",
            "max_grad_norm": None,
            "learning_rate": None,
            "lr_scheduler": "cosine",
            "weight_decay": 0.0,
            "adam_beta2": 0.999,
            "num_epochs": 1.0,
        },
    ),
    **defaults_at(
        "schemas/peft.py",
        {
            "adapter": None,
            "load_in_4bit": None,
            "load_in_8bit": None,
            "model_quantization_config": None,
            "model_quantization_config_kwargs": None,
            "lora_r": None,
            "lora_alpha": None,
            "lora_dropout": 0.0,
            "lora_target_modules": None,
            "lora_target_linear": None,
            "lora_modules_to_save": [],
            "peft_use_dora": None,
            "peft_use_rslora": None,
            "peft_autocast_adapter_dtype": None,
        },
    ),
    **defaults_at(
        "schemas/config.py",
        {
            "bf16": "auto",
            "fp16": None,
            "bfloat16": None,
            "float16": None,
            "gradient_checkpointing": False,
            "gradient_checkpointing_kwargs": None,
            "activation_offloading": False,
            "sequence_len": 512,
            "sample_packing": None,
            "pad_to_sequence_len": None,
            "attn_implementation": None,
            "flash_attention": None,
            "sdp_attention": None,
            "eager_attention": None,
            "lora_mlp_kernel": None,
            "lora_qkv_kernel": None,
            "lora_o_kernel": None,
            "plugins": None,
            "cut_cross_entropy": None,
            "max_steps": None,
            "warmup_steps": 0,
            "warmup_ratio": 0,
            "seed": 42,
            "datasets": None,
            "train_on_inputs": False,
            "rl": None,
            "precompute_ref_log_probs": None,
            "rl_adapter_ref_model": None,
            "dpo_padding_free": None,
        },
    ),
    **defaults_at(
        "trl 1.8.0, trl/experimental/cpo/cpo_config.py",
        {"rl_beta": 0.1, "orpo_alpha": 0.1, "simpo_gamma": 0.5, "cpo_alpha": 1.0, **_OF_JUDGED},
    ),
    **defaults_at("schemas/trl.py and vllm.py", _OF_REWARDS),
    **defaults_at(
        "integrations/liger/args.py",
        {
            "liger_rope": None,
            "liger_rms_norm": None,
            "liger_glu_activation": None,
            "liger_swiglu": None,
            "liger_cross_entropy": None,
            "liger_fused_linear_cross_entropy": None,
        },
    ),
}

LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
CUT_PLUGIN = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
OPTIMIZERS = {
    **BY_NAME,
    "ao_adamw_4bit": "adamw_torch_4bit",
    "ao_adamw_8bit": "adamw_torch_8bit",
    "muon": "muon",
}


def _is_bf16(settings: Settings) -> bool:
    wanted = settings["bf16"]
    if wanted == "auto":
        return settings.native_bf16 and not settings.flag("fp16")
    if wanted not in (True, False, "true", "false"):
        settings.refuse("bf16", "must be true, false or auto")
    return settings.flag("bf16") or settings.flag("bfloat16")


def _weights(settings: Settings) -> Literal["fp32", "bf16", "fp16"]:
    """Loaded in the type of the matrix products (resolve_dtype)."""
    if _is_bf16(settings):
        return "bf16"
    asks_fp16 = settings.flag("fp16") or settings.flag("float16")
    falls_back = settings["bf16"] == "auto" and not settings.is_given("fp16")
    return "fp16" if asks_fp16 or falls_back else "fp32"


def _autocast(settings: Settings) -> Literal["none", "bf16", "fp16"]:
    dtype = _weights(settings)
    return "none" if dtype == "fp32" or settings.flag("float16") else dtype


def _upcast(settings: Settings) -> Literal["none", "ends"]:
    """Full tuning leaves norms and embeddings in fp32, unless a flash kernel or cut cross-entropy
    needs them in 16 bits.
    """
    is_cast_back = (
        not is_off(settings["adapter"])
        or _attention(settings) == "flash2"
        or settings.flag("cut_cross_entropy")
    )
    return "none" if is_cast_back or _weights(settings) == "fp32" else "ends"


def _offloads(settings: Settings) -> bool:
    if is_off(settings["activation_offloading"]):
        return False
    if settings["activation_offloading"] is not True:
        settings.refuse("activation_offloading", "only true is traced")
    if not settings.flag("gradient_checkpointing"):
        settings.refuse("activation_offloading", "is traced with gradient_checkpointing only")
    return True


def _quantize(settings: Settings) -> Literal["none", "nf4", "int8"]:
    key = "model_quantization_config"
    if settings.is_given(key) and settings[f"{key}_kwargs"] != {"dequantize": True}:
        settings.refuse(key, "only weights that are dequantised as they load are planned")
    if settings.flag("load_in_8bit"):
        if settings["adapter"] != "lora":
            settings.refuse("load_in_8bit", "is used with adapter: lora only")
        return "int8"
    if not settings.flag("load_in_4bit"):
        return "none"
    if settings["adapter"] != "qlora":
        settings.refuse("load_in_4bit", "is used with adapter: qlora only")
    return "nf4"


def _adapter(settings: Settings) -> Lora | None:
    kind = settings["adapter"]
    if is_off(kind):
        return None
    if kind not in ("lora", "qlora"):
        settings.refuse("adapter", "not among those that brimful can trace (lora, qlora)")
    targets = "all-linear"
    if not settings.flag("lora_target_linear"):
        value = settings["lora_target_modules"]
        if is_off(value):
            settings.refuse("lora_target_modules", "names no layers, nor does lora_target_linear")
        if value != "all-linear":
            targets = ",".join(settings.names("lora_target_modules"))
    kept = settings["peft_autocast_adapter_dtype"]
    dtype = "fp32" if kept is None or kept is True else _weights(settings)
    return Lora(
        settings.count("lora_r"),
        targets,
        settings.share("lora_dropout"),
        dtype,
        settings.flag("peft_use_dora"),
        saved=",".join(settings.names("lora_modules_to_save")),
    )


def _accumulation(settings: Settings) -> int:
    if settings.is_given("batch_size") and not settings.is_given("gradient_accumulation_steps"):
        return max(1, settings.count("batch_size") // settings.count("micro_batch_size"))
    return settings.count("gradient_accumulation_steps")


def _rows(settings: Settings) -> Literal["padded", "packed", "joined"]:
    """Packed rows of a micro-batch are one row where the kernel tells examples apart."""
    if _learns(settings) != "examples":
        return "joined" if settings.flag("dpo_padding_free") else "padded"
    if settings.flag("sample_packing"):
        return "joined"
    return "packed" if settings.flag("pad_to_sequence_len") else "padded"


def _attention(settings: Settings) -> Literal["sdpa", "eager", "flash2"]:
    older = {"flash_attention": "flash2", "sdp_attention": "sdpa", "eager_attention": "eager"}
    for key, meaning in older.items():
        if not settings.is_given("attn_implementation") and settings.flag(key):
            return meaning  # type: ignore[return-value]
    return settings.one_of("attn_implementation", ATTENTION)


def _recompute(settings: Settings) -> Literal["none", "reentrant", "non_reentrant"]:
    """Reentrant where nothing else is said."""
    if not settings.flag("gradient_checkpointing"):
        return "none"
    key = "gradient_checkpointing_kwargs"
    reentrant = is_reentrant(settings, key, settings[key], usual=is_off(settings[key]))
    return "reentrant" if reentrant else "non_reentrant"


def _plugins(settings: Settings) -> tuple[str, ...]:
    if is_off(settings["plugins"]):
        return ()
    plugins = settings.names("plugins")
    for name in plugins:
        if name not in (LIGER_PLUGIN, CUT_PLUGIN):
            settings.refuse("plugins", f"{name} is not traced")
    return plugins


def _learns(settings: Settings) -> str:
    pairs = dict.fromkeys(("dpo", "ipo", "simpo", "orpo"), "pairs")
    return settings.one_of("rl", {None: "examples", **pairs, "kto": "judged", "grpo": "rewards"})


def _preference(settings: Settings) -> preferences.Section | None:
    """With the defaults of TRL 1.8, which it calls."""
    learns, rl = _learns(settings), settings["rl"]
    if learns in ("examples", "rewards"):
        return None
    beta = settings.number("rl_beta" if settings.is_given("rl_beta") else "orpo_alpha")
    if learns == "judged":
        return preferences.of_judged(settings, beta, *_OF_JUDGED)
    others = {}
    if rl == "simpo":
        others = {
            "margin": settings.number("simpo_gamma"),
            "sft_weight": settings.number("cpo_alpha"),
        }
    return preferences.section("sigmoid" if rl == "dpo" else str(rl), beta, **others)


def flat(values: Json) -> Json:
    """The keys with those of some sections dotted, as `trl.beta`."""
    names = ("trl", "vllm", "model_config", "overrides_of_model_config")
    sections = [name for name in names if isinstance(values.get(name), Mapping)]
    inside = {f"{name}.{key}": each for name in sections for key, each in values[name].items()}
    return {key: each for key, each in values.items() if key not in sections} | inside


def _sampling(settings: Settings) -> Sampling | None:
    uses_vllm = settings.flag("trl.use_vllm")
    has_server = uses_vllm and settings["trl.vllm_mode"] != "colocate"
    if _learns(settings) != "rewards" or has_server:
        return None
    rows = settings.count("micro_batch_size") * _accumulation(settings)
    rows = settings["trl.generation_batch_size"] or rows
    share = 0.0
    if uses_vllm:
        share = settings.share("vllm.gpu_memory_utilization")
    sleeps = settings.flag("trl.vllm_enable_sleep_mode")
    return Sampling(rows, settings.count("sequence_len"), share, sleeps)


def _loss(settings: Settings) -> LossChain:
    learns = _learns(settings)
    if learns == "rewards":
        scored = settings.count("trl.max_completion_length")
        has_copy = settings.number("trl.beta") > 0 and is_off(settings["adapter"])
        return replace(OVER_LOGITS, scored=scored, second_model=has_copy)
    if learns != "examples":
        passes = int(settings["rl"] not in ("simpo", "orpo"))
        return preferences.compared(
            OVER_LOGITS,
            preferences.KTO_PASSES if learns == "judged" else passes,
            own_reference=is_off(settings["adapter"]) or settings.flag("rl_adapter_ref_model"),
            is_kept=settings.flag("precompute_ref_log_probs"),
        )
    plugins = _plugins(settings)
    if CUT_PLUGIN in plugins and settings["cut_cross_entropy"] is not False:
        return LossChain(upcast="none", cross_entropy="cut")
    if LIGER_PLUGIN in plugins and settings.flag("liger_fused_linear_cross_entropy"):
        return LIGER
    if LIGER_PLUGIN in plugins and settings.flag("liger_cross_entropy"):
        return LossChain(upcast="beside", cross_entropy="in_place")
    return OVER_LOGITS


def _lora_kernels(settings: Settings) -> tuple[bool, bool]:
    """Whether MLPs, and attention's layers, have Axolotl's LoRA kernels: switched on for one device
    unless one of the three keys is given, or code of the model's own is trusted.
    """
    keys = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
    if is_off(settings["adapter"]):
        return False, False
    if not any(settings.is_given(key) for key in keys):
        automatic = not settings.flag("trust_remote_code")
        return automatic, automatic
    mlp, query, output = (settings.flag(key) for key in keys)
    if query != output:
        settings.refuse("lora_o_kernel", "is traced together with lora_qkv_kernel only")
    return mlp, query


def _kernels(settings: Settings) -> TrainerQuirks:
    mlp, attention = _lora_kernels(settings)
    if mlp != attention:
        settings.refuse("lora_mlp_kernel", "is traced together with lora_qkv_kernel only")
    liger = LIGER_PLUGIN in _plugins(settings)
    keeps_logits = _loss(settings).cross_entropy in ("torch", "in_place")
    return TrainerQuirks(
        fused_lora=mlp,
        fused_lora_mlp=mlp,
        fused_rope=liger and settings.flag("liger_rope"),
        fused_rms_norm=liger and settings.flag("liger_rms_norm"),
        fused_norms_train=liger,
        fused_glu=liger
        and (settings.flag("liger_glu_activation") or settings.flag("liger_swiglu")),
        fp32_outputs=keeps_logits and _autocast(settings) != "none",
    )


def _clips(settings: Settings) -> bool:
    """transformers clips at 1 unless another number is given; 0 turns it off."""
    value = settings["max_grad_norm"]
    return value is None or bool(value)


def _steps(settings: Settings) -> int | None:
    return None if is_off(settings["max_steps"]) else settings.count("max_steps")


def _dataset(settings: Settings) -> str | None:
    """The first data set's path."""
    listed = settings["datasets"]
    first = listed[0] if isinstance(listed, list) and listed else None
    return str(first["path"]) if isinstance(first, dict) and first.get("path") else None


_UNTRACED = "is not traced"
TOOL = Tool(
    title="Axolotl",
    upcasts=(1,),
    version="0.18.0",
    source="axolotl-ai-cloud/axolotl@067b021c8b87a9e5e380b9173c704cf7340e30f5",
    read="2026-11-25",
    marks=("base_model", "sequence_len", "sample_packing", "lora_target_linear", "num_epochs"),
    defaults=DEFAULTS,
    facts={
        "model": model_in("base_model"),
        "weights": _weights,
        "autocast": _autocast,
        "quantize": _quantize,
        "upcast": _upcast,
        "adapter": _adapter,
        "sequence_length": count_of("sequence_len"),
        "rows": _rows,
        "micro_batch": preferences.rows(count_of("micro_batch_size"), _learns),
        "accumulation": _accumulation,
        "optimizer": lambda settings: settings.one_of("optimizer", OPTIMIZERS),
        "clips": _clips,
        "recompute": _recompute,
        "attention": _attention,
        "loss": _loss,
        "kernels": _kernels,
        "sampling": _sampling,
        "offloads": _offloads,
    },
    recipe={
        "learns": _learns,
        "preference": _preference,
        "learning_rate": number_of("learning_rate"),
        "schedule": lambda settings: str(settings["lr_scheduler"]),
        "warmup": warmup,
        "weight_decay": number_of("weight_decay"),
        "beta2": number_of("adam_beta2"),
        "epochs": lambda settings: None if _steps(settings) else settings.number("num_epochs"),
        "steps": _steps,
        "seed": count_of("seed"),
        "alpha": value_of("lora_alpha"),
        "rslora": flag_of("peft_use_rslora"),
        "dataset": _dataset,
        "loss_on_all": flag_of("train_on_inputs"),
    },
    decides={
        **because(
            SHARDING,
            """
            deepspeed fsdp fsdp_config fsdp_version dp_shard_size dp_replicate_size
            context_parallel_size tensor_parallel_size expert_parallel_size
            """,
        ),
        **because(
            "other losses of preferences are not understood", "dpo_loss_type dpo_use_weighting"
        ),
        **because(
            _UNTRACED,
            """
            dpo_use_liger_kernel layer_offloading selective_checkpointing tiled_mlp
            lora_target_parameters relora lisa_n_layers fp8 quantize_moe_experts
            experts_implementation use_eaft batch_flattening multipack_real_batches
            fp32_norms flash_attn_cross_entropy flash_optimum xformers_attention
            sage_attention flex_attention
            """,
        ),
        **because("reward models are not planned yet", "reward_model process_reward_model"),
        "num_labels": "classifiers are not planned yet",
        "processor_type": "a model that reads images or sound, whose other parts are not planned",
        "chunked_cross_entropy": f"its compiled pieces {_UNTRACED[3:]}",
        "unfrozen_parameters": "training some weights of the base is not traced",
        "peft": "further options of peft (LoftQ) are not understood",
        "gptq": "GPTQ checkpoints are not planned yet",
        **because("fake quantisation is not traced", "qat quantization"),
        "use_kernels": "kernels from the hub are not traced",
        "bnb_config_kwargs": "other options of bitsandbytes are not understood",
        "resize_token_embeddings_to_32x": "rounds the vocabulary of the tokenizer",
        "use_ray": "a job of several machines",
        **because(
            "the allocator's cache is emptied while training", "torch_empty_cache_steps gc_steps"
        ),
        "pretraining_dataset": "streamed pretraining is not planned yet",
        "optim_args": "arguments of the optimizer are not understood",
        "liger_rms_norm_gated": "is no kernel of the models that brimful traces with Liger",
        "max_packed_sequence_len": "was removed; sample_packing is meant",
    },
    assumes={
        **ASSUMES,
        "tokens": "the vocabulary is planned as published, without what these tokens add",
        "model_config.output_router_logits": "the router's scores for its loss are not counted",
        "flash_attn_fuse_mlp": "the MLP is planned unfused, as it is without xformers",
    },
    idle=words(
        """
        optim_target_modules strict model_type tokenizer_type tokenizer_config tokenizer_use_fast
        tokenizer_legacy base_model_config tokenizer_use_mistral_common chat_template
        chat_template_jinja special_tokens eot_tokens val_set_size test_datasets
        output_dir resume_from_checkpoint auto_resume_from_checkpoints lora_model_dir
        lora_fan_in_fan_out tf32 lr_scheduler_kwargs lr_groups cosine_min_lr_ratio
        cosine_constant_lr_ratio eta_min group_by_length shuffle_merged_datasets
        push_dataset_to_hub hf_use_auth_token debug local_rank world_size
        eval_sample_packing loss_watchdog_threshold loss_watchdog_patience
        early_stopping_patience saves_per_epoch evals_per_epoch remove_unused_columns
        skip_prepare_dataset torchdistx_path gptq_groupsize gptq_model_v1 adam_beta1
        dpo_label_smoothing
        adam_epsilon adam_eps use_tensorboard use_wandb use_swanlab use_mlflow use_comet
        lora_embedding_kernel revision_of_model min_sample_len excess_length_strategy
        sample_packing_group_size sample_packing_bin_size sample_packing_sequentially
        sample_packing_eff_est sample_packing_seq_len_multiplier total_num_tokens
        low_cpu_mem_usage device_map evaluation_strategy logging_steps loraplus_lr_ratio
        loraplus_lr_embedding curriculum_sampling accelerator_config
        experimental_skip_move_to_device liger_layer_norm ray_num_workers
        is_llama_derived_model is_mistral_derived_model is_falcon_derived_model
        embeddings_skip_upcast do_causal_lm_eval do_bench_eval ddp
        tokenizer_save_jinja_files added_tokens_overrides peft_init_lora_weights
        gradient_checkpointing_disable_ui streaming_multipack_buffer_size
        lr_quadratic_warmup type_of_model torch_compile_backend torch_compile_mode
        use_otel_metrics include_tps profiler_steps save_first_step datasets_num_proc
        jagged_restart_steps merge_lora
        """
    ),
    idle_prefixes=(
        "wandb_",
        "mlflow_",
        "comet_",
        "swanlab_",
        "trackio_",
        "otel_",
        "hub_",
        "save_",
        "eaft_",
        "eval",
        "lm_eval_",
        "dataset_",
        "dataloader_",
        "ddp_",
        "logging_",
        "jagged_",
        "processor_kwargs",
        "trl.",
        "vllm.",
    ),
    flat=flat,
    approximations=(
        "Evaluation is not counted; it runs with eval_batch_size rows and no gradients.",
        preferences.APPROXIMATION,
        "Axolotl's LoRA kernels are stand-ins with the same saved tensors; dropout inside MLPs is"
        " not counted.",
    ),
)
