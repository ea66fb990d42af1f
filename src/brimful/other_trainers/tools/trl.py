"""Arguments of `trl sft`: keys, defaults and what they mean for a training step.

Sources in its repository: trl/trainer/{sft_config,base_config,model_config}.py (defaults),
trl/trainer/sft_trainer.py (loss, adapters in bf16 on a 4-bit base, packing),
trl/scripts/sft.py (what is handed to the model), trl/kernels/chunked_logprob.py (loss in tiles).
"""

from typing import Any, Literal

from brimful.other_trainers import training_arguments as hf
from brimful.other_trainers.job import Tool
from brimful.other_trainers.settings import Settings, defaults_at, is_off, words
from brimful.other_trainers.step import LossChain, TrainerQuirks
from brimful.planning.step import Lora

DEFAULTS = {
    **hf.DEFAULTS,
    **defaults_at("trl/trainer/base_config.py", {"gradient_checkpointing": True, "bf16": None}),
    **defaults_at(
        "trl/trainer/sft_config.py",
        {
            "learning_rate": 2e-5,
            "max_length": 1024,
            "packing": False,
            "packing_strategy": "bfd",
            "padding_free": False,
            "loss_type": "nll",
            "completion_only_loss": None,
            "assistant_only_loss": False,
        },
    ),
    **defaults_at(
        "trl/trainer/model_config.py",
        {
            "model_name_or_path": None,
            "dtype": "float32",
            "attn_implementation": None,
            "use_peft": False,
            "lora_r": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.05,
            "lora_target_modules": None,
            "use_rslora": False,
            "use_dora": False,
            "load_in_8bit": False,
            "load_in_4bit": False,
            "bnb_4bit_quant_type": "nf4",
            "use_bnb_nested_quant": False,
        },
    ),
    **defaults_at("trl/scripts/utils.py", {"dataset_name": None}),
}
DTYPES: dict[Any, Literal["fp32", "bf16", "fp16", "published"]] = {
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "auto": "published",
}
ATTENTION: dict[Any, Literal["sdpa", "eager", "flash2"]] = {
    None: "sdpa",
    "sdpa": "sdpa",
    "eager": "eager",
    "flash_attention_2": "flash2",
    "kernels-community/flash-attn2": "flash2",
}
"""Without a choice transformers takes sdpa."""
USUAL_TARGETS = "usual"
"""Value of the fact "adapter targets" where peft chooses the layers by the type of the model."""


def _autocast(settings: Settings) -> Literal["none", "bf16", "fp16"]:
    """bf16 unless fp16 is asked for."""
    if settings["bf16"] is None:
        return "fp16" if settings.flag("fp16") else "bf16"
    return hf.autocast(settings)


def _quantize(settings: Settings) -> Literal["none", "nf4", "nf4_single"]:
    if settings.flag("load_in_8bit"):
        settings.refuse("load_in_8bit", "8-bit layers (LLM.int8) are not traced")
    if not settings.flag("load_in_4bit"):
        return "none"
    settings.one_of("bnb_4bit_quant_type", {"nf4": ""})
    if settings["dtype"] in ("float32", "auto"):
        settings.refuse(
            "dtype", "is also the type in which 4-bit layers compute; only 16 bits are traced"
        )
    return "nf4" if settings.flag("use_bnb_nested_quant") else "nf4_single"


def _adapter(settings: Settings) -> Lora | None:
    """fp32 as peft leaves them, bf16 on a 4-bit base."""
    if not settings.flag("use_peft"):
        return None
    given = settings["lora_target_modules"]
    targets = USUAL_TARGETS if is_off(given) else ",".join(settings.names("lora_target_modules"))
    return Lora(
        settings.count("lora_r"),
        targets,
        settings.share("lora_dropout"),
        "bf16" if settings.flag("load_in_4bit") else "fp32",
        settings.flag("use_dora"),
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


def _loss(settings: Settings) -> LossChain:
    """Also with Liger's kernels, whose own loss is switched off."""
    settings.one_of("loss_type", {"nll": "nll", "chunked_nll": "nll"})
    return LossChain(upcast="none", cross_entropy="tiled")


def _kernels(settings: Settings) -> TrainerQuirks:
    if hf.is_liger(settings):
        return TrainerQuirks(**hf.LIGER_KERNELS)
    return TrainerQuirks()


def _model(settings: Settings) -> str:
    name = settings["model_name_or_path"]
    if not isinstance(name, str):
        settings.refuse("model_name_or_path", "must name a model")
    return str(name)


_PREFERENCES = "preference training is not planned yet"
_RENAMED = "was renamed in later versions of TRL, to"
_UNTRACED = "is not traced"
TOOL = Tool(
    title="TRL",
    version="1.16.0",
    source="the package index, trl@1.16.0",
    read="2026-11-25",
    marks=(
        "max_length",
        "use_peft",
        "loss_type",
        "packing_strategy",
        "assistant_only_loss",
        "dataset_kwargs",
        "dataset_text_field",
        "beta",
        "dataset_mixture",
        "lora_task_type",
        "use_bnb_nested_quant",
    ),
    defaults=DEFAULTS,
    facts={
        "model": _model,
        "weights": lambda settings: settings.one_of("dtype", DTYPES),
        "autocast": _autocast,
        "quantize": _quantize,
        "upcast": lambda settings: "none",
        "adapter": _adapter,
        "sequence_length": lambda settings: settings.count("max_length"),
        "rows": _rows,
        "micro_batch": hf.micro_batch,
        "accumulation": hf.accumulation,
        "optimizer": hf.optimizer,
        "clips": hf.clips,
        "recompute": hf.recompute,
        "attention": lambda settings: settings.one_of("attn_implementation", ATTENTION),
        "loss": _loss,
        "kernels": _kernels,
    },
    recipe={
        **hf.RECIPE,
        "alpha": lambda settings: settings["lora_alpha"],
        "rslora": lambda settings: settings.flag("use_rslora"),
        "dataset": lambda settings: settings["dataset_name"],
        "loss_on_all": lambda settings: (
            not (settings["completion_only_loss"] or settings["assistant_only_loss"])
        ),
    },
    decides={
        **hf.DECIDES,
        "activation_offloading": "activations go to the host",
        "lora_modules_to_save": "further trained copies of modules are not traced",
        "lora_target_parameters": _UNTRACED,
        "bnb_4bit_quant_storage": _UNTRACED,
        "model_init_kwargs": "further arguments of the model are not understood",
        "beta": _PREFERENCES,
        "max_prompt_length": _PREFERENCES,
        "max_completion_length": _PREFERENCES,
        "num_generations": _PREFERENCES,
        "max_seq_length": f"{_RENAMED} max_length",
        "torch_dtype": f"{_RENAMED} dtype",
        "use_liger": f"{_RENAMED} use_liger_kernel",
    },
    idle=hf.IDLE
    | words(
        """
        env trust_remote_code model_revision router_aux_loss_coef chat_template_path
        chat_template dataset_text_field dataset_kwargs dataset_num_proc eos_token
        pad_token truncation_mode shuffle_dataset pad_to_multiple_of eval_packing
        lora_task_type dataset_config dataset_train_split dataset_test_split
        dataset_streaming ignore_bias_buffers datasets streaming test_split_size
        dataset_mixture config
        """
    ),
    idle_prefixes=hf.IDLE_PREFIXES,
    approximations=("Evaluation is not counted.",),
)
