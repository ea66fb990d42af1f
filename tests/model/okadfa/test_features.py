"""Random features estimate the softmax kernel without bias, the better the more there are, and
nothing overflows.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.model.okadfa.features import (
    draw_projection,
    key_features,
    log_features,
    query_features,
)

SIZE = 16


def _pairs(count: int, norm: float, size: int = SIZE) -> tuple[Tensor, Tensor]:
    """Vectors x and y of one norm: (count, size) each."""
    drawn = torch.randn(2, count, size, generator=torch.Generator().manual_seed(3))
    x, y = norm * F.normalize(drawn, dim=-1)
    return x, y


def _estimates(projection_HMD: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """f(x) . f(y) per head and pair."""
    features_x, features_y = (
        log_features(each[None, None], projection_HMD)[0].exp() for each in (x, y)
    )
    return (features_x * features_y).sum(-1)


def _relative_mean_square(projection_HMD: Tensor, x: Tensor, y: Tensor) -> float:
    exact = (x * y).sum(-1).exp()
    return ((_estimates(projection_HMD, x, y) / exact - 1) ** 2).mean().item()


@pytest.mark.parametrize("norm", [0.3, 1.0, 1.4])
def test_the_estimate_has_no_bias(norm: float) -> None:
    x, y = _pairs(6, norm)
    estimates = _estimates(draw_projection(4000, 32, SIZE, seed=0, layer=0), x, y)
    deviation = (estimates.mean(0) - (x * y).sum(-1).exp()).abs()
    standard_error = estimates.std(0) / math.sqrt(len(estimates))
    assert (deviation < 4 * standard_error).all()


def test_the_error_falls_with_the_root_of_the_number_of_features() -> None:
    x, y = _pairs(20, 1.0)
    counts = [32, 64, 128, 256, 512, 1024]
    squares = [
        _relative_mean_square(draw_projection(64, count, SIZE, seed=1, layer=0), x, y)
        for count in counts
    ]
    slope = stats.linregress(
        [math.log(count) for count in counts], [math.log(square) / 2 for square in squares]
    ).slope
    assert slope == pytest.approx(-0.5, abs=0.05)


def test_orthogonal_directions_are_no_worse_than_independent_ones() -> None:
    x, y = _pairs(20, 1.0)
    orthogonal = draw_projection(2000, SIZE, SIZE, seed=2, layer=0)
    independent = torch.randn(orthogonal.shape, generator=torch.Generator().manual_seed(4))
    assert _relative_mean_square(orthogonal, x, y) < _relative_mean_square(independent, x, y)


def test_directions_of_a_block_are_orthogonal_also_of_the_block_that_is_cut() -> None:
    projection = draw_projection(3, 2 * SIZE + 5, SIZE, seed=0, layer=0)
    assert projection.shape == (3, 2 * SIZE + 5, SIZE)
    for block in projection.split(SIZE, dim=1):
        directions = F.normalize(block, dim=-1)
        torch.testing.assert_close(
            directions @ directions.mT,
            torch.eye(block.shape[1]).expand(3, -1, -1),
            atol=1e-5,
            rtol=0,
        )


def test_directions_are_distributed_as_gaussian_vectors() -> None:
    projection = draw_projection(200, 2 * SIZE, SIZE, seed=5, layer=0)
    assert (
        stats.kstest(
            projection.norm(dim=-1)[:, ::SIZE].flatten().numpy(), stats.chi(SIZE).cdf
        ).pvalue
        > 0.01
    )
    for coordinate in (0, SIZE - 1):
        assert (
            stats.kstest(projection[:, ::SIZE, coordinate].flatten().numpy(), stats.norm.cdf).pvalue
            > 0.01
        )


@pytest.mark.parametrize("other", [{"seed": 8}, {"layer": 3}, {"draw": 1}])
def test_directions_depend_on_seed_layer_and_draw_and_on_nothing_else(
    other: dict[str, int],
) -> None:
    arguments = {"seed": 7, "layer": 2, "draw": 0}
    before = torch.get_rng_state()
    first = draw_projection(2, 32, SIZE, **arguments)
    torch.rand(3)
    assert torch.equal(draw_projection(2, 32, SIZE, **arguments), first)
    assert (
        not torch.isclose(draw_projection(2, 32, SIZE, **arguments | other), first)
        .any(dim=-1)
        .all()
    )
    torch.set_rng_state(before)
    draw_projection(2, 32, SIZE, **arguments)
    assert torch.equal(torch.get_rng_state(), before)


def test_defaults_while_a_model_is_made_do_not_reach_the_directions() -> None:
    expected = draw_projection(1, 32, SIZE, seed=0, layer=0)
    try:
        torch.set_default_dtype(torch.bfloat16)
        with torch.device("meta"):
            found = draw_projection(1, 32, SIZE, seed=0, layer=0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found, expected)


@settings(deadline=None)
@given(
    st.sampled_from([16, 64, 128]),
    st.floats(-6, math.log(64)),
    st.integers(0, 5),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_features_are_finite_and_a_query_always_meets_a_key(
    size: int, log_temperature: float, seed: int, dtype: torch.dtype
) -> None:
    """At every temperature that the model can learn."""
    projection = draw_projection(2, 4 * size, size, seed=seed, layer=0).to(dtype)
    unit = F.normalize(
        torch.randn(2, 1, 2, 9, size, generator=torch.Generator().manual_seed(seed)), dim=-1
    ).to(dtype)
    queries, keys = unit * math.exp(log_temperature / 2)
    keys[..., :4, :] = math.exp(log_temperature / 2) * F.normalize(
        projection[:, :4], dim=-1
    )  # the largest features there are
    features_q, features_k = query_features(queries, projection), key_features(keys, projection)
    assert features_q.dtype == features_k.dtype == dtype
    assert features_q.amax(-1).eq(1).all()
    assert features_k.isfinite().all()
    assert (
        torch.finfo(dtype).tiny < (features_q @ features_k.mT).min() < torch.finfo(dtype).max / 1e3
    )


def test_gradients_of_features_are_those_of_their_formulas() -> None:
    projection = draw_projection(2, 8, 4, seed=0, layer=0).double()
    x = torch.randn(
        1, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    assert torch.autograd.gradcheck(key_features, (x, projection))
    assert torch.autograd.gradcheck(
        lambda each: (
            query_features(each, projection)
            / query_features(each, projection).sum(-1, keepdim=True)
        ),
        (x,),
    )
