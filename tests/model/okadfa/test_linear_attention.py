"""In chunks, one by one and all at once: the same attention, the same gradients."""

from collections.abc import Callable, Sequence

import pytest
import torch
from fixture_types import Refuses
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache

from brimful.model.blocks import CACHE_NAME
from brimful.model.okadfa.linear_attention import (
    CHUNK,
    GROUP,
    RecurrentCache,
    causal_attention,
    next_position,
    num_read,
    sum_before,
)
from brimful.model.okadfa.modeling import OkadfaConfig, OkadfaForCausalLM

FEATURES, SIZE = 12, 5
TOLERANCE = {
    torch.float64: {"rtol": 1e-12, "atol": 1e-12},
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
}
Heads = tuple[Tensor, Tensor, Tensor]


def _heads(
    length: int, dtype: torch.dtype = torch.float64, *, rows: int = 2, requires_grad: bool = False
) -> Heads:
    """Features of queries and of keys, and values, of three heads."""
    generator = torch.Generator().manual_seed(length)
    queries, keys = (
        torch.rand(2, rows, 3, length, FEATURES, generator=generator, dtype=torch.float64) + 0.01
    )
    values = torch.randn(rows, 3, length, SIZE, generator=generator, dtype=torch.float64)
    found = [each.to(dtype).requires_grad_(requires_grad) for each in (queries, keys, values)]
    return found[0], found[1], found[2]


def _all_at_once(
    queries: Tensor, keys: Tensor, values: Tensor, sees_TT: Tensor | None = None
) -> Tensor:
    """Every weight formed: the definition."""
    weights = (queries @ keys.mT).tril()
    if sees_TT is not None:
        weights = weights * sees_TT
    return weights / weights.sum(-1, keepdim=True) @ values


def _one_by_one(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    state, attended = queries.new_zeros(*queries.shape[:2], FEATURES, SIZE + 1), []
    for position in range(queries.shape[2]):
        here = slice(position, position + 1)
        one, state = next_position(queries[:, :, here], keys[:, :, here], values[:, :, here], state)
        attended.append(one)
    return torch.cat(attended, dim=2), state


def _numbers(lengths: Sequence[int], rows: int = 2) -> Tensor:
    return torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).expand(rows, -1)


def _gradients(attend: Callable[..., Tensor], heads: Heads) -> list[Tensor]:
    weights = torch.randn(
        heads[2].shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    ).to(heads[2].dtype)
    return list(torch.autograd.grad((attend(*heads) * weights).sum(), heads))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 150), st.integers(1, 70), st.sampled_from([torch.float64, torch.float32]))
def test_chunks_equal_all_at_once_and_one_by_one(
    length: int, chunk: int, dtype: torch.dtype
) -> None:
    heads = _heads(length, dtype, requires_grad=True)
    attended, state = causal_attention(*heads, chunk=chunk)
    expected, expected_state = _one_by_one(*heads)
    torch.testing.assert_close(attended, _all_at_once(*heads), **TOLERANCE[dtype])
    torch.testing.assert_close(attended, expected, **TOLERANCE[dtype])
    torch.testing.assert_close(state, expected_state, **TOLERANCE[dtype])
    found = _gradients(lambda *each: causal_attention(*each, chunk=chunk)[0], heads)
    for one, other in zip(found, _gradients(_all_at_once, heads), strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE[dtype])


@settings(deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40))
def test_a_text_read_in_two_parts_is_the_text(first: int, second: int, chunk: int) -> None:
    heads = _heads(first + second)
    whole, whole_state = causal_attention(*heads, chunk=chunk)
    before, state = causal_attention(*(each[:, :, :first] for each in heads), chunk=chunk)
    after, state = causal_attention(
        *(each[:, :, first:] for each in heads), chunk=chunk, state_BHME=state
    )
    torch.testing.assert_close(torch.cat([before, after], dim=2), whole, **TOLERANCE[torch.float64])
    torch.testing.assert_close(state, whole_state, **TOLERANCE[torch.float64])


@pytest.mark.long
@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.sampled_from([1, 2, 7, 64]),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_packed_documents_read_as_each_alone(
    lengths: list[int], chunk: int, dtype: torch.dtype
) -> None:
    """Short chunks, so that groups of chunks are crossed as well."""
    heads, numbers_BT = _heads(sum(lengths), dtype, requires_grad=True), _numbers(lengths)
    attended, state = causal_attention(*heads, segments_BT=numbers_BT, chunk=chunk)
    alone = [
        causal_attention(*document, chunk=chunk)
        for document in zip(*(each.split(lengths, dim=2) for each in heads), strict=True)
    ]
    torch.testing.assert_close(
        attended, torch.cat([each for each, _ in alone], dim=2), **TOLERANCE[dtype]
    )
    torch.testing.assert_close(state, alone[-1][1], **TOLERANCE[dtype])
    found = _gradients(
        lambda *each: causal_attention(*each, segments_BT=numbers_BT, chunk=chunk)[0], heads
    )
    sees_TT = numbers_BT[0][:, None] == numbers_BT[0]
    for one, other in zip(
        found, _gradients(lambda *each: _all_at_once(*each, sees_TT), heads), strict=True
    ):
        torch.testing.assert_close(one, other, **TOLERANCE[dtype])


