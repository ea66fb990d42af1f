"""What brimful adds to transformers: attention functions, and models with kernel attention."""

import transformers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from brimful.model import attention, packed_texts
from brimful.model.okadfa import kernel_llama, modeling
from brimful.model.okadfa.modeling import MODEL_TYPE
from brimful.model.step_hooks import NO_HOOKS, StepHooks
from brimful.recipe import Recipe

_STEP_HOOKS = {MODEL_TYPE: modeling.step_hooks}
"""What architectures add to optimizer steps, by transformers' `model_type`."""


def register() -> None:
    """Register the attention functions and the models by name; safe to call repeatedly."""
    attention.register()
    packed_texts.register()
    modeling.register()
    kernel_llama.register()


def registers_text_head(model_type: str) -> bool:
    """Register the class that predicts tokens of a text part, as of Mllama or Emu 3, which
    transformers names only under the type of the whole; return whether it has one.
    """
    if model_type not in CONFIG_MAPPING:
        return False
    config = CONFIG_MAPPING[model_type]
    whole = config.__module__.split(".")[-2]
    own = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(whole, ""), None)
    if getattr(own, "config_class", None) is not config:
        return False
    AutoModelForCausalLM.register(config, own, exist_ok=True)
    return True


def step_hooks_of(model: PreTrainedModel, recipe: Recipe, total_steps: int) -> StepHooks:
    """Return what the architecture of `model` adds to optimizer steps; most add nothing."""
    make = _STEP_HOOKS.get(model.config.model_type)
    return NO_HOOKS if make is None else make(model, recipe, total_steps)
