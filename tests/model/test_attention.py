"""Attention in blocks of rows is causal attention: same values, same gradients, whatever the
length.
"""

import pytest
import torch
from fixture_types import MakeRecipe, Refuses
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from brimful.model import attention
from brimful.model.attention import (
    BLOCK_ROWS,
    BLOCK_ROWS_16_BIT,
    block_causal_attention,
    register,
)
from brimful.model.blocks import CACHE_NAME
from brimful.model.build import build


def _heads(length: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys and values (2, 3, length, 8)."""
    generator = torch.Generator().manual_seed(length)
    return [
        torch.randn(2, 3, length, 8, generator=generator, dtype=dtype).requires_grad_()
        for _ in range(3)
    ]


@pytest.mark.parametrize(
    "length", [1, 2, BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS + 3]
)
def test_values_and_gradients_are_those_of_the_fused_kernel(length: int) -> None:
    ours, theirs = _heads(length), _heads(length)
    upstream = torch.randn(
        2, 3, length, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )

    attended = block_causal_attention(*ours, scale=0.3)
    expected = scaled_dot_product_attention(*theirs, is_causal=True, scale=0.3)
    attended.backward(upstream)
    expected.backward(upstream)

    torch.testing.assert_close(attended, expected)
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_no_position_sees_its_future() -> None:
    queries, keys, values = (tensor.detach() for tensor in _heads(BLOCK_ROWS + 20))
    changed_keys, changed_values = keys.clone(), values.clone()
    changed_keys[:, :, BLOCK_ROWS + 3 :] = 7.0
    changed_values[:, :, BLOCK_ROWS + 3 :] = -7.0

    before = block_causal_attention(queries, keys, values, scale=1.0)
    after = block_causal_attention(queries, changed_keys, changed_values, scale=1.0)

    assert torch.equal(before[:, :, : BLOCK_ROWS + 3], after[:, :, : BLOCK_ROWS + 3])
    assert not torch.equal(before[:, :, BLOCK_ROWS + 3 :], after[:, :, BLOCK_ROWS + 3 :])


def test_bf16_stays_within_its_rounding() -> None:
    exact = _heads(2 * BLOCK_ROWS_16_BIT + 44)
    rounded = [tensor.detach().to(torch.bfloat16).requires_grad_() for tensor in exact]

    attended = block_causal_attention(*rounded, scale=0.35)
    expected = block_causal_attention(*exact, scale=0.35)
    attended.sum().backward()
    expected.sum().backward()

    assert attended.dtype == torch.bfloat16
    torch.testing.assert_close(attended.double(), expected, atol=0.03, rtol=0.03)
    for own, other in zip(rounded, exact, strict=True):
        torch.testing.assert_close(own.grad.double(), other.grad, atol=0.1, rtol=0.03)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_examples_in_one_row_have_the_gradients_of_each_alone(dtype: torch.dtype) -> None:
    lengths = (5, 2 * BLOCK_ROWS_16_BIT + 7, BLOCK_ROWS, 1)
    together = [tensor.detach().to(dtype).requires_grad_() for tensor in _heads(sum(lengths))]
    alone = [tensor.detach().clone().requires_grad_() for tensor in together]
    block_causal_attention(*together, scale=0.3, lengths_E=lengths).sum().backward()
    for heads in zip(*(tensor.split(lengths, dim=2) for tensor in alone), strict=True):
        block_causal_attention(*heads, scale=0.3).sum().backward()
    for own, other in zip(together, alone, strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_gradients_of_dropout_are_those_of_the_weights_that_were_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "BLOCK_ROWS", 3)
    heads = [tensor[:1, :2, :5, :4].detach().clone().requires_grad_() for tensor in _heads(8)]

    def attend(*tensors: Tensor) -> Tensor:
        torch.manual_seed(3)
        return block_causal_attention(*tensors, scale=0.5, dropout=0.4)

    assert not torch.allclose(attend(*heads), block_causal_attention(*heads, scale=0.5))
    assert torch.autograd.gradcheck(attend, heads)


def test_dropout_keeps_the_expected_value() -> None:
    ones = torch.ones(64, 8, BLOCK_ROWS + 10, 4)
    torch.manual_seed(0)

    attended = block_causal_attention(ones, ones, ones, scale=1.0, dropout=0.25)

    assert attended.mean().item() == pytest.approx(1.0, abs=0.01)
    assert attended[:, :, 0].unique().tolist() == pytest.approx([0.0, 4 / 3])


@pytest.mark.parametrize(
    "model",
    [
        "{architecture: gpt2, layers: 2, heads: 2, width: 32}",
        "{layers: 2, heads: 4, kv_heads: 2, width: 32}",
    ],
)
def test_a_whole_model_says_the_same_with_it(tiny: MakeRecipe, model: str) -> None:
    register()
    blocks, fused = (
        build(
            tiny(f"model={model}", "sequence_length=80"),
            vocabulary=50,
            end_of_text_id=0,
            attention=name,
            device=torch.device("cpu"),
        )
        for name in (attention.NAME, "sdpa")
    )
    ids_BT = torch.arange(160).reshape(2, 80) % 50

    torch.testing.assert_close(
        blocks(ids_BT, use_cache=False).logits,
        fused(ids_BT, use_cache=False).logits,
        rtol=1e-4,
        atol=1e-5,
    )


def test_generating_with_it_is_refused_rather_than_wrong(
    tiny: MakeRecipe, refuses: Refuses
) -> None:
    register()
    model = build(
        tiny(),
        vocabulary=50,
        end_of_text_id=0,
        attention=attention.NAME,
        device=torch.device("cpu"),
    ).eval()
    cache = model(torch.tensor([[1, 2, 3]]), use_cache=True)[CACHE_NAME]

    with refuses(ValueError):
        model(torch.tensor([[4]]), **{CACHE_NAME: cache})


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_repeated_key_and_value_heads_give_what_grouped_ones_give(
    tiny: MakeRecipe, kv_heads: int
) -> None:
    recipe = tiny(f"model={{layers: 2, heads: 4, width: 32, kv_heads: {kv_heads}}}")
    ids_BT = torch.randint(0, 300, (2, 17), generator=torch.Generator().manual_seed(0))
    states = []
    for name in ("sdpa", attention.EXPANDED):
        model = build(
            recipe, vocabulary=300, end_of_text_id=0, attention=name, device=torch.device("cpu")
        )
        loss = model(input_ids=ids_BT, labels=ids_BT).loss
        loss.backward()
        states.append((loss.detach(), [parameter.grad for parameter in model.parameters()]))

    torch.testing.assert_close(states[0], states[1])


def test_repeated_heads_respect_padding(tiny: MakeRecipe) -> None:
    recipe = tiny("model={layers: 1, heads: 4, width: 32, kv_heads: 2}")
    ids_BT = torch.randint(0, 300, (2, 9), generator=torch.Generator().manual_seed(0))
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, 6:] = 0
    logits = [
        build(recipe, vocabulary=300, end_of_text_id=0, attention=name, device=torch.device("cpu"))(
            input_ids=ids_BT, attention_mask=mask_BT
        ).logits
        for name in ("sdpa", attention.EXPANDED)
    ]

    torch.testing.assert_close(logits[0][1, :6], logits[1][1, :6])
