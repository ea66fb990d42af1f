"""Both gradients of one model, segment by segment, against gradients taken by hand."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from brimful.data.batches import Batch
from brimful.evaluation.alignment import Alignment, measure_alignment
from brimful.recipe import FeedbackRecipe
from brimful.training.method import LossSum, Network, hidden_states_of, next_token_loss_sum
from brimful.training.methods.feedback import Feedback

SEED = 3
MakeModel = Callable[..., PreTrainedModel]


@pytest.fixture
def batches() -> list[Batch]:
    ids_BT = torch.randint(0, 50, (4, 17), generator=torch.Generator().manual_seed(0))
    return [Batch(rows[:, :-1], rows[:, 1:]) for rows in ids_BT.split(2)]


def measured(model: PreTrainedModel, batches: list[Batch], **rules: str) -> Alignment:
    return measure_alignment(
        model, FeedbackRecipe.model_validate(rules), SEED, batches, loss_chunk=8
    )


def gradient(
    model: PreTrainedModel, loss_sum: LossSum, batches: list[Batch], part: torch.nn.Module
) -> Tensor:
    """Of all parameters of a part, by the ordinary way of training."""
    model.zero_grad()
    for batch in batches:
        for micro in batch.micro_batches((1, 1)):
            loss_sum(Network(model, hidden_states_of(model), 8), micro).backward()
    return torch.cat(
        [parameter.grad.flatten() for parameter in part.parameters() if parameter.grad is not None]
    )


def test_figures_are_those_of_the_gradients_that_training_takes(
    model_of: MakeModel, batches: list[Batch]
) -> None:
    model = model_of()
    found = measured(model, batches)
    block = model.model.layers[0]
    fed_back, true = (
        gradient(model, loss, batches, block)
        for loss in (Feedback(FeedbackRecipe(), SEED), next_token_loss_sum)
    )

    assert [each.name for each in found.segments] == [
        "embedding",
        "block 1",
        "block 2",
        "above the blocks",
    ]
    first = found.segments[1]
    assert first.cosine == pytest.approx(
        float(torch.cosine_similarity(fed_back, true, dim=0)), abs=1e-5
    )
    assert first.norm_ratio == pytest.approx(float(fed_back.norm() / true.norm()), rel=1e-4)
    assert first.relative_error == pytest.approx(
        float((fed_back - true).norm() / true.norm()), rel=1e-4
    )


def test_the_top_gets_the_true_gradient_and_the_mean_is_of_what_lies_below_it(
    model_of: MakeModel, batches: list[Batch]
) -> None:
    found = measured(model_of(), batches)
    top = found.segments[-1]

    assert (top.cosine, top.norm_ratio, top.relative_error) == pytest.approx((1, 1, 0), abs=1e-5)
    assert found.mean_cosine == pytest.approx(
        sum(each.cosine or 0 for each in found.segments[1:3]) / 2
    )


def test_every_part_of_a_block_is_a_segment_where_it_is_fed_back_to(
    model_of: MakeModel, batches: list[Batch]
) -> None:
    names = [each.name for each in measured(model_of(), batches, points="sublayer").below_the_top]

    assert names == ["block 1 attention", "block 1 MLP", "block 2 attention", "block 2 MLP"]


def test_layers_that_nothing_is_fed_back_to_have_no_direction(
    model_of: MakeModel, batches: list[Batch]
) -> None:
    found = measured(model_of(), batches, points="none")

    assert [
        (each.cosine, each.norm_ratio, each.relative_error) for each in found.below_the_top
    ] == [(None, 0, 1)] * 2
    assert found.mean_cosine is None


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_other_architectures_are_measured_as_well(
    model_of: MakeModel, batches: list[Batch], architecture: str
) -> None:
    found = measured(model_of(architecture=architecture, tie_embeddings=False), batches)

    assert all(each.cosine is not None for each in found.segments)


def test_the_model_stays_as_it_was(model_of: MakeModel, batches: list[Batch]) -> None:
    model = model_of(dropout=0.5).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    one, other = measured(model, batches), measured(model, batches)

    assert one == other  # no dropout
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
