"""Direct feedback alignment: each segment of the network learns from the error at the top, through
a fixed matrix, instead of backpropagation.

Noekland 2016 ("Direct Feedback Alignment Provides Learning in Deep Neural Networks"); for
transformers Launay et al. 2020 ("Direct Feedback Alignment Scales to Modern Deep Learning Tasks and
Architectures"): the error is the loss's gradient at the hidden states before the vocabulary
projection, and one matrix serves all feedback points. Inside a segment ordinary backpropagation
runs from its output to its parameters and stops at its input. The final norm and the head get the
true gradient; the embedding is a segment of its own, and where it is tied it also gets the head's
gradient. What lies between the embedding and the first block, as learned positions do, belongs to
the first block's segment.

Deviations: feedback points lie on the residual stream of pre-norm blocks, so that all have the
model's width and the slices of the shared matrix are the same matrix; Launay et al. put them behind
the norms of post-norm blocks. Of "micro" points there are two per block, behind attention and MLP.

Shapes: B rows, T positions, D hidden size.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brimful.base.errors import BrimfulError
from brimful.data.batches import MicroBatch
from brimful.model.blocks import named_blocks_of
from brimful.recipe import FeedbackRecipe, Recipe
from brimful.training.method import Method, Network, linear_head_loss_sum, next_token_loss_sum

_MATRIX_STREAM = 1
"""Keeps the matrix apart from the weights, which the same seed draws: they must not know of each
other.
"""
_NO_BACKWARD_PASS = -1
"""What torch says outside of all; its own recomputation tells one pass from another by the same
number.
"""


class Feedback:
    """A `LossSum` whose backward pass feeds the error back. Everything in it is linear in the
    error, so accumulation and loss scaling stay exact.

    It marks a model's modules by hooks that do nothing outside of its own passes: the model is also
    evaluated, or trained otherwise.

    Args:
        rules: Where and through which matrix.
        seed: Of the matrix, which is a pure function of it and the width: checkpoints need not hold
            it.
    """

    def __init__(self, rules: FeedbackRecipe, seed: int) -> None:
        self._rules, self._seed = rules, seed
        self._num_segments: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._matrices: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}
        self._relay: _Relay | None = None
        self._backward_pass = _NO_BACKWARD_PASS

    def __call__(self, network: Network, micro: MicroBatch) -> Tensor:
        """Cross-entropy of every target token, in nats.

        Raises:
            BrimfulError: the network was not cut everywhere, so that the error would be
                backpropagated.
        """
        if not torch.is_grad_enabled():
            return next_token_loss_sum(network, micro)
        num_segments = self._attach(network.model)
        with self._cutting() as relay:
            hidden_BTD = network.hidden_states(micro)
        _check_cuts(relay.num_cuts, num_segments)
        if relay.token is not None:
            relay.products = _products_dtype(hidden_BTD.device.type)
            token, relay.token = (
                relay.token,
                None,
            )  # else the graph holds the relay and the relay the graph, for ever
            hidden_BTD = _Top.apply(hidden_BTD, token, relay)  # type: ignore[no-untyped-call]
        return linear_head_loss_sum(network, micro, hidden_BTD)

    def feed_back(self, error_BTD: Tensor) -> Tensor:
        """The error as every feedback point receives it (B, T, D); the product runs in the error's
        dtype, or in autocast's where that is on.
        """
        if self._rules.matrix == "identity":
            return error_BTD
        key = (error_BTD.shape[-1], error_BTD.device, error_BTD.dtype)
        if key not in self._matrices:
            self._matrices[key] = feedback_matrix(key[0], self._seed).to(key[1], key[2])
        return error_BTD @ self._matrices[key]

    def _receive(self, error_BTD: Tensor, products: torch.dtype | None) -> Tensor:
        self._backward_pass = torch._C._current_graph_task_id()
        with torch.autocast(error_BTD.device.type, dtype=products, enabled=products is not None):
            return self.feed_back(error_BTD)

    @contextmanager
    def _cutting(self) -> Iterator["_Relay"]:
        """Segments are cut while this is open, and when a backward pass of this method computes
        activations again.
        """
        self._relay = relay = _Relay(self._receive)
        try:
            yield relay
        finally:
            self._relay = None

    def _attach(self, model: nn.Module) -> int:
        """Number of segments, hooked once."""
        if model not in self._num_segments:
            embedding, *segments = segments_of(model, self._rules.points)
            embedding.register_forward_hook(self._cut_first)
            for segment in segments:
                segment.register_forward_hook(self._cut)
            self._num_segments[model] = 1 + len(segments)
        return self._num_segments[model]

    def _computes_again(self) -> bool:
        """Whether a backward pass of this method runs, told by its number: what stands above a cut
        must be kept as it was in the forward pass.
        """
        number = torch._C._current_graph_task_id()
        return number != _NO_BACKWARD_PASS and number == self._backward_pass

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _cut_first(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Forgets what came before: the network starts again where compiling it failed in the
        middle.
        """
        if self._relay is not None:
            self._relay.start()
        return self._cut(module, inputs, output)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _cut(self, _: nn.Module, __: Any, output: Any) -> Any:
        """What the next segment reads: the same numbers, of which no gradient comes back."""
        relay = self._relay
        if relay is None and not self._computes_again():
            return None
        hidden_BTD, *others = output if isinstance(output, tuple) else (output,)
        if relay is not None:
            relay.num_cuts += 1
        if relay is not None and self._rules.points != "none":
            relay.add_point(hidden_BTD)
        return (hidden_BTD.detach(), *others) if isinstance(output, tuple) else hidden_BTD.detach()


