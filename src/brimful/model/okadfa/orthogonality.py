"""How far the query and key projections of each head are from orthogonal rows, and what OKADFA adds
to optimizer steps: a penalty on that distance, and new random features.

Shapes: H heads, D head size, W width.
"""

import torch
from torch import Tensor, nn

from brimful.model.okadfa.modeling import OkadfaAttention
from brimful.model.step_hooks import StepHooks
from brimful.recipe import Recipe


def violation_per_head(weight: Tensor, heads: int) -> Tensor:
    """|W W^T - I|^2 (Frobenius) of each head's D x W slice of a weight stored as (out, in): (H,),
    in the weight's dtype.

    The small Gram matrix: that of the whole projection would have W x W entries and, where W > D, a
    floor that no weights reach.
    """
    slices_HDW = weight.unflatten(0, (heads, -1))
    gram_HDD = slices_HDW @ slices_HDW.transpose(1, 2)
    violation_H: Tensor = (
        (gram_HDD - torch.eye(gram_HDD.shape[-1], dtype=weight.dtype, device=weight.device))
        .square()
        .sum((1, 2))
    )
    return violation_H


def attentions_of(model: nn.Module) -> list[OkadfaAttention]:
    """The attention modules, first layer first."""
    return [module for module in model.modules() if isinstance(module, OkadfaAttention)]


def orthogonality_penalty(model: nn.Module, *, values: bool = False) -> Tensor:
    """Sum of the violations of all query and key projections, with `values` of value projections as
    well: a scalar in the weights' dtype; its gradient is 4 (W W^T - I) W.
    """
    names = ("q_proj", "k_proj", "v_proj") if values else ("q_proj", "k_proj")
    return torch.stack(
        [
            violation_per_head(getattr(one, name).weight, one.heads).sum()
            for one in attentions_of(model)
            for name in names
        ]
    ).sum()


def redraw_features(model: nn.Module, draw: int) -> None:
    """Draw new random directions in every kernel attention.

    Args:
        draw: Number of the redraw; the directions are a pure function of it and the model's seed.
    """
    with torch.no_grad():
        for attention in attentions_of(model):
            if attention.config.attention == "kernel":
                attention.redraw(draw)


def step_hooks(model: nn.Module, recipe: Recipe, total_steps: int) -> StepHooks:
    """Return what the recipe adds to optimizer steps: new random directions of the kernel features
    every `model.redraw` steps, and the orthogonality penalty.

    The directions are saved in checkpoints, so a run that resumes between two redraws has them.
    """
    redraw_every = None if isinstance(recipe.model, str) else recipe.model.redraw
    rules = recipe.orthogonality

    def before_step(step: int) -> None:
        if redraw_every is not None and step % redraw_every == 0:
            redraw_features(model, step // redraw_every)

    if rules is None:
        return StepHooks(before_step)

    def penalty(step: int) -> Tensor:
        return rules.weight_at(step, total_steps) * orthogonality_penalty(
            model, values=rules.values
        )

    return StepHooks(before_step, penalty)
