"""Arguments of `trl sft`, `trl dpo`, `trl kto` and `trl grpo`: keys, defaults and what they mean
for a step.

Sources in its repository: trl/trainer/{sft_config,base_config,model_config}.py (defaults),
trl/trainer/sft_trainer.py (loss, adapters in bf16 on a 4-bit base, packing),
trl/scripts/sft.py (what is handed to the model), trl/kernels/chunked_logprob.py (loss in tiles),
trl/trainer/{dpo,kto,grpo}_{config,trainer}.py (defaults, passes of the reference).
"""

import re
from dataclasses import replace
from typing import Any, Literal

from brimful.base.types import Json, JsonDict
from brimful.integrations.other_tools import preferences
from brimful.integrations.other_tools import training_arguments as hf
from brimful.integrations.other_tools.job import Sampling, Tool
from brimful.integrations.other_tools.settings import (
    Settings,
    because,
    defaults_at,
    flag_of,
    is_off,
    model_in,
    value_of,
    words,
)
from brimful.integrations.other_tools.step import LossChain, TrainerQuirks
from brimful.planning.step import Lora
from brimful.recipe.preference import OF_JUDGED

_OF_PAIRS: Json = {
    "beta": 0.1,
    "precompute_ref_log_probs": False,
    "label_smoothing": 0.0,
    "loss_weights": None,
    "ld_alpha": None,
    "f_divergence_type": "reverse_kl",
    "use_weighting": False,
}
_OF_JUDGED: Json = {"desirable_weight": 1.0, "undesirable_weight": 1.0}
"""Keys that `trl sft` has not."""
_OF_REWARDS: Json = {
    "num_generations": 8,
    "max_completion_length": 512,
    "generation_batch_size": None,
    "steps_per_generation": None,
    "use_vllm": False,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_enable_sleep_mode": False,
}
"""Keys of `trl grpo`."""
_OF_WHOLE_LOGITS: Json = {"max_prompt_length": 512}
"""Keys that `trl grpo` had as long as it made the logits of whole answers; later prompts are not
cut, and are taken to be as long.
"""
_BETA_OF_WHOLE_LOGITS = 0.04
_VERSION, _COMMAND = "trl_version", "trl_command"
_COMMANDS = {"sft": "examples", "dpo": "pairs", "kto": "judged", "grpo": "rewards"}
DEFAULTS = {
    **hf.DEFAULTS,
    **defaults_at("trl/trainer/base_config.py", {"gradient_checkpointing": True, "bf16": None}),
    **defaults_at(
        "trl/trainer/sft_config.py",
        {
            "learning_rate": 2e-5,
            "max_length": 1024,
            "max_seq_length": None,
            "callbacks": None,
            "activation_offloading": False,
            "packing": False,
            "packing_strategy": "bfd",
            "padding_free": False,
            "loss_type": None,
            "completion_only_loss": None,
            "assistant_only_loss": False,
        },
    ),
    **defaults_at("trl/trainer/dpo_config.py", _OF_PAIRS),
    **defaults_at("trl/trainer/kto_config.py", _OF_JUDGED),
    **defaults_at("trl/trainer/grpo_config.py", _OF_REWARDS),
    **defaults_at("trl 0.19, trl/trainer/grpo_config.py", _OF_WHOLE_LOGITS),
    **defaults_at("Unsloth's scripts", {"unsloth": False}),
    **defaults_at("the user, in words of brimful's", {_VERSION: None, _COMMAND: None}),
    **defaults_at(
        "trl/trainer/model_config.py",
        {
            "model_name_or_path": None,
            "dtype": "float32",
            "torch_dtype": None,
            "use_flash_attention_2": None,
            "attn_implementation": None,
            "use_peft": False,
            "lora_r": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.05,
            "lora_target_modules": None,
            "lora_modules_to_save": [],
            "use_rslora": False,
            "use_dora": False,
            "load_in_8bit": False,
            "load_in_4bit": False,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": False,
        },
    ),
    **defaults_at("trl/scripts/utils.py", {"dataset_name": None, "dataset_train_split": "train"}),
}
DTYPES: dict[Any, Literal["fp32", "bf16", "fp16", "published"]] = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "auto": "published",
}
PEFT_LINEAR = "all-linear of peft"
"""Value of the fact "adapter targets" where peft itself is asked for all linear layers."""
_ENDS = ("embed_tokens", "lm_head")
USUAL_TARGETS = "usual"
"""Value of the fact "adapter targets" where peft chooses the layers by the type of the model."""


