"""Building a transformers model with fresh weights from a recipe."""

import math

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
)

from brimful.base.errors import PlanError
from brimful.model.description import (
    CLS_ID,
    INITIAL_STD,
    SEP_ID,
    config_values,
    count_parameters,
)
from brimful.model.registered import register
from brimful.recipe import ModelRecipe, Recipe

RESIDUAL_PROJECTIONS = ("o_proj.weight", "down_proj.weight", "c_proj.weight")
"""Weights that write into the residual stream; 2 per block."""


def config_of(
    model: ModelRecipe, *, vocabulary: int, context: int, end_of_text_id: int, seed: int = 0
) -> PretrainedConfig:
    """The transformers config of the described model; an encoder's texts stand between special
    tokens of its own.
    """
    values = config_values(model, vocabulary=vocabulary, context=context)
    begin, end = (CLS_ID, SEP_ID) if model.is_bidirectional else (end_of_text_id, end_of_text_id)
    ids = {"bos_token_id": begin, "eos_token_id": end}
    register()
    config: PretrainedConfig = AutoConfig.for_model(values.pop("model_type"), **values, **ids)
    if model.is_kernel:
        config.feature_seed = seed
    return config


def build(
    recipe: Recipe, *, vocabulary: int, end_of_text_id: int, attention: str, device: torch.device
) -> PreTrainedModel:
    """Return a model with fresh fp32 weights that depend on `recipe.seed` only; the global random
    generator is not advanced.

    Weights are Normal(0, 0.02), and Normal(0, 0.02 / sqrt(2 L)) for the projections into the
    residual stream (GPT-2, Radford et al. 2019, section 2.3); norms are one, biases zero. Encoders
    are initialised by transformers: the same, truncated at two standard deviations.

    Raises:
        PlanError: the module has another number of parameters than was counted on its description.
    """
    config = config_of(
        recipe.fresh_model,
        vocabulary=vocabulary,
        context=recipe.context,
        end_of_text_id=end_of_text_id,
        seed=recipe.seed,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        auto = AutoModelForMaskedLM if recipe.fresh_model.is_bidirectional else AutoModelForCausalLM
        model: PreTrainedModel = auto.from_config(
            config, attn_implementation=attention, dtype=torch.float32
        )
        _scale_residual_projections(model, recipe.fresh_model.layers)
    counted = count_parameters(recipe.fresh_model, vocabulary, recipe.context).total
    real = num_parameters(model)
    if counted != real:
        raise PlanError(
            f"model has {real:,} parameters but {counted:,} were counted on its description; this"
            " is a bug in brimful, please report it."
        )
    return model.to(device)


def _scale_residual_projections(model: nn.Module, layers: int) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(RESIDUAL_PROJECTIONS):
                parameter.normal_(0.0, INITIAL_STD / math.sqrt(2 * layers))


def num_parameters(model: nn.Module) -> int:
    """Return the number of parameters of a module: tied ones once, buffers never."""
    return sum(parameter.numel() for parameter in model.parameters())


def num_buffer_elements(model: nn.Module) -> int:
    """Return the number of elements in buffers (masks, rotary tables), which are no parameters."""
    return sum(buffer.numel() for buffer in model.buffers())
