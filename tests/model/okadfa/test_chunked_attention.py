"""Kernel attention that keeps no features: that of features, and its gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - everyone's name for it

from brimful.model.okadfa import chunked_attention
from brimful.model.okadfa.chunked_attention import SHORTEST, attend_in_chunks, scale_to_norm
from brimful.model.okadfa.kernel_attention import (
    attend_by_features,
    draw_projection,
    for_every_query,
    key_features,
    query_features,
)
from brimful.model.okadfa.linear_attention import CHUNK

SIZE, FEATURES = 6, 16
TOLERANCE = {
    torch.float64: {"rtol": 1e-10, "atol": 1e-11},
    torch.float32: {"rtol": 5e-5, "atol": 5e-5},
}
Heads = tuple[Tensor, Tensor, Tensor, Tensor]


def _heads(
    length: int,
    *,
    rows: int = 2,
    groups: int = 2,
    shared_by: int = 1,
    temperature: float = 2.0,
    dtype: torch.dtype = torch.float64,
    has_short: bool = True,
) -> Heads:
    """Queries, keys and values that lie in memory as a model's do, and the share of the
    temperature. With `has_short` one query and one key are zero, and one is shorter than 1e-6.
    """
    generator = torch.Generator().manual_seed(length)
    heads = groups * shared_by, groups, groups
    drawn = [
        torch.randn(rows, length, each, SIZE, generator=generator, dtype=torch.float64)
        .to(dtype)
        .transpose(1, 2)
        for each in heads
    ]
    queries, keys, values = drawn
    if has_short:
        queries[0, 0, -1], keys[0, 0, 0] = 0.0, 0.0
        queries[-1, 0, -1] *= 1e-7
        keys[-1, 0, length // 2] *= 1e-7
    share = (torch.arange(groups, dtype=dtype) + 1).mul(temperature / groups).sqrt()
    return (
        queries.requires_grad_(),
        keys.requires_grad_(),
        values.requires_grad_(),
        share.requires_grad_(),
    )


def _directions(groups: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return draw_projection(groups, FEATURES, SIZE, seed=1, layer=0).to(dtype)


def _by_features(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    share: Tensor,
    directions: Tensor,
    *,
    segments_BT: Tensor | None = None,
    is_text_BT: Tensor | None = None,
) -> Tensor:
    shared_by = queries.shape[1] // keys.shape[1]
    share = share[None, :, None, None]
    queries = F.normalize(queries, dim=-1, eps=1e-6) * for_every_query(share, shared_by)
    keys = F.normalize(keys, dim=-1, eps=1e-6) * share
    features = query_features(queries, for_every_query(directions[None], shared_by)[0])
    return attend_by_features(
        features,
        key_features(keys, directions),
        values,
        layer=0,
        segments_BT=segments_BT,
        is_text_BT=is_text_BT,
        past=None,
    )


def _in_chunks(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    share: Tensor,
    directions: Tensor,
    *,
    chunk: int = CHUNK,
    **where: Tensor | None,
) -> Tensor:
    return attend_in_chunks(queries, keys, values, directions, share, chunk=chunk, **where)


def _gradients(attended: Tensor, heads: Heads) -> tuple[Tensor, ...]:
    """Those of queries and keys times what these are divided by, which is as small as 1e-6."""
    weights = torch.randn(attended.shape, generator=torch.Generator().manual_seed(9))
    of_queries, of_keys, *others = torch.autograd.grad(
        (attended * weights.to(attended.dtype)).sum(), heads
    )
    divided_by = (each.detach().norm(dim=-1, keepdim=True).clamp_min(1e-6) for each in heads[:2])
    return of_queries * next(divided_by), of_keys * next(divided_by), *others


def _assert_equal(heads: Heads, chunk: int, **where: Tensor | None) -> None:
    dtype = heads[0].dtype
    directions = _directions(heads[1].shape[1], dtype)
    attended = _in_chunks(*heads, directions, chunk=chunk, **where)
    expected = _by_features(*heads, directions, **where)
    torch.testing.assert_close(attended, expected, **TOLERANCE[dtype])
    for one, other in zip(_gradients(attended, heads), _gradients(expected, heads), strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE[dtype])


@settings(deadline=None)
@given(
    st.integers(1, 100),
    st.integers(1, 70),
    st.integers(1, 3),
    st.sampled_from([1.0, 8.0]),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_chunks_equal_all_features_at_once(
    length: int, chunk: int, shared_by: int, temperature: float, dtype: torch.dtype
) -> None:
    heads = _heads(length, shared_by=shared_by, temperature=temperature, dtype=dtype)
    _assert_equal(heads, chunk)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.sampled_from([1, 2, 7, 64]),
    st.integers(1, 2),
)
def test_packed_documents_equal_all_features_at_once(
    lengths: list[int], chunk: int, shared_by: int
) -> None:
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    length = len(numbers)
    # The second row is packed otherwise.
    segments_BT = torch.stack([numbers, (torch.arange(length) >= length // 2).long()])
    _assert_equal(_heads(length, shared_by=shared_by), chunk, segments_BT=segments_BT)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(0, 60), st.sampled_from([1, 7, 64]))
def test_padding_on_either_side_is_not_seen(text: int, padding: int, chunk: int) -> None:
    before = torch.tensor([False] * padding + [True] * text)
    _assert_equal(_heads(len(before)), chunk, is_text_BT=torch.stack([before, before.flip(0)]))


@pytest.mark.parametrize("most", [1, 2, 4, 5, 8, 100])
@pytest.mark.parametrize("shared_by", [1, 2])
def test_parts_of_rows_and_heads_equal_all_at_once(
    most: int, shared_by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_attention, "PART_BYTES", most * shared_by * 7 * FEATURES * 8)
    length = 20
    numbers_BT = torch.arange(3)[:, None] + torch.arange(length) // 6
    is_text_BT = torch.arange(length) >= torch.tensor([[0], [3], [9]])
    heads = _heads(length, rows=3, groups=4, shared_by=shared_by)
    _assert_equal(heads, 7, segments_BT=numbers_BT)
    _assert_equal(heads, 7, is_text_BT=is_text_BT)


def test_gradients_are_those_of_differences() -> None:
    heads = _heads(7, shared_by=2, rows=1, has_short=False)
    directions = _directions(2)
    numbers = torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    assert torch.autograd.gradcheck(lambda *each: _in_chunks(*each, directions), heads)
    assert torch.autograd.gradcheck(
        lambda *each: _in_chunks(*each, directions, segments_BT=numbers, chunk=3), heads
    )


def test_products_stay_in_fp32_where_autocast_asks_for_bf16() -> None:
    heads = _heads(70, dtype=torch.float32)
    directions = _directions(2, torch.float32)
    expected = _gradients(_in_chunks(*heads, directions), heads)
    attended = _in_chunks(*heads, directions)
    with torch.autocast("cpu", torch.bfloat16):
        found = _gradients(attended, heads)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("features", [64, 256])
def test_what_is_kept_does_not_grow_with_the_number_of_features(features: int) -> None:
    heads = _heads(256, rows=1)
    directions = draw_projection(2, features, SIZE, seed=1, layer=0).double()
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        _in_chunks(*heads, directions)
    of_text = 256 * 2 * (4 * SIZE + 1) * 8  # queries, keys, values, output, normaliser
    scores = 256 * 2 * CHUNK * 8
    assert sum(kept.values()) == of_text + scores + directions.nbytes + heads[3].nbytes


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
