"""torchtune's YAML: keys, defaults and what they mean for a training step on one device.

Keys are dotted here: `model._component_`. Sources in its repository: recipes/
{full,lora}_finetune_single_device.py (what is read, and the defaults), torchtune/models (builders),
torchtune/modules/{attention,loss}.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from brimful.base.dotted import flatten
from brimful.base.types import Json
from brimful.integrations.other_tools import preferences
from brimful.integrations.other_tools.division import GATHERED, PARTS, PLANNED, PartlyHeld
from brimful.integrations.other_tools.job import Sampling, Tool
from brimful.integrations.other_tools.settings import (
    Settings,
    because,
    defaults_at,
    flag_of,
    is_off,
    number_of,
    value_of,
    words,
)
from brimful.integrations.other_tools.step import LossChain, TrainerQuirks
from brimful.integrations.other_tools.training_arguments import SHARDING
from brimful.model import catalog
from brimful.planning.step import Lora

_OF_SEVERAL: Json = {
    "fsdp_cpu_offload": False,
    "fsdp_reshard_after_forward": True,
    "custom_sharded_layers": None,
    "data_parallel_shard_dim": None,
    "data_parallel_replicate_dim": None,
}
DEFAULTS = {
    **defaults_at(
        "recipes/lora_finetune_single_device.py",
        {
            "dtype": None,
            "batch_size": None,
            "gradient_accumulation_steps": None,
            "clip_grad_norm": None,
            "enable_activation_checkpointing": False,
            "enable_activation_offloading": False,
            "optimizer_in_bwd": False,
            "model._component_": None,
            "tokenizer.max_seq_len": None,
            "dataset.packed": False,
            "dataset._component_": None,
            "dataset.source": None,
            "dataset.train_on_input": False,
            "loss._component_": None,
            "loss.beta": 0.1,
            "optimizer._component_": None,
            "optimizer.lr": None,
            "optimizer.fused": False,
            "optimizer.weight_decay": 0.01,
            "lr_scheduler._component_": None,
            "lr_scheduler.num_warmup_steps": 0,
            "epochs": 1,
            "max_steps_per_epoch": None,
            "seed": None,
        },
    ),
    **defaults_at("recipes/full_finetune_distributed.py", _OF_SEVERAL),
    **defaults_at(
        "recipes/dev/grpo_full_finetune_distributed.py",
        {
            "grpo_samples": None,
            "forward_batch_size": None,
            "max_generated_tokens": None,
            "vllm_mode": None,
            "vllm_gpu_memory_utilization": 0.0,
        },
    ),
    **defaults_at(
        "torchtune/models/*/_model_builders.py",
        {
            "model.lora_attn_modules": None,
            "model.apply_lora_to_mlp": False,
            "model.apply_lora_to_output": False,
            "model.lora_rank": 8,
            "model.lora_alpha": 16,
            "model.lora_dropout": 0.0,
            "model.use_dora": False,
            "model.quantize_base": False,
        },
    ),
}
OPTIMIZERS: Mapping[str, str] = {
    "torch.optim.AdamW": "foreach",
    "bitsandbytes.optim.AdamW8bit": "8bit",
    "bitsandbytes.optim.PagedAdamW8bit": "paged_8bit",
    "bitsandbytes.optim.PagedAdamW": "paged_32bit",
    "bitsandbytes.optim.PagedAdamW32bit": "paged_32bit",
    "torch.optim.SGD": "sgd",
    "torchao.optim.AdamW4bit": "adamw_torch_4bit",
    "torchao.optim.AdamW8bit": "adamw_torch_8bit",
    "torchao.prototype.low_bit_optim.AdamW4bit": "adamw_torch_4bit",
    "torchao.prototype.low_bit_optim.AdamW8bit": "adamw_torch_8bit",
}
LOSSES: Mapping[str, LossChain] = {
    "torchtune.modules.loss.LinearCrossEntropyLoss": LossChain("none", cross_entropy="chunked"),
    "torchtune.modules.loss.CEWithChunkedOutputLoss": LossChain(
        "none", cross_entropy="chunked_outputs"
    ),
    "torch.nn.CrossEntropyLoss": LossChain("instead"),
}
OF_PAIRS = ("torchtune.rlhf.loss.DPOLoss", "torchtune.rlhf.loss.RSOLoss")
OF_REWARDS = re.compile(r"torchtune\.dev\.(grpo|rl)\.loss\.GRPO\w*Loss")
"""Losses of preferences and of rewards, over whole logits in fp32."""
_GATHERED_OF_TWO = 0.5
"""Of the weights of a model and its reference: the trained ones stand whole in a pass."""
PROJECTIONS = {"output_proj": "o_proj", **{name: name for name in ("q_proj", "k_proj", "v_proj")}}
MLP = ("gate_proj", "up_proj", "down_proj")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")


def flat(values: Json) -> Json:
    """Dotted keys, in which references to other keys (`${output_dir}/logs`) are replaced, as
    OmegaConf does. Other templates stay.
    """
    keys = flatten(values)

    def resolved(text: str) -> Any:
        whole = _REFERENCE.fullmatch(text)
        if whole and whole[1] in keys:
            return keys[whole[1]]
        return _REFERENCE.sub(lambda each: str(keys.get(each[1], each[0])), text)

    return {
        key: resolved(value) if isinstance(value, str) else value for key, value in keys.items()
    }


def _builder(settings: Settings) -> tuple[Literal["full", "lora", "qlora"], str]:
    """How a model is tuned, and its builder's name without that."""
    component = settings["model._component_"]
    found = re.fullmatch(r"torchtune\.models\.\w+\.(?:(lora|qlora)_)?(\w+)", str(component))
    if found is None:
        settings.refuse("model._component_", "is no builder of torchtune.models")
    kind: Literal["full", "lora", "qlora"] = found[1] or "full"  # type: ignore[assignment]
    return kind, found[2]