def test_a_document_longer_than_a_group_of_chunks_reads_on() -> None:
    lengths = [3, 2 * GROUP * GROUP + 5, 7, GROUP]
    heads = _heads(sum(lengths), rows=1)
    attended, _ = causal_attention(*heads, segments_BT=_numbers(lengths, 1), chunk=1)
    alone = [
        causal_attention(*document)[0]
        for document in zip(*(each.split(lengths, dim=2) for each in heads), strict=True)
    ]
    torch.testing.assert_close(attended, torch.cat(alone, dim=2), **TOLERANCE[torch.float64])


def test_rows_of_a_batch_may_be_packed_differently() -> None:
    heads = _heads(100)
    numbers_BT = torch.cat([_numbers([30, 70], 1), _numbers([64, 1, 35], 1)])
    both, _ = causal_attention(*heads, segments_BT=numbers_BT, chunk=16)
    for row in range(2):
        alone, _ = causal_attention(
            *(each[row : row + 1] for each in heads),
            segments_BT=numbers_BT[row : row + 1],
            chunk=16,
        )
        torch.testing.assert_close(both[row : row + 1], alone, **TOLERANCE[torch.float64])


def test_keys_of_zero_are_not_there_and_where_nothing_is_seen_all_is_zero() -> None:
    queries, keys, values = _heads(80)
    keys[:, :, :30] = 0
    attended, _ = causal_attention(queries, keys, values)
    assert attended[:, :, :30].eq(0).all()
    expected, _ = causal_attention(*(each[:, :, 30:] for each in (queries, keys, values)))
    torch.testing.assert_close(attended[:, :, 30:], expected, **TOLERANCE[torch.float64])


@pytest.mark.parametrize("segments_BT", [None, _numbers([50, 100])], ids=["one document", "packed"])
def test_the_future_is_not_looked_at(segments_BT: Tensor | None) -> None:
    heads, changed = _heads(150), [each.clone() for each in _heads(150)]
    for each in changed:
        each[:, :, 90:] *= 7
    before, after = (
        causal_attention(*each, segments_BT=segments_BT)[0] for each in (heads, changed)
    )
    assert torch.equal(before[:, :, :90], after[:, :, :90])
    assert not torch.equal(before[:, :, 90:], after[:, :, 90:])


def test_gradients_pass_finite_differences() -> None:
    heads = _heads(7, rows=1, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *each: causal_attention(*each, chunk=3), heads)
    assert torch.autograd.gradcheck(
        lambda *each: causal_attention(*each, segments_BT=_numbers([2, 5], 1), chunk=3)[0], heads
    )


def test_packed_documents_take_no_state(refuses: Refuses) -> None:
    heads = _heads(4)
    _, state = causal_attention(*heads)
    with refuses(ValueError):
        causal_attention(*heads, segments_BT=_numbers([4]), state_BHME=state)


def _saved_bytes(length: int, features: int, size: int) -> int:
    """That the backward pass of one head needs; storages once."""
    found: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    queries, keys = (torch.rand(1, 1, length, features, requires_grad=True) for _ in range(2))
    values = torch.randn(1, 1, length, size, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attended, _ = causal_attention(queries, keys, values)
    assert attended.requires_grad
    return sum(found.values())


def test_what_the_backward_pass_keeps_grows_with_the_length_and_stays_far_below_a_sum_per_position() -> (
    None
):
    features, size = 256, 64
    short, long = (_saved_bytes(length, features, size) for length in (16 * CHUNK, 64 * CHUNK))
    assert long == pytest.approx(4 * short, rel=0.02)
    assert long < 64 * CHUNK * features * size * 4 / 12


SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


def _read(cache: DynamicCache, length: int, config: OkadfaConfig) -> None:
    with torch.no_grad():
        OkadfaForCausalLM(config)(
            torch.zeros(3, length, dtype=torch.long), use_cache=True, **{CACHE_NAME: cache}
        )


def test_it_counts_positions_and_holds_one_sum_per_layer() -> None:
    config = OkadfaConfig(**SIZES)
    cache = RecurrentCache(config)
    assert (num_read(cache), sum_before(cache, 0)) == (0, None)
    _read(cache, 5, config)
    _read(cache, 1, config)
    assert cache.get_seq_length() == num_read(cache) == 6
    assert cache.get_mask_sizes(2, 0) == (8, 0)
    assert all(sum_before(cache, layer).shape == (3, 2, 32, 9) for layer in range(2))
    assert not cache.is_compileable


def test_rows_are_chosen_and_texts_forgotten() -> None:
    config = OkadfaConfig(**SIZES)
    cache = RecurrentCache(config)
    _read(cache, 4, config)
    cache.reorder_cache(torch.tensor([2, 0]))
    state = sum_before(cache, 1)
    assert state is not None
    assert state.shape[0] == 2
    cache.reset()
    assert (cache.positions, float(state.abs().sum())) == (0, 0.0)


def test_caches_of_transformers_say_what_they_know(refuses: Refuses) -> None:
    config = OkadfaConfig(**SIZES, attention="softmax")
    softmax, recurrent = DynamicCache(config=config), DynamicCache(config=OkadfaConfig(**SIZES))
    assert num_read(None) == num_read(DynamicCache()) == num_read(recurrent) == 0
    _read(softmax, 4, config)
    assert num_read(softmax) == 4
    _read(recurrent, 4, OkadfaConfig(**SIZES))
    with refuses(ValueError, names=["position_ids"]):
        num_read(recurrent)
