"""Llama with kernel attention: every way of reading a text gives the same, and heads of queries
share the features of their keys.
"""

import copy
import math
from pathlib import Path

import pytest
import torch
from fixture_types import Refuses
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from brimful.model.cache_name import CACHE_NAME
from brimful.model.okadfa.kernel_llama import (
    KernelLlamaAttention,
    KernelLlamaConfig,
    KernelLlamaForCausalLM,
)
from brimful.model.registered import register
from brimful.training.selective import recompute_activations

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


def test_blocks_that_keep_no_features_give_the_same_with_the_same_gradients() -> None:
    model, ids_BT = _model(), _ids(2, 150)
    mask_BT = (torch.arange(150) >= torch.tensor([[0], [20]])).long()
    gradients = {}
    for implementation in ("sdpa", "brimful_blocks"):
        model.config._attn_implementation = implementation
        model.zero_grad()
        model(ids_BT, attention_mask=mask_BT, labels=ids_BT).loss.backward()
        gradients[implementation] = {
            name: parameter.grad for name, parameter in model.named_parameters()
        }
    torch.testing.assert_close(gradients["brimful_blocks"], gradients["sdpa"], **CLOSE)


def test_the_future_is_not_looked_at() -> None:
    model, ids_BT = _model(), _ids(2, 150)
    changed_BT = ids_BT.clone()
    changed_BT[:, 90:] = 60 - changed_BT[:, 90:]
    with torch.no_grad():
        before, after = model(ids_BT).logits, model(changed_BT).logits
    torch.testing.assert_close(before[:, :90], after[:, :90], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before[:, 90:], after[:, 90:])


def test_padding_and_packing_change_nothing_of_a_text(refuses: Refuses) -> None:
    lengths = (3, 90, 1, 70)
    model, ids_BT = _model(), _ids(1, sum(lengths))
    positions_BT = torch.cat([torch.arange(each) for each in lengths])[None]
    padding, text = torch.zeros(1, 13, dtype=torch.long), torch.ones(1, 90, dtype=torch.long)
    with torch.no_grad():
        alone = [model(each).logits for each in ids_BT.split(lengths, dim=1)]
        packed = model(
            ids_BT, position_ids=positions_BT, packed_lengths=torch.tensor([*lengths, 0])
        ).logits
        left = model(
            torch.cat([padding, ids_BT[:, 3:93]], 1), attention_mask=torch.cat([padding, text], 1)
        ).logits[:, 13:]
    torch.testing.assert_close(packed, torch.cat(alone, dim=1), **CLOSE)
    torch.testing.assert_close(left, alone[1], **CLOSE)
    with refuses(ValueError):
        model(_ids(1, 6), packed_lengths=torch.tensor([2, 4]), use_cache=True)


def test_a_text_read_in_parts_and_generated_with_a_cache_is_the_same() -> None:
    model, ids_BT = _model(), _ids(2, 100)
    with torch.no_grad():
        whole, parts, cache = model(ids_BT).logits, [], None
        for start, end in ((0, 70), (70, 71), (71, 100)):
            outputs = model(ids_BT[:, start:end], use_cache=True, **{CACHE_NAME: cache})
            cache = outputs[CACHE_NAME]
            parts.append(outputs.logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, **CLOSE)
    # One sum for each head of keys, whatever the number of heads of queries.
    assert cache.layers[0].recurrent_states[0].shape == (2, 2, 48, 17)
    mask_BT = torch.ones(2, 9, dtype=torch.long)
    mask_BT[1, :4] = 0
    options = {
        "attention_mask": mask_BT,
        "max_new_tokens": 30,
        "do_sample": False,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    first = ids_BT[:, :9]
    assert torch.equal(
        model.generate(first, **options), model.generate(first, **options, use_cache=False)
    )


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


def test_recomputed_activations_give_the_same_gradients() -> None:
    plain, recomputed = _model(), copy.deepcopy(_model())
    recompute_activations(recomputed)
    for model in (plain, recomputed):
        model.train()
        model(_ids(2, 40), labels=_ids(2, 40)).loss.backward()
    for ours, theirs in zip(plain.parameters(), recomputed.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-5, atol=1e-6)
