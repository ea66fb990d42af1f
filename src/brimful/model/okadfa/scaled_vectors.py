"""Queries and keys scaled to a norm, with the gradients of that written out.

`normalize` and a product keep two tensors and pass over them a dozen times; here what was scaled is
kept alone, and scaled again in the backward pass.

Shapes: B rows, G heads, T positions, D head size; dots stand for heads of queries that share one of
keys, or for nothing.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SHORTEST = 1e-6
"""Shorter vectors are divided by this, not by their norm."""


@dataclass
class ScaledVectors:
    """Vectors scaled to a norm.

    Attributes:
        vectors: (..., T, D).
        lengths: Norms before (..., T, 1).
        factors: What they were multiplied by (..., T, 1).
        norm: That of each head, in a shape that broadcasts.
    """

    vectors: Tensor
    lengths: Tensor
    factors: Tensor
    norm: Tensor

    def half_squares(self) -> Tensor:
        """Return (..., T, 1)."""
        return (self.lengths * self.factors).square_().div_(2)

    def gradients(
        self, grad: Tensor, out: Tensor, half_square_grad: Tensor | None = None
    ) -> Tensor:
        """Write the gradient of what was scaled, and return that of the norm for each position
        (..., T, 1).

        Args:
            grad: That of the vectors; overwritten.
            out: Tensor that is written to.
            half_square_grad: Minus that of half of their squares (..., T, 1).
        """
        along = torch.linalg.vecdot(grad, self.vectors).unsqueeze(-1)
        is_short = self.lengths < SHORTEST
        # The gradient along a vector that has the norm is lost: scaling takes it away.
        lost = (along / self.norm.square()).masked_fill_(is_short, 0.0)
        if half_square_grad is not None:
            lost += half_square_grad * is_short
            along.addcmul_(half_square_grad, self.half_squares(), value=-2)
        grad.addcmul_(self.vectors, lost, value=-1)
        torch.mul(grad.view(out.shape), self.factors.view(*out.shape[:-1], 1), out=out)
        of_norm: Tensor = along.div_(self.norm)
        return of_norm


def scale_to_norm(each: Tensor, norm: Tensor) -> ScaledVectors:
    """Scale vectors as `normalize(each, eps=SHORTEST) * norm` does.

    Args:
        each: (B, G, ..., T, D), of any layout, in any type. Rows and heads are joined.
        norm: Norm of each head of each row, in fp32 or more: (B x G, ..., 1, 1).
    """
    wide = each.to(norm.dtype)
    lengths = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).flatten(0, 1)
    factors = norm / lengths.clamp_min(SHORTEST)
    vectors = factors.new_empty(*factors.shape[:-1], each.shape[-1])
    torch.mul(wide, factors.view(*each.shape[:-1], 1), out=vectors.view(each.shape))
    return ScaledVectors(vectors, lengths, factors, norm)
