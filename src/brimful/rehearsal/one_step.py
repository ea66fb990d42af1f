"""One optimizer step from given weights, sequences and optimizer states, run with the functions of
the training loop.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from brimful.base.types import Numbers
from brimful.data.batches import IGNORED, Batch, StepBatch
from brimful.data.masking import MaskingRules, masked
from brimful.model.build import build
from brimful.planning.step import Recompute
from brimful.rehearsal.reduced import Reduced
from brimful.training.activations import recompute_activations
from brimful.training.loop import accumulate_gradients
from brimful.training.method import Method, Network, compiled, find_method, hidden_states_of
from brimful.training.optim import (
    StepGuard,
    build_optimizer,
    guarded_update,
    load_named_states,
    loss_factor,
)
from brimful.training.precision import Precision
from brimful.training.step_checks import samples_of, what_moved, who_sees_whom
from brimful.training.tensorfile import Tensors

STATES_STEP = 10
"""Number of updates in the optimizer states that a step starts from."""


@dataclass(frozen=True)
class StepOptions:
    """How a step is run.

    Attributes:
        precision: "fp32", "bf16" or "fp16".
        attention: transformers' name of the implementation.
        recompute: Activations of every block are recomputed, all or the cheap ones.
        compile: Blocks are compiled.
        optimizer: Variant of torch's AdamW: fused, foreach or for_loop.
        loss_chunk: Tokens per piece of the loss.
        micro_batches: Sequences of each pass.
    """

    precision: str
    attention: str
    recompute: Recompute
    compile: bool
    optimizer: str
    loss_chunk: int
    micro_batches: tuple[int, ...]


@dataclass(frozen=True)
class StepResult:
    """The result of one optimizer step; tensors on the CPU, by parameter.

    Attributes:
        loss: Mean over target tokens, nats.
        weights: Weights before the step.
        gradients: Unscaled, before clipping.
        updates: Weights after less weights before.
        skipped: Attempts that overflowed before (fp16 only), each with half the loss scale of the
            one before.
        messages: The messages of a compiler that failed.
        shown: Which weights moved, and which positions see which.
    """

    loss: float
    weights: Tensors
    gradients: Tensors
    updates: Tensors
    skipped: int
    messages: tuple[str, ...]
    shown: tuple[str, ...]


def take_step(
    reduced: Reduced,
    options: StepOptions,
    device: torch.device,
    second_moments: Numbers | None = None,
) -> StepResult:
    """Run one optimizer step of the training loop, with weights and sequences from the recipe's
    seed.

    AdamW starts from given states: with empty ones its first update is the sign of the gradient,
    which rounding decides where the gradient is nearly 0. A step that overflows in fp16 is repeated
    with half the loss scale.

    Args:
        second_moments: Mean squared gradient of each parameter in AdamW's states; None takes that
            of this step's own gradients.
    """
    model = build(
        reduced.recipe,
        vocabulary=reduced.vocabulary,
        end_of_text_id=0,
        attention=options.attention,
        device=device,
    )
    model.train()
    if options.recompute:
        recompute_activations(model, options.recompute)
    optimizer = build_optimizer(model, reduced.recipe.optimizer, variant=options.optimizer)
    messages: list[str] = []
    shape = reduced.recipe.shape_of(options.micro_batches[0])
    body = hidden_states_of(model)
    if options.compile:
        body = compiled(model, shape=shape, say=messages.append)
    method = find_method(reduced.recipe.method).with_options(reduced.recipe.loss_options)
    network, precision, batch = (
        Network(model, body, options.loss_chunk),
        Precision(options.precision),
        sequences_of(reduced),
    )
    guard, before = StepGuard.fresh(precision, device), _copies(model)
    with precision.autocast(device):
        seen = who_sees_whom(model, next(batch.micro_batches(options.micro_batches)).to(device))
    done, named = False, dict(model.named_parameters())
    while not done:
        scale, skipped = (
            loss_factor(guard.loss_scale, batch.num_target_tokens),
            guard.skipped.clone(),
        )
        carried = scale * batch.num_target_tokens
        loss = _accumulate(method, options, network, precision, batch, scale)
        gradients = {
            name: _gradient(parameter) / float(carried)
            for name, parameter in model.named_parameters()
        }
        load_named_states(
            model, optimizer, _states(model, second_moments or mean_squares(gradients))
        )
        last_scale, samples = bool(guard.loss_scale <= 1), samples_of(named)
        guarded_update(
            optimizer,
            guard,
            precision,
            loss=loss,
            clip_norm=reduced.recipe.optimizer.clip_norm,
            carried=carried,
        )
        done = bool(guard.skipped == skipped) or last_scale
    is_updated = bool(guard.skipped == skipped)
    shown = filter(None, (*(what_moved(named, samples) if is_updated else ()), seen))
    after = _copies(model)
    updates = {name: after[name].double() - weight.double() for name, weight in before.items()}
    return StepResult(
        float(loss), before, gradients, updates, int(guard.skipped), tuple(messages), tuple(shown)
    )


def _accumulate(
    method: Method,
    options: StepOptions,
    network: Network,
    precision: Precision,
    batch: StepBatch,
    scale: Tensor,
) -> Tensor:
    """Compute fresh gradients of the whole batch; return the mean loss over its target tokens."""
    for parameter in network.model.parameters():
        parameter.grad = None
    device = scale.device
    pieces = (micro.to(device) for micro in batch.micro_batches(options.micro_batches))
    return (
        accumulate_gradients(network, method, precision, device, pieces, scale)
        / batch.num_target_tokens
    )


def sequences_of(reduced: Reduced) -> Batch:
    """Return sequences of random tokens. Their targets end at different places, so that passes have
    different numbers of targets and a wrong weight of a pass would show. For an encoder that fills
    masks some tokens are masked.
    """
    recipe = reduced.recipe
    generator = torch.Generator().manual_seed(recipe.seed)
    count, length = recipe.effective_batch, recipe.sequence_length
    ids = torch.randint(0, reduced.vocabulary, (count, length + 1), generator=generator)
    ends = torch.randint(length // 2, length + 1, (count, 1), generator=generator)
    plain = Batch(ids[:, :-1], ids[:, 1:].masked_fill(torch.arange(length) >= ends, IGNORED))
    if not recipe.kind.fills_masks:
        return plain
    return masked(
        plain,
        length,
        MaskingRules(recipe.data.masked_share, reduced.vocabulary, recipe.seed),
        np.arange(count),
    )


def mean_squares(gradients: Tensors) -> Numbers:
    """Return the mean squared gradient of each parameter."""
    return {name: float(gradient.double().square().mean()) for name, gradient in gradients.items()}


def _states(model: nn.Module, second_moments: Numbers) -> Tensors:
    states = {}
    for name, parameter in model.named_parameters():
        states[f"{name}:step"] = torch.tensor(float(STATES_STEP))
        states[f"{name}:exp_avg"] = torch.zeros_like(parameter)
        states[f"{name}:exp_avg_sq"] = torch.full_like(parameter, second_moments[name])
    return states


def _gradient(parameter: nn.Parameter) -> Tensor:
    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
    return gradient.detach().to("cpu", copy=True)


def _copies(model: nn.Module) -> Tensors:
    return {name: parameter.detach().cpu().clone() for name, parameter in model.named_parameters()}