class _Relay:
    """What the points of one forward pass share: the error as it is fed back, once it is known, and
    a token that passes from the top to the lowest.

    The token carries no information. It makes autograd run the points from the top down, so that
    the activations of a segment are freed before the error reaches the next one. It lives on the
    device of the hidden states: points on another one would run beside the segments, not after
    them.
    """

    def __init__(self, receive: Callable[[Tensor, torch.dtype | None], Tensor]) -> None:
        self.receive = receive
        self.products: torch.dtype | None = None
        self.fed_back_BTD: Tensor | None = None
        self.start()

    def start(self) -> None:
        self.num_cuts = 0
        self.token: Tensor | None = None

    def add_point(self, hidden_BTD: Tensor) -> None:
        is_lowest = self.token is None
        token = (
            torch.zeros((), device=hidden_BTD.device, requires_grad=True)
            if self.token is None
            else self.token
        )
        self.token = _Point.apply(hidden_BTD, token, self, is_lowest)  # type: ignore[no-untyped-call]


class _Top(torch.autograd.Function):
    """Takes the error at the hidden states before the vocabulary projection, and lets it
    through.
    """

    @staticmethod
    def forward(ctx: Any, hidden_BTD: Tensor, token: Tensor, relay: _Relay) -> Tensor:
        ctx.relay = relay
        return hidden_BTD.view_as(hidden_BTD)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        error_BTD = grad_outputs[0]
        ctx.relay.fed_back_BTD = ctx.relay.receive(error_BTD, ctx.relay.products)
        return error_BTD, error_BTD.new_zeros(()), None


class _Point(torch.autograd.Function):
    """A feedback point: its segment's output gets the error through the fixed matrix."""

    @staticmethod
    def forward(
        ctx: Any, hidden_BTD: Tensor, token: Tensor, relay: _Relay, is_lowest: bool
    ) -> Tensor:
        ctx.relay, ctx.dtype, ctx.is_lowest = relay, hidden_BTD.dtype, is_lowest
        return token.clone()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None, None]:
        fed_back_BTD = ctx.relay.fed_back_BTD.to(ctx.dtype)
        if ctx.is_lowest:
            ctx.relay.fed_back_BTD = None
        return fed_back_BTD, grad_outputs[0], None, None


def _check_cuts(num_cuts: int, num_segments: int) -> None:
    if num_cuts != num_segments:
        raise BrimfulError(
            f"the network has {num_segments} segments and was cut {num_cuts} times in one forward"
            " pass: a block was left out, run twice, or compiled before method feedback saw it."
            " Make the model anew before training it this way; where that does not help, set"
            " plan.compile=false."
        )


def _products_dtype(device_type: str) -> torch.dtype | None:
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def feedback_matrix(width: int, seed: int) -> Tensor:
    """Entries uniform in [-1, 1), divided by sqrt(D): (D, D), fp32 on the CPU (Launay et al. 2020,
    their code).
    """
    generator = torch.Generator().manual_seed(
        int(np.random.SeedSequence((seed, _MATRIX_STREAM)).generate_state(1)[0])
    )
    matrix_DD: Tensor = (2 * torch.rand(width, width, generator=generator) - 1) / width**0.5
    return matrix_DD


def segments_of(model: Any, points: str) -> list[nn.Module]:
    """Modules behind which the network is cut: the embedding, and each block or each of its
    parts.
    """
    blocks = named_blocks_of(model)[1]
    below = (
        [part for block in blocks for part in (block.attention_part, block.mlp_part)]
        if points == "sublayer"
        else list(blocks)
    )
    return [model.get_input_embeddings(), *below]


def _configured(recipe: Recipe) -> Feedback:
    return Feedback(recipe.feedback_rules, recipe.seed)


def _unconfigured(network: Network, micro: MicroBatch) -> Tensor:
    raise BrimfulError(
        "method feedback needs the recipe's matrix and points: take it as"
        " find_method(...).with_options(recipe)"
    )


METHOD = Method(
    loss_sum=_unconfigured,
    trains=lambda name, parameter: parameter.requires_grad,
    configured=_configured,
)
