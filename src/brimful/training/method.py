"""A training method: a value that the loop applies without knowing its name. Some have to know of a
whole step before its first gradient, such as how far the model is from another one, which is
computed in passes without gradients.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from brimful.base.discover import module_in
from brimful.base.errors import BrimfulError
from brimful.base.warning_codes import coded
from brimful.data.batches import MicroBatch
from brimful.model.adapters import head_weight_of
from brimful.model.blocks import body_of, named_blocks_of
from brimful.model.packed_attention import attends_within, rows_not_searched
from brimful.recipe.kinds import StepOptions
from brimful.training.losses import (
    PieceLosses,
    linear_cross_entropy,
    linear_token_losses,
    piece_losses,
    piece_losses_to_compile,
)
from brimful.training.memory_errors import (
    FoundOutOfMemory,
    OutOfMemory,
    attempt,
    first_failure,
    is_out_of_memory,
)
from brimful.training.precision import Precision
from brimful.training.world import World

HiddenStates = Callable[[MicroBatch], Tensor]
"""Micro-batch -> hidden states after the final norm (B, T, D)."""


@dataclass(frozen=True)
class Network:
    """A model as methods see it.

    Attributes:
        model: The transformers module that owns the parameters.
        hidden_states: Its body, compiled or not.
        loss_chunk: Tokens per chunk of the linear cross-entropy.
        piece: Computes one chunk of it.
        note: Takes a named value of each sample of a pass and, of the same shape, 1 where it counts
            and else 0: its mean over the optimizer step stands in the journal.
        of_step: What `Method.measure` found, over what the loss is divided by; None: nothing.
    """

    model: PreTrainedModel
    hidden_states: HiddenStates
    loss_chunk: int
    piece: PieceLosses = piece_losses
    note: Callable[[str, Tensor, Tensor], None] = lambda name, values, counts: None
    of_step: Tensor | None = None

    @property
    def head_weight_VD(self) -> Tensor:  # noqa: N802 - shape suffix
        return head_weight_of(self.model)

    @property
    def logit_softcap(self) -> float | None:
        softcap: float | None = getattr(self.model.config, "final_logit_softcapping", None)
        return softcap

    def reference_states(self, micro: MicroBatch) -> Tensor:
        """Return the hidden states (B, T, D) of the model with its adapters off; nothing is kept
        for a backward pass.

        Raises:
            BrimfulError: it has no adapters.
        """
        with torch.no_grad(), _adapters_off(self.model):
            return self.hidden_states(micro)

    def before_head(self, hidden_ND: Tensor) -> Tensor:
        """Apply the layers that an encoder has between its body and the weights of its head; models
        without such layers return the hidden states as they are.
        """
        layers: Callable[[Tensor], Tensor] | None = getattr(self.model, "head", None)
        if layers is None or layers is self.model.get_output_embeddings():
            return hidden_ND
        return layers(hidden_ND)


@contextmanager
def _adapters_off(model: nn.Module) -> Iterator[None]:
    """While entered, the adapters of a model do nothing."""
    # Half a second that models without adapters do not need.
    from peft.tuners.tuners_utils import BaseTunerLayer  # noqa: PLC0415

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    if not layers:
        raise BrimfulError(
            "this method compares the model with itself before tuning, which is there as long as"
            " only adapters are trained: set adapter.rank=16 or another rank."
        )
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


LossSum = Callable[[Network, MicroBatch], Tensor]
"""Summed loss over the targets of a micro-batch (tokens, or weighted texts) in nats, fp32 scalar.
"""


@dataclass(frozen=True)
class Method:
    """How a batch becomes a loss. What the batches are is said by the kind of run that lists the
    method (brimful.recipe.kinds).

    Attributes:
        loss_sum: The loop divides it by the optimizer step's target tokens (or sum of weights), so
            accumulation is exact whatever the micro-batch.
        configured: Options -> the loss with them; None: the method has no options. Plans have no
            `seed` among them (`Recipe.loss_options`).
        in_parts: Whether it can train a model whose weights lie in parts on several ranks.
        measuring: Options -> `measure`.
        measure: Summed without gradients over the micro-batches of `MeasuredBatch.measured` before
            the first gradient of a step; None: a step needs to know nothing of itself.
    """

    loss_sum: LossSum
    configured: Callable[[StepOptions], LossSum] | None = None
    in_parts: bool = True
    measuring: Callable[[StepOptions], LossSum | None] = lambda options: None
    measure: LossSum | None = None

    def with_options(self, options: StepOptions) -> "Method":
        """Return the method with the options of a recipe or of a planned step."""
        if self.configured is None:
            return self
        return replace(self, loss_sum=self.configured(options), measure=self.measuring(options))


def find_method(name: str) -> Method:
    """Return the `METHOD` of `brimful/training/methods/{name}.py`.

    Raises:
        BrimfulError: no such file.
    """
    method: Method = module_in("brimful.training.methods", name, "training method").METHOD
    return method


def next_token_loss_sum(network: Network, micro: MicroBatch) -> Tensor:
    """Return the summed cross-entropy of the target tokens; positions without a target get no
    logits.
    """
    return linear_head_loss_sum(network, micro, network.hidden_states(micro))


def linear_head_loss_sum(network: Network, micro: MicroBatch, hidden_BTD: Tensor) -> Tensor:
    """Return `next_token_loss_sum` from hidden states."""
    targets_BT = micro.targets_BT
    if micro.scored_N is not None:
        hidden_BTD, targets_BT = (
            hidden_BTD.flatten(0, 1)[None, micro.scored_N],
            targets_BT.flatten()[None, micro.scored_N],
        )
    return linear_cross_entropy(
        hidden_BTD,
        network.head_weight_VD,
        targets_BT,
        chunk_tokens=network.loss_chunk,
        softcap=network.logit_softcap,
        piece=network.piece,
    )


def scored_losses(
    network: Network, micro: MicroBatch, hidden_BTD: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return the cross-entropy of each token that is scored, at a temperature: fp32 (N,) nats.
    Other positions get no logits.
    """
    targets_N, hidden_ND = micro.targets_BT.flatten(), hidden_BTD.flatten(0, 1)
    if micro.scored_N is not None:
        targets_N, hidden_ND = targets_N[micro.scored_N], hidden_ND[micro.scored_N]
    del hidden_BTD  # what the caller does not hold goes before the head's products
    if temperature != 1:
        hidden_ND = hidden_ND / temperature
    return linear_token_losses(
        hidden_ND,
        network.head_weight_VD,
        targets_N,
        chunk_tokens=network.loss_chunk,
        softcap=network.logit_softcap,
        piece=network.piece,
    )


