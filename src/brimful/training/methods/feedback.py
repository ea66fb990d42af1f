"""Direct feedback alignment: each segment of the network learns from the error at the top, through a fixed matrix, instead of backpropagation.

Noekland 2016 ("Direct Feedback Alignment Provides Learning in Deep Neural Networks"); for transformers Launay et al. 2020 ("Direct Feedback Alignment
Scales to Modern Deep Learning Tasks and Architectures"): the error is the loss's gradient at the hidden states before the vocabulary projection, and
one matrix serves all feedback points. Inside a segment ordinary backpropagation runs from its output to its parameters and stops at its input. The
final norm and the head get the true gradient; the embedding is a segment of its own, and where it is tied it also gets the head's gradient.

Deviations: feedback points lie on the residual stream of pre-norm blocks, so that all have the model's width and the slices of the shared matrix are
the same matrix; Launay et al. put them behind the norms of post-norm blocks. Of "micro" points there are two per block, behind attention and MLP.

Shapes: B rows, T positions, D hidden size.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from brimful.data.batches import MicroBatch
from brimful.model.blocks import named_blocks_of
from brimful.recipe import FeedbackRecipe, Recipe
from brimful.training.method import Method, Network, linear_head_loss_sum, next_token_loss_sum


class Feedback:
    """A `LossSum` whose backward pass feeds the error back. Everything in it is linear in the error, so accumulation and loss scaling stay exact.

    Args:
        rules: Where and through which matrix.
        seed: Of the matrix, which is a pure function of it and the width: checkpoints need not hold it.
    """

    def __init__(self, rules: FeedbackRecipe, seed: int) -> None:
        self._rules, self._seed = rules, seed
        self._attached: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._matrices: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}
        self._relay: _Relay | None = None

    def __call__(self, network: Network, micro: MicroBatch) -> Tensor:
        """Cross-entropy of every target token, in nats."""
        if not torch.is_grad_enabled():
            return next_token_loss_sum(network, micro)
        self._attach(network.model)
        with self._cutting() as relay:
            hidden_BTD = network.hidden_states(micro)
        return linear_head_loss_sum(network, micro, _Top.apply(hidden_BTD, relay.token, relay))  # type: ignore[no-untyped-call]

    def feed_back(self, error_BTD: Tensor) -> Tensor:
        """The error as a feedback point receives it (B, T, D)."""
        if self._rules.matrix == "identity":
            return error_BTD
        key = (error_BTD.shape[-1], error_BTD.device, error_BTD.dtype)
        if key not in self._matrices:
            self._matrices[key] = feedback_matrix(key[0], self._seed).to(key[1], key[2])
        return error_BTD @ self._matrices[key]

    @contextmanager
    def _cutting(self) -> Iterator["_Relay"]:
        """Segments are cut while this is open: not in evaluation, nor when activations are computed again."""
        self._relay = relay = _Relay(self.feed_back)
        try:
            yield relay
        finally:
            self._relay = None

    def _attach(self, model: nn.Module) -> None:
        if model in self._attached:
            return
        self._attached.add(model)
        for segment in segments_of(model, self._rules.points):
            segment.register_forward_hook(self._cut)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _cut(self, _: nn.Module, __: Any, output: Any) -> Any:
        """What the next segment reads: the same numbers, of which no gradient comes back."""
        relay = self._relay
        if relay is None:
            return None
        hidden_BTD, *others = output if isinstance(output, tuple) else (output,)
        if self._rules.points != "none":
            relay.token = _Point.apply(hidden_BTD, relay.token, relay)  # type: ignore[no-untyped-call]
        return (hidden_BTD.detach(), *others) if isinstance(output, tuple) else hidden_BTD.detach()


class _Relay:
    """What the points of one forward pass share: the error, once it is known, and a token that passes from the top point to the lowest.

    The token carries no information. It makes autograd run the points from the top down, so that the activations of a segment are freed before the
    error reaches the next one, and no more than one fed-back error exists at a time.
    """

    def __init__(self, feed_back: Callable[[Tensor], Tensor]) -> None:
        self.feed_back = feed_back
        self.token = torch.zeros((), requires_grad=True)
        self.error_BTD: Tensor | None = None


class _Top(torch.autograd.Function):
    """Notes the error at the hidden states before the vocabulary projection."""

    @staticmethod
    def forward(ctx: Any, hidden_BTD: Tensor, token: Tensor, relay: _Relay) -> Tensor:
        ctx.relay = relay
        return hidden_BTD.view_as(hidden_BTD)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        ctx.relay.error_BTD = grad_outputs[0]
        return grad_outputs[0], torch.zeros(()), None


class _Point(torch.autograd.Function):
    """A feedback point: its segment's output gets the error through the fixed matrix."""

    @staticmethod
    def forward(ctx: Any, hidden_BTD: Tensor, token: Tensor, relay: _Relay) -> Tensor:
        ctx.relay = relay
        ctx.dtype = hidden_BTD.dtype
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        fed_back_BTD = ctx.relay.feed_back(ctx.relay.error_BTD)
        return fed_back_BTD.to(ctx.dtype), grad_outputs[0], None


def feedback_matrix(width: int, seed: int) -> Tensor:
    """Entries uniform in [-1, 1), divided by sqrt(D): (D, D), fp32 on the CPU (Launay et al. 2020, their code)."""
    entries_DD = torch.rand(width, width, generator=torch.Generator().manual_seed(seed))
    matrix_DD: Tensor = (2 * entries_DD - 1) / width**0.5
    return matrix_DD


def segments_of(model: Any, points: str) -> list[nn.Module]:
    """Modules behind which the network is cut: the embedding, and each block or each of its parts."""
    blocks = named_blocks_of(model)[1]
    below = [part for block in blocks for part in (block.attention_part, block.mlp_part)] if points == "sublayer" else list(blocks)
    return [model.get_input_embeddings(), *below]


def _configured(recipe: Recipe) -> Feedback:
    return Feedback(recipe.feedback_rules, recipe.seed)


METHOD = Method(loss_sum=next_token_loss_sum, trains=lambda name, parameter: True, configured=_configured)
