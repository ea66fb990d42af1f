"""LLaMA-Factory's YAML: keys, defaults and what they mean for a training step.

Sources in its repository: src/llamafactory/hparams/*.py (defaults), hparams/parser.py (compute
type), model/adapter.py (casts to fp32) and checkpointing.py, quantization.py and liger_kernel.py in
model/model_utils, train/dpo/trainer.py and train/kto/trainer.py (losses of preferences).
"""

from typing import Any, Literal

from brimful.integrations.other_tools import preferences
from brimful.integrations.other_tools import training_arguments as hf
from brimful.integrations.other_tools.job import Tool
from brimful.integrations.other_tools.settings import (
    Settings,
    because,
    count_of,
    defaults_at,
    flag_of,
    is_off,
    model_in,
    value_of,
    words,
)
from brimful.integrations.other_tools.step import LossChain, TrainerQuirks
from brimful.planning.step import Lora

DEFAULTS = {
    **hf.DEFAULTS,
    **defaults_at(
        "hparams/model_args.py",
        {
            "model_name_or_path": None,
            "flash_attn": "auto",
            "enable_liger_kernel": False,
            "disable_gradient_checkpointing": False,
            "use_reentrant_gc": True,
            "use_unsloth_gc": False,
            "upcast_layernorm": False,
            "upcast_lmhead_output": False,
            "quantization_bit": None,
            "quantization_method": "bnb",
            "quantization_type": "nf4",
            "double_quantization": True,
        },
    ),
    **defaults_at(
        "hparams/finetuning_args.py",
        {
            "stage": "sft",
            "finetuning_type": "lora",
            "lora_rank": 8,
            "lora_alpha": None,
            "lora_dropout": 0.0,
            "lora_target": "all",
            "use_dora": False,
            "use_rslora": False,
            "additional_target": [],
            "use_muon": False,
            "pure_bf16": False,
            "pref_loss": "sigmoid",
            "pref_beta": 0.1,
            "pref_ftx": 0.0,
            "kto_chosen_weight": 1.0,
            "kto_rejected_weight": 1.0,
            "dpo_label_smoothing": 0.0,
            "simpo_gamma": 0.5,
            "ref_model": None,
        },
    ),
    **defaults_at(
        "hparams/data_args.py",
        {
            "cutoff_len": 2048,
            "packing": None,
            "neat_packing": False,
            "dataset": None,
            "train_on_prompt": False,
        },
    ),
}
ATTENTION: dict[Any, Literal["sdpa", "eager", "flash2"]] = {
    "auto": "sdpa",
    "sdpa": "sdpa",
    "fa2": "flash2",
    "fa3": "flash2",
    True: "flash2",
    "disabled": "eager",
}
"""auto leaves the choice to transformers, which takes sdpa; true is of versions before 0.8."""


def _is_pure(settings: Settings) -> bool:
    return settings.flag("pure_bf16")


def _computes(settings: Settings) -> Literal["bf16", "fp16", "published"]:
    """The compute type, in which the model is loaded; else as it was published."""
    if settings.flag("bf16") or _is_pure(settings):
        return "bf16"
    return "fp16" if settings.flag("fp16") else "published"


def _is_full(settings: Settings) -> bool:
    kinds = {"lora": False, "full": True}
    return settings.one_of("finetuning_type", kinds)


def _weights(settings: Settings) -> Literal["fp32", "bf16", "fp16", "published"]:
    """Trained weights are fp32, unless the job is in pure bf16."""
    if _is_full(settings) and not _is_pure(settings):
        return "fp32"
    return _computes(settings)


def _quantize(settings: Settings) -> Literal["none", "nf4", "nf4_single", "int8"]:
    if is_off(settings["quantization_bit"]):
        return "none"
    settings.one_of("quantization_method", {"bnb": "", "bitsandbytes": ""})
    if settings.count("quantization_bit") == 8:
        return "int8"
    if settings.count("quantization_bit") != 4:
        settings.refuse("quantization_bit", "only 4 and 8 bits are traced")
    settings.one_of("quantization_type", {"nf4": ""})
    return "nf4" if settings.flag("double_quantization") else "nf4_single"


