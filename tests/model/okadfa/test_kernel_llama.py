"""Llama with kernel attention: heads of queries share the features of their keys. That every way of
reading a text gives the same is in test_modeling.py.
"""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from brimful.model.blocks import CACHE_NAME
from brimful.model.okadfa.kernel_llama import (
    KernelLlamaAttention,
    KernelLlamaConfig,
    KernelLlamaForCausalLM,
)
from brimful.model.registered import register

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def _known() -> None:
    register()


def _model(**values: object) -> PreTrainedModel:
    """Four heads of queries on two of keys, each with a temperature of its own."""
    sizes = {
        "vocab_size": 60,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_features": 48,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            KernelLlamaConfig(**sizes | values)
        )
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.log_temperature_G.copy_(torch.tensor([-1.0, 0.5]))
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval()


def _ids(rows: int, length: int) -> Tensor:
    return torch.randint(1, 60, (rows, length), generator=torch.Generator().manual_seed(1))


def test_attention_nears_softmax_of_the_cosines_with_many_features() -> None:
    model = _model(num_features=8192, num_hidden_layers=1)
    attention: KernelLlamaAttention = model.model.layers[0].self_attn
    hidden_BTD = torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(2))
    rotary = model.model.rotary_emb(hidden_BTD, position_ids=torch.arange(40)[None])
    queries, keys, values = (
        project(hidden_BTD).unflatten(-1, (-1, 16)).transpose(1, 2)
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    queries, keys = apply_rotary_pos_emb(queries, keys, *rotary)
    factor_H11 = attention.log_temperature_G.exp().repeat_interleave(2)[:, None, None]
    expected_BHTD = F.scaled_dot_product_attention(
        F.normalize(queries, dim=-1) * factor_H11,
        F.normalize(keys, dim=-1),
        values,
        is_causal=True,
        scale=1.0,
        enable_gqa=True,
    )
    found = attention(hidden_BTD, rotary)[0]
    expected = attention.o_proj(expected_BHTD.transpose(1, 2).flatten(2))
    assert F.cosine_similarity(found.flatten(), expected.flatten(), dim=0) > 0.998


def test_a_cache_holds_one_sum_for_each_head_of_keys() -> None:
    """Whatever the number of heads of queries."""
    cache = _model()(_ids(2, 30), use_cache=True)[CACHE_NAME]
    assert cache.layers[0].recurrent_states[0].shape == (2, 2, 48, 17)


def test_a_written_model_is_read_back_with_its_directions(tmp_path: Path) -> None:
    model = _model()
    model.save_pretrained(tmp_path)
    read = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert type(read) is KernelLlamaForCausalLM
    for ours, theirs in zip(model.model.layers, read.model.layers, strict=True):
        assert theirs.self_attn.q_proj.weight.dtype == torch.bfloat16
        assert torch.equal(ours.self_attn.projection_GMD, theirs.self_attn.projection_GMD)
        assert torch.equal(ours.self_attn.projection_GMD, ours.self_attn.directions())


@pytest.mark.parametrize("log_temperature", [-20.0, math.log(64), 30.0])
def test_extreme_temperatures_stay_finite(log_temperature: float) -> None:
    model = _model(hidden_size=256, num_attention_heads=2, num_key_value_heads=2)
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.log_temperature_G.fill_(log_temperature)
    loss = model(_ids(2, 100), labels=_ids(2, 100)).loss
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