def _model(settings: Settings) -> str:
    """Return the model of brimful's catalog that has the name of the builder."""
    _, name = _builder(settings)
    name = name.replace("code_llama2", "code_llama")
    plain = name.removesuffix("_base").removesuffix("_instruct")
    for each in (name, plain, f"{name}_hf", f"{name}_instruct"):
        if found := catalog.only_named(each):
            return found
    return str(settings.refuse("model._component_", "no model of brimful's catalog has its name"))


def _weights(settings: Settings) -> Literal["fp32", "bf16"]:
    """All weights, adapters too; there is no autocast."""
    if settings["dtype"] is None:
        settings.refuse("dtype", "must be bf16 or fp32")
    kinds: dict[str, Literal["fp32", "bf16"]] = {"bf16": "bf16", "fp32": "fp32"}
    return settings.one_of("dtype", kinds)


def _quantize(settings: Settings) -> Literal["none", "nf4"]:
    """torchao's NF4 has scales of 8 bits per 64 weights and of 32 per 256 of those, as
    bitsandbytes' with double quantisation.
    """
    kind, _ = _builder(settings)
    return "nf4" if kind == "qlora" or settings.flag("model.quantize_base") else "none"


def _adapter(settings: Settings) -> Lora | None:
    kind, _ = _builder(settings)
    if kind == "full":
        return None
    if settings.flag("model.apply_lora_to_output"):
        settings.refuse("model.apply_lora_to_output", "an adapter on the head is not traced")
    if is_off(settings["model.lora_attn_modules"]):
        settings.refuse("model.lora_attn_modules", "must name layers")
    names = settings.names("model.lora_attn_modules")
    if unknown := [name for name in names if name not in PROJECTIONS]:
        settings.refuse("model.lora_attn_modules", f"{unknown[0]} is no layer of attention")
    targets = [PROJECTIONS[name] for name in names]
    targets += MLP if settings.flag("model.apply_lora_to_mlp") else ()
    return Lora(
        settings.count("model.lora_rank"),
        ",".join(targets),
        settings.share("model.lora_dropout"),
        _weights(settings),
        settings.flag("model.use_dora"),
    )


ASSUMED_TOKENS = 2048
"""Tokens assumed of the longest example, where a file does not say it."""


def _length(settings: Settings) -> int:
    """Return the longest sequence in tokens: an example or, with GRPO, a prompt and its answer."""
    key, answers = "tokenizer.max_seq_len", 0
    if _learns(settings) == "rewards":
        answers = settings.count("max_generated_tokens")
    if settings[key] is not None:
        return settings.count(key) + answers
    if settings.flag("dataset.packed"):
        settings.refuse(key, "packed rows need a length")
    what = "prompt" if answers else "example"
    settings.assume(key, f"the longest {what} has {ASSUMED_TOKENS:,} tokens")
    return ASSUMED_TOKENS + answers


