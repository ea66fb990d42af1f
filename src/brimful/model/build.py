"""Recipe -> transformers model with fresh weights."""

import math

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig, PreTrainedModel

from brimful.base.errors import PlanError
from brimful.model import attention as attention_blocks
from brimful.model.description import count_parameters
from brimful.recipe import ModelRecipe, Recipe

INITIAL_STD = 0.02
RESIDUAL_PROJECTIONS = ("o_proj.weight", "down_proj.weight", "c_proj.weight")
"""Weights that write into the residual stream; 2 per block."""


def config_of(model: ModelRecipe, *, vocabulary: int, context: int, end_of_text_id: int) -> PretrainedConfig:
    """The transformers config of the described model."""
    ids = {"bos_token_id": end_of_text_id, "eos_token_id": end_of_text_id}
    if model.architecture == "gpt2":
        return GPT2Config(
            vocab_size=vocabulary, n_positions=context, n_embd=model.width, n_layer=model.layers, n_head=model.heads,
            n_inner=model.resolved_mlp_width, resid_pdrop=model.dropout, embd_pdrop=model.dropout, attn_pdrop=model.dropout,
            initializer_range=INITIAL_STD, tie_word_embeddings=model.tie_embeddings, **ids,
        )  # fmt: skip
    return LlamaConfig(
        vocab_size=vocabulary, max_position_embeddings=context, hidden_size=model.width, num_hidden_layers=model.layers,
        num_attention_heads=model.heads, num_key_value_heads=model.kv_heads or model.heads, intermediate_size=model.resolved_mlp_width,
        initializer_range=INITIAL_STD, tie_word_embeddings=model.tie_embeddings, **ids,
    )  # fmt: skip


def build(recipe: Recipe, *, vocabulary: int, end_of_text_id: int, attention: str, device: torch.device) -> PreTrainedModel:
    """A model with fresh fp32 weights that depend on `recipe.seed` only; the global generator is left as it was.

    Normal(0, 0.02), and Normal(0, 0.02 / sqrt(2 L)) for the projections into the residual stream (GPT-2, Radford et al.
    2019, section 2.3); norms one, biases zero.

    Raises:
        PlanError: the module does not have the parameters counted on its description.
    """
    attention_blocks.register()
    config = config_of(recipe.model, vocabulary=vocabulary, context=recipe.context, end_of_text_id=end_of_text_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
        _scale_residual_projections(model, recipe.model.layers)
    counted, real = count_parameters(recipe.model, vocabulary, recipe.context).total, num_parameters(model)
    if counted != real:
        raise PlanError(f"model has {real:,} parameters but {counted:,} were counted on its description; this is a bug in brimful, please report it.")
    return model.to(device)


def _scale_residual_projections(model: nn.Module, layers: int) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(RESIDUAL_PROJECTIONS):
                parameter.normal_(0.0, INITIAL_STD / math.sqrt(2 * layers))


def num_parameters(model: nn.Module) -> int:
    """Parameters of a module, tied ones once, buffers never."""
    return sum(parameter.numel() for parameter in model.parameters())


def num_buffer_elements(model: nn.Module) -> int:
    """Elements of buffers (masks, rotary tables): not parameters."""
    return sum(buffer.numel() for buffer in model.buffers())
