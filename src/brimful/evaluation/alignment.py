"""How close the gradient of feedback alignment comes to that of backpropagation: both of one model,
on the same held-out tokens, segment by segment.

Lillicrap et al. 2016: learning works as long as the two lie within 90 degrees on average, and
training turns the weights until they do.

Shapes: B rows, T positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from brimful.data.batches import Batch
from brimful.evaluation.stats import mean_of_known
from brimful.model.blocks import eval_mode
from brimful.recipe import FeedbackRecipe
from brimful.training.method import LossSum, Network, hidden_states_of, next_token_loss_sum
from brimful.training.methods.feedback import Feedback, segments_of


@dataclass(frozen=True)
class SegmentAlignment:
    """The gradient of the parameters between two cuts.

    Attributes:
        name: "embedding", "block 1", "block 1 attention", "above the blocks".
        is_below_the_top: Whether it is fed back to: neither the embedding, which gets the head's
            gradient where it is tied, nor the top, which gets the true one.
        cosine: Cosine of feedback's gradient and backpropagation's; None where either is zero.
        norm_ratio: |feedback| / |backpropagation|; None where the latter is zero.
        relative_error: |feedback - backpropagation| / |backpropagation|; likewise.
    """

    name: str
    is_below_the_top: bool
    cosine: float | None
    norm_ratio: float | None
    relative_error: float | None


@dataclass(frozen=True)
class Alignment:
    """Alignment of a model's segments, from the embedding to the top."""

    segments: tuple[SegmentAlignment, ...]

    @property
    def below_the_top(self) -> tuple[SegmentAlignment, ...]:
        """Those that learn from what is fed back."""
        return tuple(segment for segment in self.segments if segment.is_below_the_top)

    @property
    def mean_cosine(self) -> float | None:
        """Mean cosine over the segments below the top; None where none of them gets a gradient."""
        return mean_of_known(segment.cosine for segment in self.below_the_top)


def measure_alignment(
    model: PreTrainedModel,
    rules: FeedbackRecipe,
    seed: int,
    batches: Sequence[Batch],
    *,
    loss_chunk: int,
) -> Alignment:
    """Both gradients in the model's own arithmetic and without dropout; the model is put back into
    the mode it had, its `.grad` is not touched.

    Args:
        rules: Feedback rules of the run, with its `seed`: the very matrix that it was trained with.
        batches: Held-out rows; each is one forward and backward pass per gradient.
        loss_chunk: Positions per chunk of logits.
    """
    groups = _groups(model, rules)
    parameters = [parameter for _, _, group in groups for parameter in group]
    network = Network(model, hidden_states_of(model), loss_chunk)
    with eval_mode(model):
        fed_back = iter(_gradients(Feedback(rules, seed), network, parameters, batches))
        true = iter(_gradients(next_token_loss_sum, network, parameters, batches))
    return Alignment(
        tuple(
            _compared(name, is_below, [next(fed_back) for _ in group], [next(true) for _ in group])
            for name, is_below, group in groups
        )
    )


def _groups(
    model: PreTrainedModel, rules: FeedbackRecipe
) -> list[tuple[str, bool, list[nn.Parameter]]]:
    """(name, whether below the top, parameters) of each segment; tied weights belong to the
    first.
    """
    embedding, *below = segments_of(model, rules.points)
    parts = [""]
    if rules.points == "sublayer":
        parts = [" attention", " MLP"]
    blocks = range(1, len(below) // len(parts) + 1)
    names = [f"block {block}{part}" for block in blocks for part in parts]
    seen: set[nn.Parameter] = set()

    def trained(module: nn.Module) -> list[nn.Parameter]:
        parameters = [
            parameter
            for parameter in module.parameters()
            if parameter.requires_grad and parameter not in seen
        ]
        seen.update(parameters)
        return parameters

    groups = [("embedding", False, trained(embedding))]
    groups += [(name, True, trained(module)) for name, module in zip(names, below, strict=True)]
    return [*groups, ("above the blocks", False, trained(model))]


def _gradients(
    loss_sum: LossSum,
    network: Network,
    parameters: Sequence[nn.Parameter],
    batches: Sequence[Batch],
) -> list[Tensor]:
    """Summed over the batches; zeros where the loss does not reach."""
    sums = [torch.zeros_like(parameter) for parameter in parameters]
    for batch in batches:
        for micro in batch.micro_batches((len(batch.inputs_BT),)):
            with torch.enable_grad():
                loss = loss_sum(network, micro.to(network.model.device))
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
            for total, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    total.add_(gradient)
    return sums


def _compared(
    name: str, is_below: bool, fed_back: Sequence[Tensor], true: Sequence[Tensor]
) -> SegmentAlignment:
    """Sums in fp64: a segment may have millions of parameters."""

    def dot(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
        return sum(
            float((one.double() * other.double()).sum())
            for one, other in zip(first, second, strict=True)
        )

    norm_fed_back, norm_true = math.sqrt(dot(fed_back, fed_back)), math.sqrt(dot(true, true))
    if not norm_true:
        return SegmentAlignment(name, is_below, None, None, None)
    apart = [one - other for one, other in zip(fed_back, true, strict=True)]
    relative_error = math.sqrt(dot(apart, apart)) / norm_true
    cosine = None
    if norm_fed_back:
        cosine = dot(fed_back, true) / (norm_fed_back * norm_true)
    return SegmentAlignment(name, is_below, cosine, norm_fed_back / norm_true, relative_error)