def _learns(settings: Settings) -> str:
    if settings["grpo_samples"] is not None:
        return "rewards"
    return "pairs" if settings["loss._component_"] in OF_PAIRS else "examples"


def _samples(settings: Settings) -> int:
    """Return how many samples a pass has; with GRPO all answers to a batch of prompts."""
    rows = settings.count("batch_size")
    return rows * settings.count("grpo_samples") if _learns(settings) == "rewards" else rows


def _sampling(settings: Settings) -> Sampling | None:
    """Return how answers are drawn; None where nothing is, or a server of its own does it."""
    if _learns(settings) != "rewards" or settings["vllm_mode"] == "server":
        return None
    rows = settings.count("forward_batch_size") * settings.count("grpo_samples")
    return Sampling(rows, _length(settings), settings.share("vllm_gpu_memory_utilization"))


def _rows(settings: Settings) -> Literal["padded", "packed"]:
    if not settings.flag("dataset.packed"):
        return "padded"
    settings.assume("dataset.packed", "flex attention keeps what a flash kernel does")
    return "packed"


def _optimizer(settings: Settings) -> str:
    if settings["optimizer._component_"] is None:
        settings.refuse("optimizer._component_", "must name an optimizer")
    kind = settings.one_of("optimizer._component_", OPTIMIZERS)
    return "fused" if kind == "foreach" and settings.flag("optimizer.fused") else kind


def _loss(settings: Settings) -> LossChain:
    if settings["loss._component_"] is None:
        settings.refuse("loss._component_", "must name a loss")
    learns, has_own = _learns(settings), _builder(settings)[0] == "full"
    if learns == "pairs":
        return preferences.compared(LossChain("instead"), 1, own_reference=has_own)
    if learns == "rewards" and OF_REWARDS.fullmatch(str(settings["loss._component_"])):
        return LossChain("instead", second_model=has_own)
    return settings.one_of("loss._component_", LOSSES)


def _recompute(settings: Settings) -> Literal["none", "non_reentrant"]:
    return "non_reentrant" if settings.flag("enable_activation_checkpointing") else "none"


def _attention(settings: Settings) -> Literal["expanded", "eager"]:
    """Keys and values are repeated for every query head; Gemma 2's own attention makes its scores
    whole.
    """
    _, name = _builder(settings)
    return "eager" if name.startswith("gemma2") else "expanded"


def _held(settings: Settings) -> PartlyHeld | None:
    """Return what a device holds in part: with `optimizer_in_bwd` each gradient is freed within the
    backward pass, and recipes for several devices, among them those with a reference model, divide
    the model by FSDP.
    """
    held, key = None, "optimizer_in_bwd"
    has_reference = _learns(settings) == "rewards" or (
        _learns(settings) == "pairs" and _builder(settings)[0] == "full"
    )
    by = next((each for each in _OF_SEVERAL if settings.is_given(each)), "")
    if has_reference or by:
        by = by or ("grpo_samples" if settings.is_given("grpo_samples") else "loss._component_")
        settings.assume(by, f"a recipe that divides the model (FSDP), {PLANNED}")
        parts = PARTS["FSDP's full_shard"]
        share = _GATHERED_OF_TWO if has_reference else GATHERED
        on_host = parts if settings.flag("fsdp_cpu_offload") else ()
        held = PartlyHeld(parts, on_host=on_host, buffer_bytes=None, gathered=share)
    if settings.flag(key):
        settings.assume(key, "gradients take from nothing to all of their memory")
        held = replace(held or PartlyHeld((), expected=1), perhaps=("gradients",))
    return held


def _offloads(settings: Settings) -> bool:
    key = "enable_activation_offloading"
    if settings.flag(key) and not settings.flag("enable_activation_checkpointing"):
        settings.refuse(key, "is traced with enable_activation_checkpointing only")
    return settings.flag(key)


def _accumulation(settings: Settings) -> int:
    key = "gradient_accumulation_steps"
    return 1 if settings[key] is None else settings.count(key)


def _dataset(settings: Settings) -> str | None:
    name = settings["dataset.source"] or settings["dataset._component_"]
    return None if name is None else str(name)


