"""Arguments of transformers' Trainer with those of its example script run_clm.py, which names the
model and the length.

Sources: src/transformers/training_args.py, trainer.py and
examples/pytorch/language-modeling/run_clm.py.
"""

from typing import Any, Literal

from brimful.integrations.other_tools import training_arguments as hf
from brimful.integrations.other_tools.job import Tool
from brimful.integrations.other_tools.settings import Settings, defaults_at, model_in, words

DEFAULTS = {
    **hf.DEFAULTS,
    **defaults_at(
        "examples/pytorch/language-modeling/run_clm.py",
        {
            "model_name_or_path": None,
            "dtype": None,
            "torch_dtype": None,
            "attn_implementation": None,
            "block_size": None,
            "dataset_name": None,
            "train_file": None,
        },
    ),
}
DTYPES: dict[Any, Literal["fp32", "bf16", "fp16", "published"]] = {
    None: "published",
    "auto": "published",
    "float32": "fp32",
    "bfloat16": "bf16",
    "float16": "fp16",
}
"""transformers 5 loads weights as they were published where nothing else is said."""


def _weights(settings: Settings) -> Literal["fp32", "bf16", "fp16", "published"]:
    key = "torch_dtype" if settings.is_given("torch_dtype") else "dtype"
    return settings.one_of(key, DTYPES)


def _length(settings: Settings) -> int:
    if settings["block_size"] is None:
        settings.refuse("block_size", "without it the tokenizer decides the length of a row")
    return settings.count("block_size")


TOOL = Tool(
    title="transformers' Trainer",
    version="5.23.0",
    source="huggingface/transformers@v5.23.0",
    read="2026-11-25",
    marks=("block_size", "train_file", "config_overrides"),
    defaults=DEFAULTS,
    facts={
        "model": model_in(
            "model_name_or_path", "must name a model; TrainingArguments alone do not"
        ),
        "weights": _weights,
        "autocast": hf.autocast,
        "quantize": lambda settings: "none",
        "upcast": lambda settings: "none",
        "adapter": lambda settings: None,
        "sequence_length": _length,
        "rows": lambda settings: "packed",
        "micro_batch": hf.micro_batch,
        "accumulation": hf.accumulation,
        "optimizer": hf.optimizer,
        "clips": hf.clips,
        "recompute": hf.recompute,
        "attention": lambda settings: settings.one_of("attn_implementation", hf.ATTENTION),
        "loss": hf.loss,
        "kernels": hf.kernels,
    },
    recipe={
        **hf.RECIPE,
        "dataset": lambda settings: settings["train_file"] or settings["dataset_name"],
        "loss_on_all": lambda settings: True,
    },
    decides={
        **hf.DECIDES,
        "config_name": "another config than the model's is not looked up",
        "config_overrides": "changes of the model's config are not applied",
        "model_type": "a model from scratch is described by a config that is not in this file",
    },
    idle=hf.IDLE
    | words(
        """
        tokenizer_name cache_dir use_fast_tokenizer model_revision token trust_remote_code
        low_cpu_mem_usage dataset_config_name validation_file max_train_samples
        max_eval_samples streaming overwrite_cache validation_split_percentage
        preprocessing_num_workers keep_linebreaks
        """
    ),
    idle_prefixes=hf.IDLE_PREFIXES,
    approximations=(
        "Rows are block_size tokens, as run_clm.py packs them; evaluation is not counted.",
    ),
)
