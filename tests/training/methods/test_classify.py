"""Classification: however an optimizer step is cut into passes, the gradient is that of one
weighted batch.
"""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - everyone's name for it
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
)

from brimful.data.labelled import LabelledSplit
from brimful.data.labelled_batches import EncodedLabels, LabelledBatch, LabelledSequences, Passes
from brimful.recipe import Recipe
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Network, find_method, hidden_states_of
from brimful.training.methods.classify import labels_loss_sum
from brimful.training.optim import loss_factor
from brimful.training.precision import Precision

CPU, PAD = torch.device("cpu"), 0


def _bert(labels: int) -> PreTrainedModel:
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=48,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            num_labels=labels,
        )
    )


def _llama(labels: int) -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=50,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=48,
            num_labels=labels,
            pad_token_id=PAD,
        )
    )


def _batch(
    targets: np.ndarray[Any, Any], weights_C: list[float] | None, overhead: int
) -> LabelledBatch:
    """Texts of 1 to 40 tokens, most of them short."""
    random = np.random.default_rng(3)
    lengths = np.minimum(1 + random.geometric(0.1, size=len(targets)), 40)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    texts = ("",) * len(targets)
    split = LabelledSplit(texts, targets, texts, np.zeros(len(targets), dtype=bool))
    encoded = EncodedLabels(split, random.integers(1, 50, offsets[-1]).astype(np.uint32), offsets)
    weights = None if weights_C is None else np.array(weights_C, np.float32)
    return LabelledSequences(
        encoded, weights, Passes(PAD, limit=40, overhead=overhead), seed=0
    ).batch(0, len(targets))


def _gradient(model: nn.Module) -> Tensor:
    return torch.cat(
        [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    )


def _one_batch(model: PreTrainedModel, batch: LabelledBatch) -> Tensor:
    """Logits of all texts side by side."""
    inputs_BT, mask_BT = Passes(PAD, 40, 0).filled(batch.ids)
    logits: Tensor = model(input_ids=inputs_BT, attention_mask=mask_BT).logits
    return logits


@pytest.mark.parametrize("make", [_bert, _llama])
@pytest.mark.parametrize("sizes", [(1,), (2,), (24,)])
@pytest.mark.parametrize("overhead", [0, 500])
def test_accumulated_bucketed_weighted_training_has_the_gradient_of_one_batch(
    make: Any, sizes: tuple[int, ...], overhead: int
) -> None:
    weights = [0.6, 3.5, 1.2]
    batch = _batch(np.random.default_rng(0).integers(0, 3, 24), weights, overhead)
    model = make(3)
    reference = F.cross_entropy(
        _one_batch(model, batch), torch.from_numpy(batch.targets), weight=torch.tensor(weights)
    )
    reference.backward()
    expected = _gradient(model)
    model.zero_grad()
    scale = loss_factor(torch.ones(()), batch.loss_divisor)

    network = Network(model, hidden_states_of(model), loss_chunk=8)
    pieces = list(batch.micro_batches(sizes))
    loss = (
        accumulate_gradients(
            network, find_method("classify"), Precision("fp32"), CPU, pieces, scale
        )
        / batch.loss_divisor
    )

    assert len(pieces) > 1 or sizes == (24,)
    torch.testing.assert_close(loss, reference.detach(), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(
        _gradient(model) / (scale * batch.loss_divisor), expected, rtol=2e-5, atol=2e-7
    )


def test_several_labels_per_text_are_binary_cross_entropies_with_weighted_positives() -> None:
    random = np.random.default_rng(1)
    weights = [2.0, 0.5, 7.0]
    batch = _batch((random.random((16, 3)) < 0.3).astype(np.float32), weights, 0)
    model = _bert(3)
    reference = F.binary_cross_entropy_with_logits(
        _one_batch(model, batch), torch.from_numpy(batch.targets), pos_weight=torch.tensor(weights)
    )
    scale = loss_factor(torch.ones(()), batch.loss_divisor)

    network = Network(model, hidden_states_of(model), loss_chunk=8)
    loss = (
        accumulate_gradients(
            network,
            find_method("classify"),
            Precision("fp32"),
            CPU,
            batch.micro_batches((1,)),
            scale,
        )
        / batch.loss_divisor
    )

    torch.testing.assert_close(loss, reference.detach(), rtol=1e-6, atol=1e-7)


def test_focal_loss_is_the_papers_and_without_gamma_cross_entropy() -> None:
    logits_BC, targets_B = (
        torch.randn(6, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 2, 1, 0]),
    )
    probabilities_B = logits_BC.softmax(1)[torch.arange(6), targets_B]

    focal = labels_loss_sum(logits_BC, targets_B, focal_gamma=2.0)

    torch.testing.assert_close(focal, (-((1 - probabilities_B) ** 2) * probabilities_B.log()).sum())
    torch.testing.assert_close(
        labels_loss_sum(logits_BC, targets_B),
        F.cross_entropy(logits_BC, targets_B, reduction="sum"),
    )


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_certain_answer_gives_focal_loss_no_broken_gradient(gamma: float) -> None:
    logits_BC = torch.tensor([[200.0, -200.0]], requires_grad=True)

    (gradient,) = torch.autograd.grad(
        labels_loss_sum(logits_BC, torch.tensor([0]), focal_gamma=gamma), logits_BC
    )

    assert torch.isfinite(gradient).all()


def test_label_smoothing_is_torchs_for_one_label_and_between_yes_and_no_for_several() -> None:
    logits_BC, targets_B = (
        torch.randn(5, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 3, 0]),
    )
    several_BC = F.one_hot(targets_B, 4).float()

    torch.testing.assert_close(
        labels_loss_sum(logits_BC, targets_B, smoothing=0.1),
        F.cross_entropy(logits_BC, targets_B, reduction="sum", label_smoothing=0.1),
    )
    expected = (
        F.binary_cross_entropy_with_logits(logits_BC, several_BC * 0.9 + 0.05, reduction="sum") / 4
    )
    torch.testing.assert_close(labels_loss_sum(logits_BC, several_BC, smoothing=0.1), expected)


def test_the_recipes_options_reach_the_loss() -> None:
    recipe = Recipe.model_validate(
        {
            "name": "x",
            "method": "classify",
            "model": "somewhere/encoder",
            "sequence_length": 40,
            "batch": {"sequences": 8},
            "training": {"epochs": 1.0},
            "data": {"path": "x.csv"},
            "optimizer": {"learning_rate": 1e-3},
            "labels": {"loss": "focal", "focal_gamma": 1.5},
        }
    )
    batch = _batch(np.array([0, 1, 1, 0]), None, overhead=500)
    model = _bert(2)
    network = Network(model, hidden_states_of(model), loss_chunk=8)
    (micro,) = batch.micro_batches((8,))

    configured = find_method("classify").with_options(recipe.loss_options)

    assert micro.weights is not None
    logits_BC = model(**micro.model_inputs()).logits
    torch.testing.assert_close(
        configured.loss_sum(network, micro),
        labels_loss_sum(logits_BC, micro.targets_BT, focal_gamma=1.5),
    )
    assert configured.loss_sum(network, micro) < find_method("classify").loss_sum(network, micro)