_PREFERENCES = "preference training is not planned yet"
TOOL = Tool(
    title="torchtune",
    version="0.7.0",
    source="pytorch/torchtune@bd2a0fc7c31430972728494fa01aaeeb0ebf1ba1",
    read="2026-11-25",
    usual=("FSDP", PartlyHeld(PARTS["FSDP's full_shard"], buffer_bytes=None)),
    marks=(
        "model._component_",
        "optimizer._component_",
        "tokenizer._component_",
        "dataset._component_",
        "loss._component_",
    ),
    defaults=DEFAULTS,
    flat=flat,
    facts={
        "model": _model,
        "weights": _weights,
        "autocast": lambda settings: "none",
        "quantize": _quantize,
        "upcast": lambda settings: "none",
        "adapter": _adapter,
        "sequence_length": _length,
        "rows": _rows,
        "micro_batch": preferences.rows(_samples, _learns),
        "accumulation": _accumulation,
        "optimizer": _optimizer,
        "clips": lambda settings: settings["clip_grad_norm"] is not None,
        "recompute": _recompute,
        "attention": _attention,
        "loss": _loss,
        "kernels": lambda settings: TrainerQuirks(),
        "offloads": _offloads,
        "held": _held,
        "sampling": _sampling,
    },
    recipe={
        "learns": _learns,
        "preference": lambda settings: (
            preferences.section("sigmoid", settings.number("loss.beta"))
            if _learns(settings) == "pairs"
            else None
        ),
        "learning_rate": number_of("optimizer.lr"),
        "schedule": lambda settings: (
            "cosine" if "cosine" in str(settings["lr_scheduler._component_"]) else "constant"
        ),
        "warmup": number_of("lr_scheduler.num_warmup_steps"),
        "weight_decay": number_of("optimizer.weight_decay"),
        "beta2": lambda settings: 0.999,
        "epochs": number_of("epochs"),
        "steps": lambda settings: None,
        "seed": value_of("seed"),
        "alpha": value_of("model.lora_alpha"),
        "rslora": lambda settings: False,
        "dataset": _dataset,
        "loss_on_all": flag_of("dataset.train_on_input"),
    },
    decides={
        **because("selective checkpointing is not traced", "ac_mode ac_option"),
        **because(
            SHARDING,
            """
            tensor_parallel_dim tensor_parallel_plan._component_ context_parallel_dim
            """,
        ),
        **because("fake quantisation is not traced", "quantizer._component_ quantizer.groupsize"),
        **because(
            _PREFERENCES,
            """
            loss.label_smoothing reward_and_value_model._component_ policy_model._component_
            """,
        ),
        **because(
            "distillation is not planned yet",
            """
            teacher_model._component_ teacher_checkpointer._component_ kd_loss._component_
            kd_ratio
            """,
        ),
        "low_cpu_ram": "is not traced",
    },
    idle=words(
        """
        output_dir shuffle device resume_from_checkpoint save_adapter_weights_only
        log_every_n_steps log_peak_memory_stats log_level cudnn_deterministic_mode
        collate_fn enable_async_checkpointing save_every_n_steps optimizer.betas
        optimizer.eps tokenizer.path tokenizer._component_ tokenizer.merges_file
        tokenizer.prompt_template tokenizer.truncation_type run_val_every_n_steps
        batch_size_val save_last_epoch_only keep_last_n_checkpoints name base_model_path
        save_every_n_epochs top_k temperature ppo_epochs num_steps stop_token_ids
        loss.kl_coeff loss.epsilon reward_functions num_fsdp_workers steps_before_sync
        tokenizer.tokenizer_json_path tokenizer.tokenizer_config_json_path
        """
    ),
    idle_prefixes=(
        "checkpointer.",
        "ref_checkpointer.",
        "vllm_",
        "vllm.",
        "metric_logger.",
        "profiler.",
        "dataset.",
        "dataset_val.",
        "lr_scheduler.",
        "tokenizer.special",
    ),
    approximations=(
        "torchtune's own blocks are traced as transformers' with its attention, loss, types and"
        " optimizer: their rotary positions are computed in fp32, which is not counted.",
        "The file does not say which recipe runs it: this is the step on one device, unless it"
        " learns from rewards or trains all weights on preferences.",
        preferences.APPROXIMATION,
    ),
)
