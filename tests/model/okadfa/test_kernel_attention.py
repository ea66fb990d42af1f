"""Kernel attention with packed documents, padding and a cache, where heads of queries share keys."""

import pytest
import torch
from torch import Tensor

from brimful.model.okadfa.kernel_attention import (
    attend_by_features,
    count_positions,
    find_text,
    for_every_query,
    keeps_no_features,
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