def _adapter(settings: Settings) -> Lora | None:
    if _is_full(settings):
        return None
    names = settings.names("lora_target")
    dtype = _computes(settings) if _is_pure(settings) else "fp32"
    return Lora(
        settings.count("lora_rank"),
        "all-linear" if names == ("all",) else ",".join(names),
        settings.share("lora_dropout"),
        dtype if dtype != "published" else "fp32",
        settings.flag("use_dora"),
        saved=",".join(settings.names("additional_target")),
    )


def _rows(settings: Settings) -> Literal["padded", "packed", "joined"]:
    """Packed for pretraining unless that is switched off; neat packing keeps examples apart by a
    mask, which a flash kernel does not need.
    """
    packs = settings.flag("packing")
    if settings["packing"] is None:
        packs = settings["stage"] == "pt"
    if settings.flag("neat_packing"):
        if ATTENTION.get(settings["flash_attn"]) != "flash2":
            settings.refuse("neat_packing", "its mask is traced with flash_attn: fa2 only")
        packs = True
    return "packed" if packs else "padded"


def _learns(settings: Settings) -> str:
    return settings.one_of(
        "stage",
        {"pt": "examples", "sft": "examples", "dpo": "pairs", "kto": "judged", "rm": "scores"},
    )


def _preference(settings: Settings) -> preferences.Section | None:
    learns, beta = _learns(settings), settings.number("pref_beta")
    if learns in ("examples", "scores"):
        return None
    if learns == "judged":
        if settings.number("pref_ftx"):
            settings.refuse("pref_ftx", "no recipe of judged answers adds the loss of method sft")
        return preferences.of_judged(settings, beta, "kto_chosen_weight", "kto_rejected_weight")
    loss = settings.one_of("pref_loss", {name: name for name in _LOSSES})
    smooths, weight = loss in {"sigmoid", "simpo"}, settings.number("pref_ftx")
    return preferences.section(
        loss,
        beta,
        label_smoothing=settings.share("dpo_label_smoothing") if smooths else 0.0,
        margin=settings.number("simpo_gamma") if loss == "simpo" else 0.0,
        sft_weight=weight + 1.0 if loss == "orpo" else weight,
    )


_LOSSES = ("sigmoid", "hinge", "ipo", "orpo", "simpo")


def _recompute(settings: Settings) -> Literal["none", "reentrant", "non_reentrant"]:
    if settings.flag("disable_gradient_checkpointing"):
        return "none"
    if settings.flag("use_unsloth_gc"):
        return "non_reentrant"
    return "reentrant" if settings.flag("use_reentrant_gc") else "non_reentrant"


def _upcast(settings: Settings) -> Literal["none", "norms"]:
    if settings.flag("upcast_lmhead_output"):
        settings.refuse("upcast_lmhead_output", "is not traced")
    return "norms" if settings.flag("upcast_layernorm") else "none"


def _loss(settings: Settings) -> LossChain:
    """Return the loss; that of preferences is over whole logits in fp32, never Liger's."""
    learns = _learns(settings)
    if learns == "scores":
        return LossChain(upcast="beside", cross_entropy="values")
    if learns == "examples":
        return hf.LIGER if settings.flag("enable_liger_kernel") else hf.OVER_LOGITS
    loss = settings.one_of("pref_loss", {name: name for name in (*_LOSSES, "kto_pair")})
    passes = preferences.KTO_PASSES if learns == "judged" else int(loss not in {"orpo", "simpo"})
    has_own = _is_full(settings) or not is_off(settings["ref_model"])
    return preferences.compared(LossChain(upcast="instead"), passes, own_reference=has_own)


def _kernels(settings: Settings) -> TrainerQuirks:
    if settings.flag("enable_liger_kernel"):
        return TrainerQuirks(**hf.LIGER_KERNELS)
    return TrainerQuirks(fp32_outputs=hf.autocast(settings) != "none")


