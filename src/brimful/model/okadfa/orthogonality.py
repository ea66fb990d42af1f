"""How far the query and key projections of each head are from orthogonal rows.

Shapes: H heads, D head size, W width.
"""

import torch
from torch import Tensor, nn

from brimful.model.okadfa.modeling import OkadfaAttention


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


def orthogonality_penalty(model: nn.Module) -> Tensor:
    """Sum of the violations of all query and key projections, a scalar in the weights' dtype; its
    gradient is 4 (W W^T - I) W.
    """
    return torch.stack(
        [
            violation_per_head(each.weight, one.heads).sum()
            for one in attentions_of(model)
            for each in (one.q_proj, one.k_proj)
        ]
    ).sum()


def redraw_features(model: nn.Module, draw: int) -> None:
    """New random directions in every kernel attention, those of this number."""
    with torch.no_grad():
        for attention in attentions_of(model):
            if attention.config.attention == "kernel":
                attention.redraw(draw)
