"""Kernel attention with packed documents, padding and a cache, where heads of queries share keys."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.model.okadfa.kernel_attention import (
    attend_by_features,
    count_positions,
    draw_projection,
    find_text,
    for_every_query,
    keeps_no_features,
    key_features,
    log_features,
    number_segments,
    query_features,
)
from brimful.model.okadfa.kernel_llama import KernelLlamaConfig
from brimful.model.okadfa.linear_attention import RecurrentCache

NOTHING = {"layer": 0, "segments_BT": None, "is_text_BT": None, "past": None}


def _positive(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shared_by", [1, 3])
def test_a_shared_head_attends_as_if_every_query_had_its_own(shared_by: int) -> None:
    queries, keys, values = _positive(2, 6, 9, 5), _positive(2, 2, 9, 5), _positive(2, 2, 9, 4)
    if shared_by == 1:
        queries = queries[:, :2]
    weights = (queries @ for_every_query(keys, shared_by).mT).tril()
    expected = weights / weights.sum(-1, keepdim=True) @ for_every_query(values, shared_by)
    torch.testing.assert_close(attend_by_features(queries, keys, values, **NOTHING), expected)


def test_position_by_position_with_a_cache_equals_all_at_once() -> None:
    queries, keys, values = _positive(1, 4, 7, 5), _positive(1, 2, 7, 5), _positive(1, 2, 7, 3)
    past = RecurrentCache(KernelLlamaConfig(num_hidden_layers=1))
    parts = [
        attend_by_features(
            queries[:, :, start:end],
            keys[:, :, start:end],
            values[:, :, start:end],
            **NOTHING | {"past": past},
        )
        for start, end in ((0, 4), (4, 5), (5, 7))
    ]
    whole = attend_by_features(queries, keys, values, **NOTHING)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole)


def test_features_are_kept_in_compiled_code_with_a_cache_and_by_other_implementations() -> None:
    assert keeps_no_features("brimful_blocks", None)
    assert not keeps_no_features("sdpa", None)
    past = RecurrentCache(KernelLlamaConfig(num_hidden_layers=1))
    assert not keeps_no_features("brimful_blocks", past)
    compiled = torch.compile(
        lambda each: each + keeps_no_features("brimful_blocks", None), backend="eager"
    )
    assert compiled(torch.zeros(1)).item() == 0


def test_positions_segments_and_padding_of_rows() -> None:
    embedded = torch.zeros(2, 5, 8)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    assert count_positions(embedded, mask, None).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 3]]
    assert count_positions(embedded, None, None).tolist() == [[0, 1, 2, 3, 4]]
    assert number_segments(embedded, torch.tensor([2, 3, 0])).tolist() == [[0, 0, 1, 1, 1]] * 2
    assert number_segments(embedded, None) is None
    assert find_text(embedded, mask).tolist() == mask.bool().tolist()
    assert find_text(embedded, None) is None


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