def _is_before(settings: Settings, version: tuple[int, int] = (1, 0)) -> bool:
    """Whether TRL is older than `version`, which is 1.0 or older. The user may name TRL's version;
    else names of keys that TRL 1.0 dropped say that it is older.
    """
    if settings.flag("unsloth"):
        return False
    older = [key for key in ("torch_dtype", "max_seq_length") if settings.is_given(key)]
    is_before, said = bool(older), settings[_VERSION]
    if said is not None:
        found = re.match(r"(\d+)\.(\d+)", str(said))
        if found is None:
            settings.refuse(_VERSION, "is no version, such as 0.27")
        named = int(found[1]), int(found[2])
        is_before, older = named < version, [_VERSION] * (named < (1, 0))
    elif not older:
        settings.assume(_VERSION, "1.0 or later; before, more is taken, up to three times")
    for key in older:
        settings.assume(key, "a version before 1.0, whose loss is over whole logits")
    return is_before


def _casts_norms(settings: Settings) -> bool:
    """Whether norms of a 4-bit base are made fp32, in which its layers then answer."""
    is_bf16 = settings.flag("load_in_4bit") and _autocast(settings) == "bf16"
    return is_bf16 and _is_before(settings, (0, 26))


def _dtype_key(settings: Settings) -> str:
    return "torch_dtype" if settings.is_given("torch_dtype") else "dtype"


def _is_16_bits(settings: Settings) -> bool:
    """Whether Unsloth chooses the type: the device's."""
    return settings.flag("unsloth") and not settings.is_given(_dtype_key(settings))


def _weights(settings: Settings) -> Any:
    if _is_16_bits(settings):
        return "bf16" if settings.native_bf16 else "fp16"
    return settings.one_of(_dtype_key(settings), DTYPES)


def _autocast(settings: Settings) -> Literal["none", "bf16", "fp16"]:
    """bf16 unless fp16 is asked for; before 0.19 only what is asked for."""
    if _is_16_bits(settings):
        return "bf16" if settings.native_bf16 else "fp16"
    if settings["bf16"] is None and not _is_before(settings, (0, 19)):
        return "fp16" if settings.flag("fp16") else "bf16"
    return hf.autocast(settings)


def _quantize(settings: Settings) -> Literal["none", "nf4", "nf4_single", "int8"]:
    if settings.flag("load_in_8bit"):
        return "int8"
    if not settings.flag("load_in_4bit"):
        return "none"
    settings.one_of("bnb_4bit_quant_type", {"nf4": ""})
    if settings[_dtype_key(settings)] in ("float32", "auto") and not _is_16_bits(settings):
        settings.refuse(
            _dtype_key(settings),
            "is also the type in which 4-bit layers compute; only 16 bits are traced",
        )
    return "nf4" if settings.flag("use_bnb_nested_quant") else "nf4_single"


def _adapter(settings: Settings) -> Lora | None:
    """fp32 as peft leaves them, bf16 on a quantised base from 0.26 on."""
    if not settings.flag("use_peft"):
        return None
    given = settings["lora_target_modules"]
    named = () if is_off(given) else settings.names("lora_target_modules")
    # Unsloth trains these whole.
    whole = [each for each in named if each in _ENDS] if settings.flag("unsloth") else []
    targets = ",".join(each for each in named if each not in whole) or USUAL_TARGETS
    targets = PEFT_LINEAR if targets == "all-linear" else targets
    return Lora(
        settings.count("lora_r"),
        targets,
        settings.share("lora_dropout"),
        "fp32" if _quantize(settings) == "none" or _casts_norms(settings) else "bf16",
        settings.flag("use_dora"),
        saved=",".join([*settings.names("lora_modules_to_save"), *whole]),
    )


