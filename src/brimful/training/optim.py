"""The optimizer update: AdamW, its schedule, clipping, and the guard that skips a bad step on the
device.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from brimful.base.errors import CheckpointError
from brimful.model.blocks import depth_of_parameters
from brimful.recipe import OptimizerRecipe
from brimful.training import eight_bit
from brimful.training.precision import FP16_GROWTH_INTERVAL, Precision


def learning_rate_at(step: int, total_steps: int, optimizer: OptimizerRecipe) -> float:
    """Learning rate of update `step` (0-based): linear warm-up from peak/W, so never 0, then the
    recipe's schedule to its minimum.
    """
    peak, low = optimizer.learning_rate, optimizer.resolved_min_learning_rate
    warmup_steps = (
        round(optimizer.warmup * total_steps) if optimizer.warmup < 1 else int(optimizer.warmup)
    )
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if optimizer.schedule == "constant":
        return peak
    progress = min((step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1), 1.0)
    share = (
        1 - progress if optimizer.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    )
    return low + (peak - low) * share


def build_optimizer(
    model: nn.Module, settings: OptimizerRecipe, *, variant: str
) -> torch.optim.Optimizer:
    """AdamW over the trainable parameters; weight decay on those with two or more dimensions only.

    Args:
        variant: The plan's: fused, foreach or for_loop are torch's, with states in fp32; 8bit and
            paged_8bit bitsandbytes', for the other kinds.

    Raises:
        DeviceError: the device has no kernels for this variant.
        RequestError: the variant needs bitsandbytes, which is not installed.
    """
    groups = [
        {
            "params": [parameter for parameter in parameters if (parameter.ndim >= 2) is is_matrix],
            "weight_decay": decay,
            "lr_factor": factor,
        }
        for factor, parameters in _by_learning_rate(model, settings.layer_decay)
        for is_matrix, decay in ((True, settings.weight_decay), (False, 0.0))
    ]
    if variant in eight_bit.KINDS:
        return eight_bit.build(groups, settings, variant=variant)
    betas, kernels = (
        (settings.beta1, settings.beta2),
        {"fused": variant == "fused", "foreach": variant == "foreach"},
    )
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=betas, eps=settings.eps, **kernels
    )


def _by_learning_rate(
    model: nn.Module, layer_decay: float
) -> list[tuple[float, list[nn.Parameter]]]:
    """Trainable parameters by the factor on their learning rate: `layer_decay` for each block
    further from the output (Howard and Ruder 2018, section 3.2, with a decay of 1 / 2.6);
    embeddings lie behind the first block.
    """
    trainable = [
        (name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    if layer_decay == 1:
        return [(1.0, [parameter for _, parameter in trainable])]
    depths = depth_of_parameters(model)
    deepest = max(depths.values())
    by_depth: dict[int, list[nn.Parameter]] = defaultdict(list)
    for name, parameter in trainable:
        by_depth[depths[name]].append(parameter)
    return [
        (layer_decay ** (deepest - depth), by_depth[depth])
        for depth in sorted(by_depth, reverse=True)
    ]


@dataclass
class Guard:
    """Counters that live on the device, so that watching them never waits for it.

    Attributes:
        loss_scale: Factor on the loss before the backward pass; 1 except for fp16.
        good_steps: Steps since the scale last moved.
        skipped: Steps skipped so far.
        bad_in_a_row: Skipped steps since the last good one, not counting fp16 overflows that a
            lower scale may mend.
        norm_average: Running average of the gradient norm over good steps; 0 before the first.
    """

    loss_scale: Tensor
    good_steps: Tensor
    skipped: Tensor
    bad_in_a_row: Tensor
    norm_average: Tensor

    @classmethod
    def fresh(cls, precision: Precision, device: torch.device) -> "Guard":
        scale, *zeros = (
            torch.tensor(value, dtype=torch.float32, device=device)
            for value in (precision.initial_loss_scale, 0.0, 0.0, 0.0, 0.0)
        )
        return cls(scale, *zeros)

    def to_list(self) -> list[float]:
        """Values for a checkpoint; waits for the device."""
        return torch.stack(
            [self.loss_scale, self.good_steps, self.skipped, self.bad_in_a_row, self.norm_average]
        ).tolist()

    @classmethod
    def from_list(cls, values: list[float], device: torch.device) -> "Guard":
        return cls(*(torch.tensor(value, dtype=torch.float32, device=device) for value in values))

    def note(self, bad: Tensor, norm: Tensor, precision: Precision) -> None:
        """Update every counter from this step's verdict (0-dim bool) and unscaled gradient norm."""
        self.skipped += bad
        mendable = self.loss_scale > 1
        self.bad_in_a_row = torch.where(bad, self.bad_in_a_row + (~mendable).float(), 0.0)
        average = torch.where(self.norm_average == 0, norm, 0.95 * self.norm_average + 0.05 * norm)
        self.norm_average = torch.where(bad, self.norm_average, average)
        if precision.scales_loss:
            self.good_steps = torch.where(bad, 0.0, self.good_steps + 1)
            grows = self.good_steps >= FP16_GROWTH_INTERVAL
            grown = torch.where(grows, self.loss_scale * 2, self.loss_scale)
            self.good_steps = torch.where(grows, 0.0, self.good_steps)
            self.loss_scale = torch.where(bad, (self.loss_scale / 2).clamp(min=1.0), grown)


