"""Small models of several kinds, wide enough to write in bf16 on a CPU."""

from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from brimful.base.types import JsonDict
from brimful.hardware.host import cpu_has_bf16
from brimful.model.published import attach_adapters
from brimful.recipe import AdapterRecipe

CONTEXT = 100
"""No multiple of the positions that attention looks at."""
needs_bf16 = pytest.mark.skipif(
    not (cpu_has_bf16() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="this processor has no instructions for bf16 products",
)
_SIZES: JsonDict = {
    "vocab_size": 300,
    "max_position_embeddings": CONTEXT,
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "head_dim": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def _made(kind: type[PreTrainedModel], config: Any) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return kind(config).eval()


def llama() -> PreTrainedModel:
    """Its blocks have a quick form."""
    return _made(LlamaForCausalLM, LlamaConfig(**_SIZES, initializer_range=0.1))


def mistral() -> PreTrainedModel:
    """Its blocks have a quick form."""
    config = MistralConfig(**_SIZES, initializer_range=0.1, sliding_window=None)
    return _made(MistralForCausalLM, config)


def qwen2() -> PreTrainedModel:
    """Its blocks have a quick form; queries, keys and values have biases."""
    sizes = {key: value for key, value in _SIZES.items() if key != "head_dim"}
    model = _made(Qwen2ForCausalLM, Qwen2Config(**sizes, initializer_range=0.1))
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # fresh ones are zeros
            parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def granite() -> PreTrainedModel:
    """Names of Llama, but what a block adds is multiplied."""
    config = GraniteConfig(**_SIZES, initializer_range=0.1, residual_multiplier=0.5)
    return _made(GraniteForCausalLM, config)


def qwen3() -> PreTrainedModel:
    """Names of Llama, but queries and keys are normalised."""
    return _made(Qwen3ForCausalLM, Qwen3Config(**_SIZES, initializer_range=0.1))


def gpt2() -> PreTrainedModel:
    """Other names."""
    config = GPT2Config(
        vocab_size=300, n_positions=CONTEXT, n_embd=256, n_layer=2, n_head=4, initializer_range=0.1
    )
    return _made(GPT2LMHeadModel, config)


def attach_changing_adapters(model: PreTrainedModel) -> None:
    """Attach LoRA of rank 4 that changes what the model computes; fresh adapters would not."""
    attach_adapters(model, AdapterRecipe(rank=4), seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
