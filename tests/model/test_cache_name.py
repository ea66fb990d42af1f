"""The cache goes in and comes out by the name of the installed transformers, and models that are
defined here take it by either name.
"""

import inspect

import pytest
import torch
from transformers import (
    BloomForCausalLM,
    Gemma2ForCausalLM,
    GenerationMixin,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from brimful.base.types import JsonDict
from brimful.model.cache_name import CACHE_NAME
from brimful.model.okadfa.configuration import OkadfaConfig
from brimful.model.okadfa.kernel_llama import KernelLlamaConfig, KernelLlamaForCausalLM
from brimful.model.okadfa.modeling import OkadfaForCausalLM

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