def _rows(settings: Settings) -> Literal["padded", "packed", "joined"]:
    if settings.flag("packing"):
        strategies: dict[str, Literal["packed", "joined"]] = {
            "bfd": "joined",
            "bfd_split": "joined",
            "wrapped": "packed",
        }
        return settings.one_of("packing_strategy", strategies)
    return "joined" if settings.flag("padding_free") else "padded"


_LOSSES: dict[str, JsonDict] = {
    **{name: {"loss": name} for name in ("sigmoid", "hinge", "ipo", "robust")},
    "sigmoid_norm": {"loss": "sigmoid", "per_token": True},
}
"""Losses of pairs that brimful has; the others are planned alike."""
_OTHER_LOSSES = (
    *("exo_pair", "nca_pair", "bco_pair", "sppo_hard", "aot", "aot_unpaired", "apo_zero"),
    *("apo_down", "discopop", "sft"),
)


def _losses(settings: Settings) -> tuple[str, ...]:
    return () if is_off(settings["loss_type"]) else settings.names("loss_type")


def _learns(settings: Settings) -> str:
    """Return what a file's job learns from, by its TRL command where that is named, else by the
    keys that it gives.
    """
    if settings.is_given(_COMMAND):
        return settings.one_of(_COMMAND, _COMMANDS)
    named = _losses(settings)
    if any(map(settings.is_given, _OF_REWARDS)):
        return "rewards"
    if any(map(settings.is_given, _OF_JUDGED)) or {*named} & {*OF_JUDGED}:
        return "judged"
    of_pairs = {*_LOSSES, *_OTHER_LOSSES} & {*named}
    return "pairs" if of_pairs or any(map(settings.is_given, _OF_PAIRS)) else "examples"


def _preference(settings: Settings) -> preferences.Section | None:
    """The section of a recipe; None where there is none for these losses."""
    learns, named, beta = _learns(settings), _losses(settings), settings.number("beta")
    if learns in ("examples", "rewards"):
        return None
    if learns == "judged":
        (loss, *others) = named or ("kto",)
        if others or loss not in OF_JUDGED:
            settings.refuse("loss_type", "no recipe has this loss")
        return preferences.of_judged(settings, beta, "desirable_weight", "undesirable_weight", loss)
    first, *others = named or ("sigmoid",)
    settings.one_of("f_divergence_type", {"reverse_kl": ""})
    if first not in _LOSSES or others not in ([], ["sft"]) or settings.flag("use_weighting"):
        settings.refuse("loss_type", "no recipe has this loss")
    weights = settings["loss_weights"] or [1.0, 1.0]
    smoothing = settings.share("label_smoothing") if first == "robust" else 0.0
    found = {**_LOSSES[first], "label_smoothing": smoothing}
    found["sft_weight"] = weights[1] / weights[0] if others else 0.0
    return preferences.section(found.pop("loss"), beta, **found)


def _loss(settings: Settings) -> LossChain:
    """Also with Liger's kernels, whose own loss is switched off."""
    chain, learns = LossChain(upcast="none", cross_entropy="tiled"), _learns(settings)
    if _is_before(settings):
        chain = hf.loss(settings)
    if learns == "examples":
        settings.one_of("loss_type", {None: "", "nll": "", "chunked_nll": ""})
        return chain
    if learns == "rewards":
        return _of_rewards(settings, chain)
    # The other loss of judged answers has no reference point.
    has_point = learns == "judged" and OF_JUDGED[1] not in _losses(settings)
    return preferences.compared(
        chain,
        preferences.KTO_PASSES if has_point else 1,
        own_reference=not settings.flag("use_peft"),
        is_kept=settings.flag("precompute_ref_log_probs"),
    )


