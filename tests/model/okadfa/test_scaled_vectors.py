"""Vectors scaled to a norm, and the gradients: those of torch's operators."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.model.okadfa.scaled_vectors import SHORTEST, scale_to_norm


def _drawn(*shape: int) -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64
    )


@pytest.mark.parametrize("shared_by", [(), (3,)])
def test_values_and_gradients_are_those_of_normalize(shared_by: tuple[int, ...]) -> None:
    vectors, norms = _drawn(2, 4, *shared_by, 5, 6), _drawn(8, *[1] * (len(shared_by) + 2)).abs()
    vectors[0, 0, ..., 1, :] = 0
    vectors[0, 1, ..., 2, :] *= SHORTEST / 10
    vectors, norms = vectors.requires_grad_(), norms.requires_grad_()
    weights, of_squares = _drawn(8, *shared_by, 5, 6), _drawn(8, *shared_by, 5, 1)
    expected = F.normalize(vectors.flatten(0, 1), dim=-1, eps=SHORTEST) * norms
    half_squares = expected.square().sum(-1, keepdim=True) / 2
    loss = (expected * weights).sum() - (half_squares * of_squares).sum()
    grad_vectors, grad_norms = torch.autograd.grad(loss, (vectors, norms))

    with torch.no_grad():
        scaled, found = scale_to_norm(vectors, norms), torch.empty_like(vectors)
        of_norms = scaled.gradients(weights.clone(), found, of_squares)

    torch.testing.assert_close(scaled.vectors, expected)
    torch.testing.assert_close(scaled.half_squares(), half_squares)
    torch.testing.assert_close(of_norms.sum_to_size(norms.shape), grad_norms)
    divided_by = vectors.detach().norm(dim=-1, keepdim=True).clamp_min(SHORTEST)
    torch.testing.assert_close(found * divided_by, grad_vectors * divided_by)


def test_bf16_is_scaled_in_fp32_and_gets_its_gradients_in_bf16() -> None:
    vectors, norms = _drawn(1, 2, 5, 6).bfloat16(), torch.tensor([1.0, 2.0])[:, None, None]
    scaled, found = scale_to_norm(vectors, norms), torch.empty_like(vectors)
    scaled.gradients(torch.ones(2, 5, 6), found)
    expected = F.normalize(vectors.float(), dim=-1) * norms
    torch.testing.assert_close(scaled.vectors, expected.flatten(0, 1))
    assert found.dtype == torch.bfloat16
    assert torch.isfinite(found).all()
