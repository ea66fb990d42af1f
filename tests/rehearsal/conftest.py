"""Steps of tiny models, declared."""

import json
from typing import Any

import pytest
from fixture_types import MakeStep
from transformers import (
    AutoConfig,
    BertConfig,
    DebertaV2Config,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3MoeConfig,
)

from brimful.base.types import JsonDict
from brimful.model.description import config_values
from brimful.model.registered import register
from brimful.planning.step import StepSpec, canonical
from brimful.recipe import ModelRecipe

DECODER = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _config(family: str, blocks: int) -> PretrainedConfig:
    if family == "gpt2":
        return GPT2Config(vocab_size=512, n_embd=64, n_layer=blocks, n_head=4, n_positions=128)
    if family == "modernbert":
        described = ModelRecipe(
            architecture="modernbert", layers=blocks, heads=4, width=64, mlp_width=160
        )
        return AutoConfig.for_model(
            **config_values(described, vocabulary=512, context=128),
            bos_token_id=None,
            eos_token_id=None,
        )
    if family == "okadfa":
        register()
        described = ModelRecipe(architecture="okadfa", layers=blocks, heads=4, width=64)
        return AutoConfig.for_model(
            **config_values(described, vocabulary=512, context=128),
            bos_token_id=None,
            eos_token_id=None,
        )
    if family == "deberta-v2":
        return DebertaV2Config(
            vocab_size=512,
            hidden_size=384,
            intermediate_size=768,
            num_hidden_layers=blocks,
            num_attention_heads=6,
            max_position_embeddings=512,
            relative_attention=True,
            position_buckets=64,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
        )
    if family == "bert":
        return BertConfig(
            vocab_size=512,
            hidden_size=64,
            intermediate_size=256,
            num_hidden_layers=blocks,
            num_attention_heads=4,
        )
    like_llama = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3_moe": Qwen3MoeConfig}
    experts = {"num_experts": 8, "moe_intermediate_size": 64} if family == "qwen3_moe" else {}
    return like_llama[family](**DECODER, **experts, num_hidden_layers=blocks)


@pytest.fixture(scope="session")
def step() -> MakeStep:
    """`step("llama", blocks=2, key=value, ...)` is a step of a tiny model on this CPU, 64 tokens
    per sequence. `options` are those of the method.
    """

    def make(family: str = "llama", *, blocks: int = 2, **changes: Any) -> StepSpec:
        values: JsonDict = {"sequence_length": 64, "loss_chunk": 128, "cuda": False} | changes
        options: JsonDict = values.pop("options", {})
        if family in {"bert", "deberta-v2"}:
            values, options = {"method": "classify", **values}, {"labels": 2, **options}
        if family == "modernbert":
            values, options = {"method": "mlm", **values}, {"masked_share": 0.15, **options}
        if "feedback" in options:
            values["method"] = "feedback"
        values["options_json"] = json.dumps(options, sort_keys=True)
        return StepSpec(config_json=canonical(_config(family, blocks).to_dict()), **values)

    return make