def hidden_states_of(model: PreTrainedModel) -> HiddenStates:
    """Return the body of a language model as a plain function, without KV cache."""
    body = body_of(model)
    options = {"use_cache": False} if model.can_generate() else {}

    def hidden_states(micro: MicroBatch) -> Tensor:
        is_known = micro.lengths_E is None or attends_within(model)
        with rows_not_searched() if is_known else nullcontext():
            states_BTD: Tensor = body(**micro.model_inputs(), **options).last_hidden_state
        return states_BTD

    return hidden_states


def compiled(
    model: PreTrainedModel,
    *,
    shape: tuple[int, int],
    say: Callable[[str], None],
    done: Callable[[], None] = lambda: None,
) -> HiddenStates:
    """Return the body with every block compiled, for training batches of one shape (B, T) or for
    packed rows of any length.

    Blocks, not the whole body: they share one graph, so that compiling takes seconds instead of
    growing with the depth, at the same speed (docs/log). The graph of packed rows leaves their
    length open: no slower on a CPU, and rows need no padding. Evaluation and other shapes run
    eagerly. `done` is called once the first pass compiled; if the compiler fails, `say` is instead,
    and training goes on without it.
    """
    plain = hidden_states_of(model)
    is_compiled = failed = False

    def hidden_states(micro: MicroBatch) -> Tensor:
        nonlocal is_compiled, failed
        is_packed = micro.lengths_E is not None
        if (
            not failed
            and torch.is_grad_enabled()
            and (is_packed or tuple(micro.inputs_BT.shape) == shape)
        ):
            if not is_compiled:
                for block in blocks_of(model):
                    block.compile(dynamic=is_packed)
            try:
                states_BTD = plain(_with_as_many_lengths_as_positions(micro))
            except Exception as error:
                say(_failure_of_compiler(error))
                failed = True
            else:
                if not is_compiled:
                    is_compiled = True
                    done()
                return states_BTD
        with torch.compiler.set_stance("force_eager"):
            return plain(micro)

    return hidden_states


