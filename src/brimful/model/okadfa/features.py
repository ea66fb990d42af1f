"""Positive orthogonal random features: an unbiased estimate of the softmax kernel (FAVOR+;
Choromanski et al. 2021, "Rethinking Attention with Performers", sections 2.3 and 2.4).

Shapes: H heads, M features, D head size, T positions.
"""

import math

import torch
from torch import Tensor

_STREAM = 1_000_003
"""Apart from each other in the seeds of layers and of redraws."""


def draw_projection(
    heads: int, features: int, head_size: int, *, seed: int, layer: int, draw: int = 0
) -> Tensor:
    """Directions w_1 .. w_M for each head: (H, M, D), fp32 on the CPU, a pure function of the
    arguments.

    Each is distributed as N(0, I), those of a block of D are orthogonal: rows of the orthogonal
    factor of a Gaussian matrix, each times the norm of another Gaussian vector (section 2.4, and
    its appendix for the norms). The last block is cut where D does not divide M.

    Args:
        layer: Each has directions of its own.
        draw: Number of the redraw.
    """
    generator = torch.Generator().manual_seed(
        (seed * _STREAM + layer) * _STREAM + draw & (2**63 - 1)
    )
    blocks = -(-features // head_size)
    gaussian = _normal((heads, blocks, head_size, head_size), generator)
    orthogonal, upper = torch.linalg.qr(gaussian)
    signs = upper.diagonal(
        dim1=-2, dim2=-1
    ).sign()  # without them the factor is not uniform over all rotations (Mezzadri 2007)
    directions_HMD = (
        (orthogonal * signs[..., None, :])
        .transpose(-2, -1)
        .reshape(heads, -1, head_size)[:, :features]
    )
    norms_HM = _normal((heads, features, head_size), generator).norm(dim=-1)
    projection_HMD: Tensor = (directions_HMD * norms_HM[..., None]).contiguous()
    return projection_HMD


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Whatever type and device are the defaults, as they are while a model is made."""
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def log_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """w_i . x - |x|^2 / 2 - log(M) / 2: logarithms of the features f with E[f(x) . f(y)] = exp(x .
    y); (B, H, T, M).

    Args:
        scaled_BHTD: fp32 or more; of queries and keys each its share of the scale, so that x . y is
            the attention score.
        projection_HMD: From `draw_projection`, in the same type.
    """
    exponents_BHTM = _products(scaled_BHTD, projection_HMD)
    shift_BHT1 = scaled_BHTD.square().sum(-1, keepdim=True) / 2
    return exponents_BHTM - (shift_BHT1 + 0.5 * math.log(projection_HMD.shape[-2]))


def _products(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """w_i . x: (B, H, T, M). Of few positions all rows in one product per head: torch would copy
    the directions for every row.
    """
    rows, _, length, size = scaled_BHTD.shape
    if rows == 1 or length >= size:
        return scaled_BHTD @ projection_HMD.mT
    products_HNM = scaled_BHTD.transpose(0, 1).flatten(1, 2) @ projection_HMD.mT
    products_BHTM: Tensor = products_HNM.unflatten(1, (rows, length)).transpose(0, 1)
    return products_BHTM


def query_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Features of queries, the largest of each position 1: a factor that its normaliser takes out
    again.
    """
    logs_BHTM = log_features(scaled_BHTD, projection_HMD)
    return (logs_BHTM - logs_BHTM.amax(-1, keepdim=True).detach()).exp()


def key_features(scaled_BHTD: Tensor, projection_HMD: Tensor) -> Tensor:
    """Features of keys, unshifted: a maximum over positions would look into the future.

    Nothing has to be shifted where keys are normalised: w . x - |x|^2 / 2 is at most |w|^2 / 2
    whatever their temperature, and |w|^2 is about the head size, so that exp stays within fp32 up
    to head sizes of 128. For the same reason nothing is added to features or normaliser, as the
    authors' code does: the largest feature of a query meets one of a key that is never 0.
    """
    return log_features(scaled_BHTD, projection_HMD).exp()