def _of_rewards(settings: Settings, chain: LossChain) -> LossChain:
    """Tiles of the answers' tokens; whole logits in versions that cut prompts, beside Unsloth."""
    scored, beta = settings.count("max_completion_length"), settings.number("beta")
    is_whole = settings.is_given("max_prompt_length") and not settings.flag("unsloth")
    if not settings.is_given("beta"):
        beta = _BETA_OF_WHOLE_LOGITS if is_whole else 0.0
    if is_whole:
        chain = LossChain(upcast="beside")
    has_copy = beta > 0 and not settings.flag("use_peft")
    return replace(chain, scored=scored, second_model=has_copy)


def _length(settings: Settings) -> int:
    learns = _learns(settings)
    if learns != "rewards":
        # What Unsloth loads a model for is the length of examples, not of pairs.
        is_loaded_for = learns != "examples" and settings.flag("unsloth")
        is_long = settings.is_given("max_seq_length") and not is_loaded_for
        return settings.count("max_seq_length" if is_long else "max_length")
    return settings.count("max_prompt_length") + settings.count("max_completion_length")


def _rows_of_pass(settings: Settings) -> int:
    """Of answers, Unsloth takes a whole group at a time where the file has fewer rows."""
    takes_group = _learns(settings) == "rewards" and settings.flag("unsloth")
    group = settings.count("num_generations") if takes_group else 1
    return max(hf.micro_batch(settings), group)


def _has_server(settings: Settings) -> bool:
    """Whether vLLM runs on another device, as it did by default before 1.0; where the file says how
    much of a device it takes, it is taken for this one.
    """
    if settings.is_given("vllm_mode") or settings.flag("unsloth"):
        return settings.one_of("vllm_mode", {"colocate": False, "server": True})
    older = [key for key in ("max_prompt_length", "torch_dtype") if settings.is_given(key)]
    if not older or settings.is_given("vllm_gpu_memory_utilization"):
        return False
    settings.assume("use_vllm", f"with {older[0]}, so before 1.0: vLLM is on another device")
    return True


def _sampling(settings: Settings) -> Sampling | None:
    if _learns(settings) != "rewards" or (settings.flag("use_vllm") and _has_server(settings)):
        return None
    rows = hf.micro_batch(settings)
    rows *= settings["steps_per_generation"] or hf.accumulation(settings)
    rows = max(_rows_of_pass(settings), settings["generation_batch_size"] or rows)
    share = 0.0
    if settings.flag("use_vllm"):
        share = settings.share("vllm_gpu_memory_utilization")
    sleeps, is_unsloth = settings.flag("vllm_enable_sleep_mode"), settings.flag("unsloth")
    return Sampling(rows, _length(settings), share, sleeps, is_unsloth)


def _kernels(settings: Settings) -> TrainerQuirks:
    if not is_off(settings["callbacks"]) and settings.names("callbacks") != _IDLE_CALLBACKS:
        settings.refuse("callbacks", f"may hold memory; {_IDLE_CALLBACKS[0]} does not")
    if _is_before(settings):
        return hf.kernels(settings)
    if hf.is_liger(settings):
        return TrainerQuirks(**hf.LIGER_KERNELS)
    return TrainerQuirks()


_IDLE_CALLBACKS = ("push_to_hub_revision",)
"""Callbacks of open-r1's scripts, which call TRL, that do not change a step."""


def _attention(settings: Settings) -> Literal["sdpa", "eager", "flash2"]:
    if settings.flag("use_flash_attention_2"):
        return "flash2"
    return settings.one_of("attn_implementation", hf.ATTENTION)


def _offloads(settings: Settings) -> bool:
    key = "activation_offloading"
    if settings.flag(key) and hf.recompute(settings) == "none":
        settings.refuse(key, "is traced with gradient_checkpointing only")
    return settings.flag(key)


