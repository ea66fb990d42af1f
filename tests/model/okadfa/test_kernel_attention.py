"""Kernel attention with packed documents, padding and a cache, where heads of queries share keys."""

import pytest
import torch
from torch import Tensor

from brimful.model.okadfa.features import draw_projection
from brimful.model.okadfa.kernel_attention import (
    attend_by_features,
    attend_by_kernel,
    count_positions,
    find_text,
    for_every_query,
    number_segments,
)
from brimful.model.okadfa.kernel_llama import KernelLlamaConfig
from brimful.model.okadfa.recurrent_cache import RecurrentCache

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


@pytest.mark.parametrize("shared_by", [1, 3])
def test_an_implementation_that_keeps_no_features_gives_the_same(shared_by: int) -> None:
    queries, keys, values = (
        _positive(2, 2 * shared_by, 70, 8),
        _positive(2, 2, 70, 8),
        _positive(2, 2, 70, 8),
    )
    segments_BT = (torch.arange(70) >= 30).long().expand(2, -1)
    is_text_BT = (torch.arange(70) >= 5).expand(2, -1)
    kept = {
        implementation: attend_by_kernel(
            queries,
            keys,
            values,
            draw_projection(2, 16, 8, seed=0, layer=0),
            layer=0,
            implementation=implementation,
            segments_BT=segments_BT,
            is_text_BT=is_text_BT,
            past=None,
        )
        for implementation in ("sdpa", "brimful_blocks")
    }
    torch.testing.assert_close(kept["brimful_blocks"], kept["sdpa"])


def test_positions_segments_and_padding_of_rows() -> None:
    embedded = torch.zeros(2, 5, 8)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 0]])
    assert count_positions(embedded, mask, None).tolist() == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 3]]
    assert count_positions(embedded, None, None).tolist() == [[0, 1, 2, 3, 4]]
    assert number_segments(embedded, torch.tensor([2, 3, 0])).tolist() == [[0, 0, 1, 1, 1]] * 2
    assert number_segments(embedded, None) is None
    assert find_text(embedded, mask).tolist() == mask.bool().tolist()
    assert find_text(embedded, None) is None
