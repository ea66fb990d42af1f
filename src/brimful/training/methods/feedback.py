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
from brimful.recipe import FeedbackRecipe
from brimful.recipe.kinds import StepOptions
from brimful.training.method import Method, Network, linear_head_loss_sum, next_token_loss_sum

_MATRIX_STREAM = 1
"""Makes the matrix independent of the weights, which are drawn from the same seed."""
_NO_BACKWARD_PASS = -1
"""Torch's number of the current backward pass when there is none. Activation checkpointing tells
passes apart by the same number.
"""


class Feedback:
    """A `LossSum` whose backward pass feeds the error back. Everything in it is linear in the
    error, so gradient accumulation and loss scaling stay exact.

    It registers hooks on the model's modules that do nothing outside of its own passes, because the
    model is also evaluated, or trained by other methods.

    Args:
        rules: Where the error is fed back, and through which matrix.
        seed: Seed of the matrix. The matrix is a pure function of the seed and the width, so
            checkpoints need not hold it.
    """

    def __init__(self, rules: FeedbackRecipe, seed: int) -> None:
        self._rules, self._seed = rules, seed
        self._num_segments: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
        self._matrices: dict[tuple[int, torch.device, torch.dtype], Tensor] = {}
        self._relay: _Relay | None = None
        self._backward_pass = _NO_BACKWARD_PASS

    def __call__(self, network: Network, micro: MicroBatch) -> Tensor:
        """Return the summed cross-entropy of the target tokens, in nats.

        Raises:
            BrimfulError: the network was not cut behind every segment, so that the error would be
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
            # Without this the graph holds the relay and the relay the graph: a leak.
            token, relay.token = relay.token, None
            hidden_BTD = _Top.apply(hidden_BTD, token, relay)  # type: ignore[no-untyped-call]
        return linear_head_loss_sum(network, micro, hidden_BTD)

    def feed_back(self, error_BTD: Tensor) -> Tensor:
        """Return the error as every feedback point receives it (B, T, D). The product runs in the
        error's dtype, or in autocast's if that is on.
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
        """While entered, the network is cut behind its segments. It is also cut when a backward
        pass of this method recomputes activations.
        """
        self._relay = relay = _Relay(self._receive)
        try:
            yield relay
        finally:
            self._relay = None

    def _attach(self, model: nn.Module) -> int:
        """Register the hooks once; return the number of segments."""
        if model not in self._num_segments:
            embedding, *segments = segments_of(model, self._rules.points)
            embedding.register_forward_hook(self._cut_first)
            for segment in segments:
                segment.register_forward_hook(self._cut)
            self._num_segments[model] = 1 + len(segments)
        return self._num_segments[model]

    def _is_recomputing(self) -> bool:
        """Return whether a backward pass of this method runs, known by its number: recomputation
        has to cut where the forward pass did.
        """
        number = torch._C._current_graph_task_id()
        return number != _NO_BACKWARD_PASS and number == self._backward_pass

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _cut_first(self, module: nn.Module, inputs: Any, output: Any) -> Any:
        """Cut behind the embedding. Earlier cuts of the pass are dropped: the network is run again
        from the start after compiling it failed in the middle.
        """
        if self._relay is not None:
            self._relay.start()
        return self._cut(module, inputs, output)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _cut(self, _: nn.Module, __: Any, output: Any) -> Any:
        """Return what the next segment reads: the same values, without a gradient to this one."""
        relay = self._relay
        if relay is None and not self._is_recomputing():
            return None
        hidden_BTD, *others = output if isinstance(output, tuple) else (output,)
        if relay is not None:
            relay.num_cuts += 1
        if relay is not None and self._rules.points != "none":
            relay.add_point(hidden_BTD)
        return (hidden_BTD.detach(), *others) if isinstance(output, tuple) else hidden_BTD.detach()


class _Relay:
    """State shared by the feedback points of one forward pass: the error that is fed back, once it
    is known, and a token that passes from the top to the lowest point.

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
        token, is_lowest = self.token, self.token is None
        if token is None:
            token = torch.zeros((), device=hidden_BTD.device, requires_grad=True)
        self.token = _FeedbackPoint.apply(  # type: ignore[no-untyped-call]
            hidden_BTD, token, self, is_lowest
        )


class _Top(torch.autograd.Function):
    """Identity; its backward pass stores the error at the hidden states before the vocabulary
    projection.
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


class _FeedbackPoint(torch.autograd.Function):
    """A feedback point: the gradient of its segment's output is the error times the fixed
    matrix.
    """

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
    if not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def feedback_matrix(width: int, seed: int) -> Tensor:
    """Return the fixed matrix (D, D), fp32 on the CPU: entries uniform in [-1, 1), divided by
    sqrt(D) (the code of Launay et al. 2020).
    """
    generator = torch.Generator().manual_seed(
        int(np.random.SeedSequence((seed, _MATRIX_STREAM)).generate_state(1)[0])
    )
    matrix_DD: Tensor = (2 * torch.rand(width, width, generator=generator) - 1) / width**0.5
    return matrix_DD


def segments_of(model: Any, points: str) -> list[nn.Module]:
    """Return the modules behind which the network is cut: the embedding, and each block, or with
    `points` "sublayer" the two parts of each block.
    """
    segments = [model.get_input_embeddings()]
    for block in named_blocks_of(model)[1]:
        if points == "sublayer":
            segments += [block.attention_part, block.mlp_part]
        else:
            segments.append(block)
    return segments


def _configured(options: StepOptions) -> Feedback:
    rules = FeedbackRecipe(points=options["feedback"], matrix=options.get("matrix", "uniform"))
    return Feedback(rules, options.get("seed", 0))


def _unconfigured(network: Network, micro: MicroBatch) -> Tensor:
    raise BrimfulError(
        "method feedback needs the recipe's matrix and points: take it as"
        " find_method(...).with_options(recipe.loss_options)"
    )


METHOD = Method(
    loss_sum=_unconfigured,
    configured=_configured,
    in_parts=False,
)
