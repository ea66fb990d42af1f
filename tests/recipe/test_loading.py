"""Keys and verbs of other tools, typed as brimful's, suggest the one that is meant."""

import pytest

from brimful.base.errors import RecipeError
from brimful.base.keys import describe_keys
from brimful.cli.verbs import GROUPS
from brimful.integrations.other_tools.recognise import tool_named, tool_names
from brimful.recipe import Recipe, load
from brimful.recipe.loading import OTHER_NAMES, OTHER_VERBS

KEYS = {key for key, *_ in describe_keys(Recipe)}
OWN = {key.rpartition(".")[2] for key in KEYS}
OF_KERNELS = {
    "unsloth",
    "trl_version",
    "trl_command",
    "plugins",
    "loss_type",
    "padding_free",
    "optimizer_in_bwd",
    "upcast_layernorm",
    "callbacks",
}
PREFIXES = ("liger_", "lora_", "use_liger", "enable_liger", "cut_", "upcast_")
PARTS = ("_kwargs", "_component_", "quant", "trust_remote_code", "adapter_dtype", "pad_to", "vllm")
"""Keys of the tools' tables that no key of a recipe stands for."""
OF_OTHER_LOSSES = {
    "desirable_weight",
    "undesirable_weight",
    "f_divergence_type",
    "ld_alpha",
    "use_weighting",
}
"""Of KTO, and of variants of DPO that brimful does not have."""


def test_only_keys_and_verbs_that_exist_are_suggested() -> None:
    assert set(OTHER_NAMES.values()) <= KEYS
    assert not OTHER_NAMES.keys() & OWN
    verbs = {name for group in GROUPS.values() for name in group}
    assert set(OTHER_VERBS.values()) <= verbs
    assert not OTHER_VERBS.keys() & verbs


@pytest.mark.parametrize("tool", tool_names())
def test_every_key_that_decides_in_another_tool_is_known(tool: str) -> None:
    names = {key.rpartition(".")[2]: key for key in tool_named(tool).defaults}
    unknown = {key for name, key in names.items() if name not in OTHER_NAMES.keys() | OWN}
    without = {
        key
        for key in unknown
        if not (key in OF_KERNELS or key.startswith(PREFIXES) or any(map(key.__contains__, PARTS)))
    }
    assert without - OF_OTHER_LOSSES <= {
        "optimizer.fused",
        "max_steps_per_epoch",
        "model.apply_lora_to_output",
        "additional_target",
        "forward_batch_size",
        "fsdp_cpu_offload",
        "fsdp_reshard_after_forward",
        "data_parallel_replicate_dim",
    } | {"packing_strategy"}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr=1e-4", ["optimizer.learning_rate"]),
        ("lora_r=8", ["adapter.rank"]),
        ("finetune=lora", ["method"]),
        ("epochs=3", ["training.epochs"]),
        ("batch_size=4", ["batch.sequences"]),
        ("training.num_train_epochs=3", ["training.epochs"]),
        ("pref_beta=0.1", ["preference.beta"]),
        ("dropout=0.1", ["model.dropout", "adapter.dropout"]),
    ],
)
def test_the_key_that_is_meant_is_suggested(typed: str, meant: list[str]) -> None:
    with pytest.raises(RecipeError) as told:
        load("lora", ["data.path=x.jsonl", typed])
    suggested = " or ".join(map(repr, meant))
    assert f"{typed.partition('=')[0]}: unknown key - did you mean {suggested}?" in str(told.value)
