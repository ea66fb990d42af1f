"""The loss of a traced step.

Shapes: B sequences, T positions.
"""

import functools
from typing import Any

import torch
from torch import Tensor

from brimful.data.batches import MicroBatch
from brimful.planning.step import StepSpec
from brimful.recipe import FeedbackRecipe
from brimful.training.method import LossSum, Network, next_token_loss_sum
from brimful.training.methods.feedback import Feedback
from brimful.training.methods.mlm import masked_loss_sum


@functools.singledispatch
def loss_of(spec: StepSpec) -> LossSum:
    """Return the summed loss of a step. Subclasses of StepSpec may register their own."""
    if spec.loss == "model" or spec.task == "sequence_classification":
        return model_loss(spec)
    if spec.task == "masked_lm":
        return masked_loss_sum
    if spec.feedback:
        return Feedback(FeedbackRecipe(points=spec.feedback), seed=0)
    return next_token_loss_sum


def model_loss(spec: StepSpec) -> LossSum:
    """Return the loss that the transformers model computes from its labels."""

    def loss_sum(network: Network, micro: MicroBatch) -> Tensor:
        kwargs = mask_arguments(spec, micro.inputs_BT)
        if spec.task == "causal_lm":
            kwargs["use_cache"] = False
        loss: Tensor = network.model(
            input_ids=micro.inputs_BT, labels=micro.targets_BT, **kwargs
        ).loss
        return loss

    return loss_sum


def mask_arguments(spec: StepSpec, inputs_BT: Tensor) -> dict[str, Any]:
    """Return the attention mask as a model's keyword argument, where batches carry one."""
    return {"attention_mask": padding_mask(inputs_BT)} if spec.padded else {}


def padding_mask(inputs_BT: Tensor) -> Tensor:
    """Return a mask that hides the last position of each row; transformers drops a mask that hides
    nothing.
    """
    mask_BT = torch.ones_like(inputs_BT)
    mask_BT[:, -1] = 0
    return mask_BT