def loss_factor(loss_scale: Tensor, divisor: float) -> Tensor:
    """Factor on a loss that is summed over the targets of a step before its backward pass: near
    loss scale / divisor, and a power of two.

    16-bit gradients take a power of two without rounding; 1 / divisor itself would scale every
    gradient of the step by up to 0.4 % too much or too little in bf16. What is left of the division
    is done in fp32 by `guarded_update`.
    """
    return loss_scale * 2.0 ** -math.ceil(math.log2(divisor))


def guarded_update(
    optimizer: torch.optim.Optimizer,
    guard: Guard,
    precision: Precision,
    *,
    loss: Tensor,
    clip_norm: float | None,
    carried: Tensor | None = None,
) -> Tensor:
    """Clip, then step unless loss or gradients are not finite; the decision stays on the device.

    Fused AdamW takes the verdict (`found_inf`) and the common divisor of all gradients
    (`grad_scale`: loss scale times clipping) as tensors, the way torch.amp.GradScaler hands them
    over, so clipping costs no pass of its own. Unfused variants pay one wait for the device.

    Args:
        carried: What the gradients are multiplied by, loss scale included (0-dim); the loss scale
            alone where None.

    Returns:
        The unscaled gradient norm before clipping, 0-dim fp32.
    """
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    scaled_norm = torch.nn.utils.get_total_norm(gradients).float()
    carried = guard.loss_scale if carried is None else carried
    norm = scaled_norm / carried
    spike = (guard.norm_average > 0) & (norm > precision.norm_spike * guard.norm_average)
    bad = ~(torch.isfinite(norm) & torch.isfinite(loss)) | spike
    divisor = carried if clip_norm is None else carried * (norm / clip_norm).clamp(min=1.0)
    if optimizer.defaults.get("fused"):
        optimizer.grad_scale, optimizer.found_inf = divisor, bad.float()  # type: ignore[attr-defined]
        optimizer.step()
        del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
    elif not bool(bad):
        torch._foreach_div_(gradients, divisor)
        optimizer.step()
    guard.note(bad, norm, precision)
    return norm


def named_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Optimizer states under `parameter name:state name`, the tensors themselves; counts that are
    no tensors become int64 ones.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        f"{names[parameter]}:{key}": _tensor(value)
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }


def _tensor(value: Tensor | int) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value)


def load_named_states(
    model: nn.Module, optimizer: torch.optim.Optimizer, states: dict[str, Tensor]
) -> None:
    """Inverse of `named_states`, on the parameters' devices; existing states are replaced.

    Raises:
        CheckpointError: the states are those of another `optimizer.kind`.
    """
    parameters = dict(model.named_parameters())
    by_parameter: dict[nn.Parameter, dict[str, Tensor]] = defaultdict(dict)
    for full_name, value in states.items():
        name, _, key = full_name.rpartition(":")
        by_parameter[parameters[name]][key] = value
    in_eight_bits = eight_bit.is_eight_bit(optimizer)
    if any(("state1" in state) != in_eight_bits for state in by_parameter.values()):
        raise CheckpointError(
            "the checkpoint holds the states of another optimizer than optimizer.kind asks for now"
            f" ({'adamw_8bit' if in_eight_bits else 'adamw'}). Put the old kind back, start over"
            " with --fresh, or start a new run with run.name=NAME."
        )
    if in_eight_bits:
        eight_bit.load_states(optimizer, by_parameter)
        return
    optimizer.state.clear()
    for parameter, state in by_parameter.items():
        for key, value in state.items():
            keeps_on_host = key == "step" and not optimizer.defaults["fused"]
            optimizer.state[parameter][key] = (
                value.clone() if keeps_on_host else value.to(parameter.device, copy=True)
            )