_UNTRACED = "is not traced"
TOOL = Tool(
    title="LLaMA-Factory",
    version="0.9.6.dev0",
    source="hiyouga/LLaMA-Factory@ff6d4d12eeb035d6ce06805a5733dd7b29f2ac30",
    read="2026-11-25",
    marks=(
        "stage",
        "finetuning_type",
        "cutoff_len",
        "lora_rank",
        "lora_target",
        "quantization_bit",
    ),
    defaults=DEFAULTS,
    facts={
        "model": model_in("model_name_or_path"),
        "weights": _weights,
        "autocast": hf.autocast,
        "quantize": _quantize,
        "upcast": _upcast,
        "adapter": _adapter,
        "sequence_length": count_of("cutoff_len"),
        "rows": _rows,
        "micro_batch": preferences.rows(hf.micro_batch, _learns),
        "accumulation": hf.accumulation,
        "optimizer": lambda settings: (
            "muon" if settings.flag("use_muon") else hf.optimizer(settings)
        ),
        "clips": hf.clips,
        "recompute": _recompute,
        "attention": lambda settings: settings.one_of("flash_attn", ATTENTION),
        "loss": _loss,
        "kernels": _kernels,
        "offloads": lambda settings: (
            settings.flag("use_unsloth_gc") and not settings.flag("disable_gradient_checkpointing")
        ),
    },
    recipe={
        **hf.RECIPE,
        "learns": _learns,
        "preference": _preference,
        "alpha": lambda settings: settings["lora_alpha"] or 2 * settings.count("lora_rank"),
        "rslora": flag_of("use_rslora"),
        "dataset": value_of("dataset"),
        "loss_on_all": lambda settings: (
            settings["stage"] == "pt" or settings.flag("train_on_prompt")
        ),
    },
    decides={
        **hf.DECIDES,
        "use_unsloth": "Unsloth's kernels are not planned through LLaMA-Factory yet",
        **because(
            _UNTRACED,
            """
            use_v1_kernels use_kt use_megatron_bridge use_mca use_hyper_parallel shift_attn
            mixture_of_depths moe_aux_loss_coef use_dft_loss use_asft_loss use_eaft_loss
            ref_model_adapters pref_bco_weight pissa_convert quantization_device_map fp8
            """,
        ),
        "use_galore": "GaLore is not traced",
        "use_apollo": "APOLLO is not traced",
        "use_badam": "BAdam is not traced",
        "use_adam_mini": "Adam-mini is not traced",
        "use_llama_pro": "training some weights of the base is not traced",
        "adapter_name_or_path": "continues an adapter whose rank and layers are not in this file",
        **because(
            "makes the vocabulary larger by an unknown number",
            "resize_vocab add_tokens add_special_tokens",
        ),
        "reward_model": "learning from rewards is not planned yet",
        "ref_model_quantization_bit": "a reference in other weights is not traced",
        "rope_scaling": "changes of the model's config are not applied",
    },
    assumes=hf.ASSUMES,
    idle=hf.IDLE
    | words(
        """
        trust_remote_code template eval_dataset dataset_dir media_dir max_samples
        preprocessing_num_workers preprocessing_batch_size overwrite_cache streaming
        buffer_size mix_strategy interleave_probs val_size tool_format default_system
        enable_thinking preserve_thinking tokenized_path data_shared_file_system
        mask_history ignore_pad_token_for_loss compute_accuracy disable_shuffling
        early_stopping_steps plot_loss include_effective_tokens_per_second
        loraplus_lr_ratio loraplus_lr_embedding pissa_init pissa_iter create_new_adapter
        freeze_vision_tower freeze_multi_modal_projector freeze_language_model
        image_max_pixels image_min_pixels video_max_pixels video_min_pixels video_fps
        video_maxlen infer_backend infer_dtype use_fast_tokenizer split_special_tokens
        model_revision low_cpu_mem_usage cache_dir print_param_status hf_hub_token
        ms_hub_token om_hub_token use_kv_cache offload_folder adapter_folder
        placement_strategy resources_per_worker master_addr master_port asft_alpha eaft_alpha
        kt_lora_expert_num ld_alpha
        """
    ),
    idle_prefixes=(
        *hf.IDLE_PREFIXES,
        "swanlab_",
        "use_swanlab",
        "galore_",
        "apollo_",
        "badam_",
        "ppo_",
        "freeze_",
        "export_",
        "vllm_",
        "sglang_",
        "profiler_",
        "ray_",
    ),
    approximations=("Evaluation is not counted.", preferences.APPROXIMATION),
)