def _learning_rate(settings: Settings) -> float:
    """Return the learning rate; by default that of the script for the method."""
    if _learns(settings) != "examples" and not settings.is_given("learning_rate"):
        return 1e-6
    return settings.number("learning_rate")


_RENAMED = "was renamed in later versions of TRL, to"
_UNTRACED = "is not traced"
TOOL = Tool(
    title="TRL",
    version="1.16.0",
    source="the package index, trl@1.16.0",
    read="2026-11-25",
    marks=(
        _COMMAND,
        "max_length",
        "use_peft",
        "loss_type",
        "packing_strategy",
        "assistant_only_loss",
        "dataset_kwargs",
        "dataset_text_field",
        "beta",
        "num_generations",
        "max_completion_length",
        "dataset_mixture",
        "lora_task_type",
        "use_bnb_nested_quant",
    ),
    defaults=DEFAULTS,
    facts={
        "model": model_in("model_name_or_path"),
        "weights": _weights,
        "autocast": _autocast,
        "quantize": _quantize,
        "upcast": lambda settings: "norms" if _casts_norms(settings) else "none",
        "adapter": _adapter,
        "sequence_length": _length,
        "rows": _rows,
        "micro_batch": preferences.rows(_rows_of_pass, _learns),
        "accumulation": hf.accumulation,
        "optimizer": hf.optimizer,
        "clips": hf.clips,
        "recompute": lambda settings: hf.recompute(
            settings, is_older=_is_before(settings, (0, 22))
        ),
        "attention": _attention,
        "loss": _loss,
        "kernels": _kernels,
        "sampling": _sampling,
        "offloads": _offloads,
    },
    recipe={
        **hf.RECIPE,
        "learning_rate": _learning_rate,
        "learns": _learns,
        "preference": _preference,
        "alpha": value_of("lora_alpha"),
        "rslora": flag_of("use_rslora"),
        "dataset": value_of("dataset_name"),
        "split": value_of("dataset_train_split"),
        "loss_on_all": lambda settings: (
            not (settings["completion_only_loss"] or settings["assistant_only_loss"])
        ),
    },
    decides={
        **hf.DECIDES,
        **because(_UNTRACED, "lora_target_parameters bnb_4bit_quant_storage"),
        "model_init_kwargs": "further arguments of the model are not understood",
        "sync_ref_model": "a reference that follows the model is not traced",
        "use_liger": f"{_RENAMED} use_liger_kernel",
    },
    assumes=hf.ASSUMES,
    idle=hf.IDLE
    | words(
        """
        env trust_remote_code model_revision router_aux_loss_coef chat_template_path
        chat_template dataset_text_field dataset_kwargs dataset_num_proc eos_token
        pad_token truncation_mode shuffle_dataset pad_to_multiple_of eval_packing
        lora_task_type dataset_config dataset_test_split embedding_learning_rate
        dataset_streaming ignore_bias_buffers datasets streaming test_split_size
        dataset_mixture config disable_dropout temperature top_p top_k min_p
        repetition_penalty epsilon epsilon_high delta scale_rewards reward_weights
        importance_sampling_level mask_truncated_completions num_generations_eval
        num_iterations reward_funcs reward_model_name_or_path num_completions_to_print
        top_entropy_quantile use_bias_correction_kl off_policy_mask_threshold discopop_tau
        f_alpha_divergence_coef precompute_ref_batch_size ref_model_mixup_alpha
        ref_model_sync_steps auto_insert_empty_system_msg
        """
    ),
    idle_prefixes=(
        *hf.IDLE_PREFIXES,
        *("vllm_", "dataset_", "preprocessing_", "wandb_", "system_prompt"),
    ),
    approximations=(
        "Evaluation is not counted.",
        preferences.APPROXIMATION,
        "Of learning from rewards, rows count as full: a group holds one as long as answers may"
        " be.",
    ),
)
