"""The penalty on queries and keys is what its formula says, is added once per optimizer update, and
stays out of the loss that is told.

Suffixes: H heads, D head size, W width.
"""

from collections.abc import Callable

import pytest
import torch
from finished_runs import records_of, train
from fixture_types import MakeRecipe
from torch import Tensor

from brimful.data.batches import Batch
from brimful.model.build import build
from brimful.model.okadfa import orthogonality
from brimful.model.okadfa.orthogonality import (
    attentions_of,
    orthogonality_penalty,
    redraw_features,
    violation_per_head,
)
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.precision import Precision

CPU = torch.device("cpu")
OKADFA = "model={architecture: okadfa, layers: 2, heads: 2, width: 32}"
MakeModel = Callable[..., torch.nn.Module]


@pytest.fixture
def built(tiny: MakeRecipe) -> MakeModel:
    """A fresh model of two layers and two heads."""

    def make(*overrides: str) -> torch.nn.Module:
        return build(
            tiny(OKADFA, *overrides), vocabulary=50, end_of_text_id=0, attention="sdpa", device=CPU
        )

    return make


def _weight() -> Tensor:
    return torch.randn(24, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_violation_of_a_head_is_the_squared_distance_of_its_small_gram_matrix_from_the_identity() -> (
    None
):
    slices_HDW = _weight().reshape(3, 8, 40)
    by_hand = [
        sum(
            (float(one @ other) - (i == j)) ** 2
            for i, one in enumerate(rows)
            for j, other in enumerate(rows)
        )
        for rows in slices_HDW
    ]

    torch.testing.assert_close(
        violation_per_head(_weight(), 3), torch.tensor(by_hand, dtype=torch.float64)
    )


def test_its_gradient_is_4_times_the_distance_times_the_weight() -> None:
    weight = _weight().requires_grad_()
    violation_per_head(weight, 3).sum().backward()

    slices_HDW = _weight().reshape(3, 8, 40)
    expected_HDW = (
        4
        * (slices_HDW @ slices_HDW.transpose(1, 2) - torch.eye(8, dtype=torch.float64))
        @ slices_HDW
    )
    torch.testing.assert_close(weight.grad.reshape(3, 8, 40), expected_HDW)


def test_orthogonal_rows_cost_nothing_however_the_heads_lie_to_each_other() -> None:
    rows_DW = torch.linalg.qr(_weight().T)[0].T[:8]
    weight = torch.cat([rows_DW, rows_DW])

    assert float(violation_per_head(weight, 2).sum()) < 1e-24
    assert float(violation_per_head(weight, 1).sum()) == pytest.approx(16)


def test_it_counts_queries_and_keys_of_all_layers_and_nothing_else(built: MakeModel) -> None:
    model = built("model.attention=softmax")
    with torch.no_grad():
        for attention in attentions_of(model):
            attention.q_proj.weight.mul_(1.1)
    penalty = orthogonality_penalty(model)
    penalty.backward()

    moved = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert moved == {
        f"model.layers.{layer}.attention_part.attention.{each}_proj.weight"
        for layer in (0, 1)
        for each in "qk"
    }
    # of orthogonal rows times 1.1: (1.1^2 - 1)^2 for each of 16 rows of 2 heads in 2 layers
    assert penalty.dtype is torch.float32
    assert penalty.item() == pytest.approx(2 * 32 * (1.1**2 - 1) ** 2, rel=1e-3)


def test_with_values_it_counts_their_projections_as_well(built: MakeModel) -> None:
    model = built(OKADFA)
    with torch.no_grad():
        for attention in attentions_of(model):
            attention.v_proj.weight.mul_(2)
    expected = sum(
        violation_per_head(attention.v_proj.weight, attention.heads).sum()
        for attention in attentions_of(model)
    )
    found = orthogonality_penalty(model, values=True) - orthogonality_penalty(model)
    torch.testing.assert_close(found, expected)
    assert expected > 1


def test_a_fresh_model_is_where_the_penalty_wants_it(built: MakeModel) -> None:
    assert orthogonality_penalty(built()).item() < 1e-8


def test_features_are_drawn_anew_by_number_and_softmax_attention_has_none(built: MakeModel) -> None:
    model = built()
    before = [attention.projection_HMD.clone() for attention in attentions_of(model)]

    redraw_features(model, 3)
    for attention, old in zip(attentions_of(model), before, strict=True):
        assert not torch.equal(attention.projection_HMD, old)
        assert torch.equal(attention.projection_HMD, attention.directions(3))
    redraw_features(model, 0)
    assert all(
        torch.equal(attention.projection_HMD, old)
        for attention, old in zip(attentions_of(model), before, strict=True)
    )
    redraw_features(built("model.attention=softmax"), 3)


@pytest.mark.parametrize("method", ["pretrain", "feedback"])
@pytest.mark.parametrize("sizes", [(4,), (1, 3), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("scale", [1.0, 2.0**16], ids=["fp32", "as fp16 scales"])
def test_whatever_the_micro_batches_it_is_added_once_and_not_to_the_loss(
    tiny: MakeRecipe, method: str, sizes: tuple[int, ...], scale: float
) -> None:
    """The gradient of an update is that of the mean loss plus the penalty's: the loop divides by
    what they carry.
    """
    recipe = tiny(OKADFA, f"method={method}", "sequence_length=16")
    model = build(recipe, vocabulary=50, end_of_text_id=0, attention="sdpa", device=CPU)
    with torch.no_grad():
        attentions_of(model)[0].q_proj.weight.mul_(1.5)
    network, configured = (
        Network(model, hidden_states_of(model), loss_chunk=16),
        find_method(method).with_options(recipe.loss_options),
    )
    ids = torch.randint(0, 50, (4, 17), generator=torch.Generator().manual_seed(0))
    batch, weight = Batch(ids[:, :-1], ids[:, 1:]), attentions_of(model)[0].q_proj.weight

    def gradient(penalty: Callable[[], Tensor] | None) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        pieces = batch.micro_batches(sizes)
        loss = accumulate_gradients(
            network,
            configured,
            Precision("fp32"),
            CPU,
            pieces,
            torch.tensor(scale / 64),
            added=penalty,
        )
        return loss, weight.grad / scale  # carried: scale / 64 times 64 tokens

    (loss, without), (same_loss, with_it) = (
        gradient(None),
        gradient(lambda: 0.01 * orthogonality_penalty(model) * 64),
    )

    assert torch.equal(loss, same_loss)
    (expected,) = torch.autograd.grad(0.01 * orthogonality_penalty(model), weight)
    assert expected.norm() > 0.1
    torch.testing.assert_close(with_it - without, expected, rtol=1e-3, atol=1e-5)


def test_a_run_adds_it_by_its_schedule_once_per_update_and_tells_the_loss_alone(
    tiny: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reaches the penalty in the backward pass is its weight: 256 targets, a power of two, are
    divided out.
    """
    weights: list[float] = []

    def penalty(model: torch.nn.Module, *, values: bool) -> Tensor:
        found = 1 + orthogonality_penalty(model, values=values)
        found.register_hook(lambda gradient: weights.append(gradient.item()))
        return found

    monkeypatch.setattr(orthogonality, "orthogonality_penalty", penalty)
    folder = train(
        tiny(
            OKADFA,
            "training.steps=5",
            "orthogonality={weight: 1000.0, warmup: 4}",
            "plan.micro_batch=3",
        )
    )

    assert weights == [250, 500, 750, 1000, 1000]
    losses = [record["loss"] for record in records_of(folder, "step")]
    assert len(losses) == 5
    assert max(losses) < 20  # with it they would be 250 and more
