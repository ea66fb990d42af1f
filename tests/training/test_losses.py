"""The linear cross-entropy against torch's own."""

import functools

import pytest
import torch
from torch.nn.functional import cross_entropy

from brimful.training.losses import (
    IGNORED,
    PieceLosses,
    linear_cross_entropy,
    linear_token_losses,
    piece_losses,
    piece_losses_to_compile,
    token_losses,
)

pieces = pytest.mark.parametrize(
    "piece",
    [
        functools.partial(piece_losses, converting=False),
        functools.partial(piece_losses, converting=True),
        piece_losses_to_compile,
    ],
    ids=["eager", "as on CUDA", "to compile"],
)


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 16, generator=generator, requires_grad=True)
    weight = torch.randn(50, 16, generator=generator, requires_grad=True)
    targets = torch.randint(0, 50, (3, 7), generator=generator)
    targets[0, 3:] = IGNORED
    return hidden, weight, targets


def _reference(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, softcap: float | None
) -> torch.Tensor:
    logits = hidden @ weight.T
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=IGNORED
    ).view(targets.shape)


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 21, 1000])
@pieces
def test_loss_and_gradients_equal_the_reference_for_any_chunk(
    chunk_tokens: int, softcap: float | None, piece: PieceLosses
) -> None:
    hidden, weight, targets = _inputs()
    expected = _reference(hidden, weight, targets, softcap).sum()
    expected_grads = torch.autograd.grad(expected * 0.37, (hidden, weight))
    loss = linear_cross_entropy(
        hidden, weight, targets, chunk_tokens=chunk_tokens, softcap=softcap, piece=piece
    )
    grads = torch.autograd.grad(loss * 0.37, (hidden, weight))
    torch.testing.assert_close(loss, expected)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad)


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_token_losses_equal_the_reference_position_by_position(softcap: float | None) -> None:
    hidden, weight, targets = _inputs()
    torch.testing.assert_close(
        token_losses(hidden, weight, targets, chunk_tokens=4, softcap=softcap),
        _reference(hidden, weight, targets, softcap).detach(),
    )


@pieces
def test_all_positions_ignored_is_a_zero_loss_with_zero_gradients(piece: PieceLosses) -> None:
    hidden, weight, targets = _inputs()
    targets = torch.full_like(targets, IGNORED)
    loss = linear_cross_entropy(hidden, weight, targets, chunk_tokens=4, piece=piece)
    loss.backward()
    assert loss == 0
    assert hidden.grad is not None
    assert not hidden.grad.any()
    assert weight.grad is not None
    assert not weight.grad.any()


@pieces
def test_under_autocast_products_are_bf16_and_gradients_keep_the_weights_dtype(
    piece: PieceLosses,
) -> None:
    hidden, weight, targets = _inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = linear_cross_entropy(hidden, weight, targets, chunk_tokens=4, piece=piece)
    loss.backward()
    expected = _reference(hidden, weight, targets, None).sum()
    assert weight.grad is not None
    assert (loss.dtype, weight.grad.dtype) == (torch.float32, torch.float32)
    torch.testing.assert_close(loss, expected, rtol=2e-2, atol=0)
    assert loss != expected


@pieces
def test_no_tensor_of_all_logits_is_ever_made(piece: PieceLosses) -> None:
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            sizes = [
                tensor.numel()
                for tensor in (out if isinstance(out, tuple) else (out,))
                if isinstance(tensor, torch.Tensor)
            ]
            largest = max([largest, *sizes])
            return out

    hidden, weight, targets = (
        torch.randn(4, 64, 8, requires_grad=True),
        torch.randn(500, 8, requires_grad=True),
        torch.randint(0, 500, (4, 64)),
    )
    with Watch():
        loss = linear_cross_entropy(hidden, weight, targets, chunk_tokens=16, piece=piece)
        loss.backward()
    assert largest == 16 * 500


def test_a_second_backward_pass_is_refused_where_gradients_are_scaled_in_place() -> None:
    hidden, weight, targets = _inputs()
    loss = linear_cross_entropy(hidden, weight, targets, chunk_tokens=4)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("trains_head", [False, True])
@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("chunk_tokens", [1, 4, 1000])
@pieces
def test_losses_of_positions_and_their_gradients_are_those_of_whole_logits(
    chunk_tokens: int, softcap: float | None, piece: PieceLosses, trains_head: bool
) -> None:
    """Whatever a position counts, which is known only once all losses are."""
    hidden, weight, targets = _inputs()
    scored = (targets != IGNORED).flatten()
    weight = weight.detach().requires_grad_(trains_head)
    trained = (hidden, weight) if trains_head else (hidden,)
    expected = _reference(hidden, weight, targets, softcap).flatten()[scored]
    expected_grads = torch.autograd.grad(expected.log1p().sum(), trained)

    losses = linear_token_losses(
        hidden.flatten(0, 1)[scored],
        weight,
        targets.flatten()[scored],
        chunk_tokens=chunk_tokens,
        softcap=softcap,
        piece=piece,
    )
    grads = torch.autograd.grad(losses.log1p().sum(), trained)

    torch.testing.assert_close(losses, expected)
    for grad, expected_grad in zip(grads, expected_grads, strict=True):
        torch.testing.assert_close(grad, expected_grad)
    with torch.no_grad():
        assert torch.equal(
            losses,
            linear_token_losses(
                hidden.flatten(0, 1)[scored],
                weight,
                targets.flatten()[scored],
                chunk_tokens=chunk_tokens,
                softcap=softcap,
                piece=piece,
            ),
        )
