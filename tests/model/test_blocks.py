"""Blocks are found in encoders and causal models alike, and every parameter has its place."""

import inspect
from typing import Any

import pytest
import torch
from fixture_types import Refuses
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BloomForCausalLM,
    Gemma2ForCausalLM,
    GenerationMixin,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from brimful.base.errors import PlanError
from brimful.base.types import JsonDict
from brimful.model.blocks import CACHE_NAME, depth_of_parameters, named_blocks_of
from brimful.model.okadfa.kernel_llama import KernelLlamaConfig, KernelLlamaForCausalLM
from brimful.model.okadfa.modeling import OkadfaConfig, OkadfaForCausalLM

_BERT = {
    "hidden_size": 8,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 10,
}


def _bert() -> nn.Module:
    return BertForSequenceClassification(BertConfig(**_BERT))


def _gpt2() -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(n_layer=3, n_embd=8, n_head=2, vocab_size=10, bos_token_id=0, eos_token_id=0)
    )


def _llama() -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**_BERT))


def _modernbert() -> nn.Module:
    return ModernBertForMaskedLM(
        ModernBertConfig(
            **_BERT, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
        )
    )


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (_bert, "bert.encoder.layer"),
        (_gpt2, "transformer.h"),
        (_llama, "model.layers"),
        (_modernbert, "model.layers"),
    ],
)
def test_blocks_are_found_by_name(make: Any, name: str) -> None:
    found, blocks = named_blocks_of(make())

    assert (found, len(blocks)) == (name, 3)


@pytest.mark.parametrize(
    ("make", "depths"),
    [
        (
            _bert,
            {
                "bert.embeddings.word_embeddings.weight": 0,
                "bert.embeddings.LayerNorm.bias": 0,
                "bert.encoder.layer.2.output.dense.bias": 3,
                "classifier.weight": 4,
            },
        ),
        (
            _gpt2,
            {
                "transformer.wte.weight": 0,
                "transformer.wpe.weight": 0,
                "transformer.h.0.ln_1.weight": 1,
                "transformer.ln_f.weight": 4,
            },
        ),
        (
            _modernbert,
            {
                "model.embeddings.tok_embeddings.weight": 0,
                "model.layers.1.mlp.Wi.weight": 2,
                "model.final_norm.weight": 4,
                "head.dense.weight": 4,
            },
        ),
    ],
)
def test_depth_counts_from_the_embeddings_to_the_head(make: Any, depths: dict[str, int]) -> None:
    found = depth_of_parameters(make())

    assert {name: found[name] for name in depths} == depths
    assert set(found.values()) == {0, 1, 2, 3, 4}


def test_a_model_without_blocks_is_told(refuses: Refuses) -> None:
    with refuses(PlanError):
        named_blocks_of(nn.Linear(2, 2))


SIZES: JsonDict = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
IDS = torch.tensor([[5, 9, 20, 3]])


def test_causal_models_and_generate_name_it_so() -> None:
    published = (
        BloomForCausalLM,
        Gemma2ForCausalLM,
        GPT2LMHeadModel,
        LlamaForCausalLM,
        MistralForCausalLM,
        Qwen2ForCausalLM,
        Qwen3ForCausalLM,
    )
    functions = [each.forward for each in published]
    functions.append(GenerationMixin.prepare_inputs_for_generation)
    assert all(CACHE_NAME in inspect.signature(each).parameters for each in functions)
    llama = LlamaForCausalLM(LlamaConfig(**SIZES, intermediate_size=16))
    assert getattr(llama(IDS, use_cache=True), CACHE_NAME).get_seq_length() == 4


def ours() -> list[PreTrainedModel]:
    return [
        OkadfaForCausalLM(OkadfaConfig(**SIZES)),
        OkadfaForCausalLM(OkadfaConfig(**SIZES, attention="softmax")),
        KernelLlamaForCausalLM(
            KernelLlamaConfig(**SIZES, intermediate_size=16, num_key_value_heads=1)
        ),
    ]


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
@pytest.mark.parametrize("number", range(3), ids=["okadfa", "softmax", "kernel llama"])
def test_models_of_brimful_take_it_by_either_name(number: int, name: str) -> None:
    model = ours()[number].eval()
    if isinstance(model, KernelLlamaForCausalLM) and name != CACHE_NAME:
        model = model.model  # the head is transformers' own
    with torch.no_grad():
        whole = model(IDS)[0]
        cache = model(IDS[:, :3], use_cache=True)[CACHE_NAME]
        last = model(IDS[:, 3:], use_cache=True, **{name: cache})
    assert last[CACHE_NAME] is cache
    torch.testing.assert_close(last[0], whole[:, 3:], rtol=1e-5, atol=1e-6)
