"""Positive orthogonal random features: an unbiased estimate of the softmax kernel (FAVOR+;
Choromanski et al. 2021, "Rethinking Attention with Performers", sections 2.3 and 2.4).

Shapes: H heads, M features, D head size, T positions.
"""

import math

import torch
from torch import Tensor

_STREAM = 1_000_003
"""Keeps the seeds of layers and of redraws apart."""


def draw_projection(
    heads: int, features: int, head_size: int, *, seed: int, layer: int, draw: int = 0
) -> Tensor:
    """Return random directions w_1 .. w_M for each head: (H, M, D), fp32 on the CPU, a pure
    function of the arguments.

    Each direction is distributed as N(0, I), and those of a block of D are orthogonal: rows of the
    orthogonal factor of a Gaussian matrix, each times the norm of another Gaussian vector (section
    2.4, and its appendix for the norms). The last block is cut if D does not divide M.

    Args:
        layer: Number of the layer; each has directions of its own.
        draw: Number of the redraw.
    """
    generator = torch.Generator().manual_seed(
        (seed * _STREAM + layer) * _STREAM + draw & (2**63 - 1)
    )
    blocks = -(-features // head_size)
    gaussian = _normal((heads, blocks, head_size, head_size), generator)
    orthogonal, upper = torch.linalg.qr(gaussian)
    # Without these signs the factor is not uniform over all rotations (Mezzadri 2007).
    signs = upper.diagonal(dim1=-2, dim2=-1).sign()
    directions_HMD = (
        (orthogonal * signs[..., None, :])
        .transpose(-2, -1)
        .reshape(heads, -1, head_size)[:, :features]
    )
    norms_HM = _normal((heads, features, head_size), generator).norm(dim=-1)
    projection_HMD: Tensor = (directions_HMD * norms_HM[..., None]).contiguous()
    return projection_HMD


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw in fp32 on the CPU, also while a model is built with other defaults."""
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def log_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Return w_i . x - |x|^2 / 2 - log(M) / 2, the logarithms of the features f with
    E[f(x) . f(y)] = exp(x . y): (B, H, T, M).

    Args:
        scaled_BHTD: Queries or keys in fp32 or more, each with its share of the scale, so that
            x . y is the attention score.
        projection_HMD: Random directions from `draw_projection`, in the same dtype.
    """
    exponents_BHTM = _products(scaled_BHTD, projection_HMD)
    shift_BHT1 = scaled_BHTD.square().sum(-1, keepdim=True) / 2
    return exponents_BHTM - (shift_BHT1 + 0.5 * math.log(projection_HMD.shape[-2]))


def _products(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Return w_i . x: (B, H, T, M). For few positions all rows go into one product per head,
    because torch would copy the directions for every row.
    """
    rows, _, length, size = scaled_BHTD.shape
    if rows == 1 or length >= size:
        return scaled_BHTD @ projection_HMD.mT
    products_HNM = scaled_BHTD.transpose(0, 1).flatten(1, 2) @ projection_HMD.mT
    products_BHTM: Tensor = products_HNM.unflatten(1, (rows, length)).transpose(0, 1)
    return products_BHTM


def query_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Return the features of queries, scaled so that the largest of each position is 1; the
    normaliser of attention cancels that factor.
    """
    logs_BHTM = log_features(scaled_BHTD, projection_HMD)
    return (logs_BHTM - logs_BHTM.amax(-1, keepdim=True).detach()).exp()


def key_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Return the features of keys, not scaled by their maximum: that would depend on later
    positions.

    Normalised keys need no scaling: w . x - |x|^2 / 2 is at most |w|^2 / 2 at any temperature, and
    |w|^2 is about the head size, so that exp stays within fp32 up to head sizes of 128. For the
    same reason no constant is added to features or normaliser, as the authors' code does: the
    largest feature of a query is multiplied by one of a key that is never 0.
    """
    return log_features(scaled_BHTD, projection_HMD).exp()