def compiled_piece_losses(say: Callable[[str], None]) -> PieceLosses:
    """Return how a chunk of the loss is computed on CUDA where blocks are compiled: one graph for
    chunks of any length. If the compiler fails, it is as in `compiled`.
    """
    fused, failed = torch.compile(piece_losses_to_compile), False

    def piece(hidden_CD: Tensor, head_VD: Tensor, targets_C: Tensor, *args: Any, **kw: Any) -> Any:
        nonlocal failed
        if not failed:
            for each in (hidden_CD, targets_C):
                torch._dynamo.maybe_mark_dynamic(each, 0)
            try:
                return fused(hidden_CD, head_VD, targets_C, *args, **kw)
            except Exception as error:
                say(_failure_of_compiler(error))
                failed = True
        return piece_losses(hidden_CD, head_VD, targets_C, *args, **kw)

    return piece


def _failure_of_compiler(error: Exception) -> str:
    """Return what is said of an error of torch.compile; any other is raised again."""
    if is_out_of_memory(error) or not type(error).__module__.startswith(
        ("torch._dynamo", "torch._inductor")
    ):
        raise error
    reason = " ".join(str(error).split("\n")[:2])[:300]
    return coded(
        "B307",
        f"torch.compile failed, training goes on without it: {type(error).__name__}: {reason}",
    )


def _with_as_many_lengths_as_positions(micro: MicroBatch) -> MicroBatch:
    """Fill the lengths of packed examples up with zeros, so that the number of examples in a row is
    not another dynamic size of the graph.
    """
    if micro.lengths_E is None:
        return micro
    fill = (0, micro.inputs_BT.shape[1] - len(micro.lengths_E))
    after_E = None if micro.after_E is None else nn.functional.pad(micro.after_E, fill, value=-1)
    return replace(micro, lengths_E=nn.functional.pad(micro.lengths_E, fill), after_E=after_E)


def blocks_of(model: PreTrainedModel) -> nn.ModuleList:
    """Return the transformer blocks."""
    return named_blocks_of(model)[1]


def measured(
    network: Network,
    method: Method,
    precision: Precision,
    device: torch.device,
    micro_batches: Iterable[MicroBatch],
    divisor: float,
) -> Network:
    """Return the network with what the method measures, without dropout; as it is where the method
    measures nothing.

    Args:
        network: Its model is left in training mode.
        method: Says what is measured.
        precision: Precision of the passes.
        device: Where the micro-batches are.
        micro_batches: Micro-batches of the step.
        divisor: What the loss of the step is divided by.
    """
    if method.measure is None:
        return network
    found = torch.zeros((), dtype=torch.float32, device=device)
    network.model.eval()
    with torch.no_grad():
        for micro in micro_batches:
            with precision.autocast(device):
                found += method.measure(network, micro)
    network.model.train()
    return replace(network, of_step=found / divisor)


def by_all(world: World, measure: Callable[[], Network]) -> Network:
    """Return what all ranks measured together, each on its part of the step.

    Raises:
        FoundOutOfMemory: on every rank, if memory ran out on any.
    """
    if world.is_alone:
        return measure()
    network = attempt(measure)
    if any(world.largest([isinstance(network, OutOfMemory)])):
        raise FoundOutOfMemory(first_failure(world, network))
    assert isinstance(network, Network)  # noqa: S101 - for the type checker
    assert network.of_step is not None  # noqa: S101 - for the type checker
    world.add_up(network.of_step)
    return network
