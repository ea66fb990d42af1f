"""What brimful adds to transformers: attention functions, and models with kernel attention."""

from transformers import PreTrainedModel

from brimful.model import attention, packed_texts
from brimful.model.okadfa import kernel_llama, modeling, orthogonality
from brimful.model.okadfa.configuration import MODEL_TYPE
from brimful.model.step_hooks import StepHooks
from brimful.recipe import Recipe

_STEP_HOOKS = {MODEL_TYPE: orthogonality.step_hooks}
"""What architectures add to optimizer steps, by transformers' `model_type`."""


def register() -> None:
    """Register the attention functions and the models by name; safe to call repeatedly."""
    attention.register()
    packed_texts.register()
    modeling.register()
    kernel_llama.register()


def step_hooks_of(model: PreTrainedModel, recipe: Recipe, total_steps: int) -> StepHooks:
    """Return what the architecture of `model` adds to optimizer steps; most add nothing."""
    make = _STEP_HOOKS.get(model.config.model_type)
    return StepHooks() if make is None else make(model, recipe, total_steps)
